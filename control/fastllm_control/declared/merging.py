"""One audit event for each object that changed, however many calls of services it took."""

from __future__ import annotations

from collections.abc import Sequence

from fastllm_control.transaction import AuditNote, Change


def merged(notes: Sequence[AuditNote]) -> list[AuditNote]:
    """The notes, those about one object as one: from what it was before the first to what it is after the
    last. One that creates says so, several different ones are an update."""
    by_object: dict[tuple[str, str | None, str | None], list[AuditNote]] = {}
    for note in notes:
        # Without an id the name tells settings apart.
        name = note.target_name if note.target_id is None else None
        by_object.setdefault((note.target_kind, note.target_id, name), []).append(note)
    return [one for group in by_object.values() if (one := _one(group)) is not None]


def _one(group: Sequence[AuditNote]) -> AuditNote | None:
    first, last = group[0], group[-1]
    if len(group) == 1:
        return first
    changes: dict[str, Change] = {}
    for note in group:
        for name, change in note.changes.items():
            before = changes[name].before if name in changes else change.before
            changes[name] = Change(before, change.after)
    changes = {name: change for name, change in changes.items() if change.before != change.after}
    created = first.action.endswith(".create")
    if not changes and not created:
        return None
    same = all(note.action == first.action for note in group)
    action = first.action if created or same else f"{first.target_kind}.update"
    return AuditNote(action, first.target_kind, first.target_id, last.target_name, changes)
