"""Pages of lists."""

from __future__ import annotations

from uuid import uuid4

import pytest

from fastllm_control.errors import Invalid
from fastllm_control.paging import PageQuery, page_of


def test_the_row_too_many_only_tells_that_there_are_more() -> None:
    page = page_of([1, 2, 3], 2, lambda row: row)
    assert (page.rows, page.next) == ([1, 2], "2")


@pytest.mark.parametrize("found", [[], [1], [1, 2]])
def test_the_last_page_has_no_next(found: list[int]) -> None:
    page = page_of(found, 2, lambda row: row)
    assert (page.rows, page.next) == (found, None)


def test_cursors() -> None:
    identity = uuid4()
    assert PageQuery(after=str(identity)).after_id() == identity
    assert PageQuery().after_id() is None
    assert PageQuery(after="12").after_number() == 12
    assert PageQuery().after_number() is None


@pytest.mark.parametrize("after", ["", "x", "-1", "1.5", "٣", "9" * 19, " 1"])
def test_cursors_that_are_none(after: str) -> None:
    with pytest.raises(Invalid) as refused:
        PageQuery(after=after).after_number()
    assert refused.value.field == "after"
    with pytest.raises(Invalid) as refused:
        PageQuery(after=after).after_id()
    assert refused.value.field == "after"
