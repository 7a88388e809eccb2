"""What imports made, by name: only that is ever changed or removed by a later one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.declared.document import Document
from fastllm_control.declared.plan import SECTION_OF, Kind
from fastllm_control.errors import Conflict
from fastllm_control.tables.audit import SettingRow

SETTING = "litellm_import"
_REMOVED: tuple[Kind, ...] = ("principal", "role", "frontend_model", "pool", "provider_model", "provider")
"""In the order in which things go that refer to one another."""


class Owned(Struct, frozen=True):
    """Names by kind; digests as hex: of the keys out of LiteLLM's database, and of the master key."""

    names: Mapping[str, tuple[str, ...]] = {}
    keys: tuple[str, ...] = ()
    master: str | None = None

    def vanished(self, document: Document) -> Iterator[tuple[Kind, str]]:
        """What is no longer in the document, in the order in which it is to be removed."""
        for kind in _REMOVED:
            named = {entry.name for entry in getattr(document, SECTION_OF[kind]) or ()}
            yield from ((kind, name) for name in self.names.get(kind, ()) if name not in named)

    def after(self, document: Document, removed: Sequence[tuple[Kind, str]]) -> Mapping[str, tuple[str, ...]]:
        """The names that are owned once the document is applied and `removed` is gone."""
        found: dict[str, tuple[str, ...]] = {}
        for kind in _REMOVED:
            gone = {name for removed_kind, name in removed if removed_kind == kind}
            named = {entry.name for entry in getattr(document, SECTION_OF[kind]) or ()}
            found[kind] = tuple(sorted((set(self.names.get(kind, ())) | named) - gone))
        return found


async def read(session: AsyncSession) -> Owned:
    """What earlier imports made."""
    value = await session.scalar(select(SettingRow.value).where(SettingRow.name == SETTING))
    return Owned() if value is None else msgspec.convert(value, Owned)


async def write(session: AsyncSession, owned: Owned) -> None:
    """Remember it."""
    value = msgspec.to_builtins(owned)
    statement = insert(SettingRow).values(name=SETTING, value=value)
    await session.execute(
        statement.on_conflict_do_update(index_elements=[SettingRow.name], set_={"value": value})
    )


def refuse_others(owned: Owned, wanted: Document, there: Document) -> None:
    """Raise `Conflict` when the document would change what no import made."""
    taken = []
    for kind in _REMOVED:
        section = SECTION_OF[kind]
        known = {entry.name: entry for entry in getattr(there, section) or ()}
        mine = owned.names.get(kind, ())
        taken += [
            f"{kind.replace('_', ' ')} {entry.name}"
            for entry in getattr(wanted, section) or ()
            if entry.name in known and entry.name not in mine and not _is_same(entry, known[entry.name])
        ]
    if taken:
        more = f" and {len(taken) - 10} more" if len(taken) > 10 else ""
        raise Conflict(
            "not_imported",
            f"no import made these, so none changes them: {', '.join(taken[:10])}{more}. Rename them, here or"
            " in the file, or let the import have them with --take-over",
        )


def _is_same(wanted: Any, there: Any) -> bool:
    # Of a provider the secrets cannot be compared here: one that somebody else made stays theirs.
    return bool(wanted == there) and getattr(wanted, "upstream_api_key", None) is None
