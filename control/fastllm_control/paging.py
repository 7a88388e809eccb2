"""Lists: `?limit=&after=` in, `{"rows":[…],"next":cursor|null}` out, always by keyset.

All repositories have it alike: `page(session, limit, after, …filters)` gives up to `limit` rows, and an API
asks for one more than a page holds, which tells `page_of` that there is a next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Generic, TypeVar
from uuid import UUID

import msgspec

from fastllm_control.errors import Invalid

T = TypeVar("T")

Limit = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Wanted = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
"""A filter by an id, a name, or what a name begins with."""


class PageQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What every list takes; lists with filters inherit from it. `after` is a former answer's `next`."""

    limit: Limit = 100
    after: Annotated[str, msgspec.Meta(max_length=200)] | None = None

    def after_id(self) -> UUID | None:
        """`after` of lists that are ordered by a UUID; raises `Invalid`."""
        try:
            return None if self.after is None else UUID(self.after)
        except ValueError:
            raise Invalid(
                "invalid_cursor", "not a cursor of this list: use a former answer's `next`", "after"
            ) from None

    def after_number(self) -> int | None:
        """`after` of lists that are ordered by a number; raises `Invalid`."""
        if self.after is None:
            return None
        if not self.after.isascii() or not self.after.isdigit() or len(self.after) > 18:
            raise Invalid(
                "invalid_cursor", "not a cursor of this list: use a former answer's `next`", "after"
            )
        return int(self.after)


class Page(msgspec.Struct, Generic[T], frozen=True):
    """`next` is the `after` of the following page, `None` on the last."""

    rows: Sequence[T]
    next: str | None = None


def page_of(found: Sequence[T], limit: int, cursor: Callable[[T], object]) -> Page[T]:
    """A page out of up to `limit + 1` rows: the one too many only tells that there are more."""
    rows = found[:limit]
    more = len(found) > limit
    return Page(rows=rows, next=str(cursor(rows[-1])) if more and rows else None)
