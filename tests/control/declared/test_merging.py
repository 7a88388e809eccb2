"""Audit notes of one object become one."""

from __future__ import annotations

from fastllm_control.declared.merging import merged
from fastllm_control.transaction import AuditNote, Change


def note(action: str, kind: str = "role", target: str = "1", **changes: Change) -> AuditNote:
    return AuditNote(action, kind, target, "name", changes)


def test_notes_of_one_object_say_what_was_before_the_first_and_is_after_the_last() -> None:
    notes = [
        note("role.create"),
        note("role.create", target="2"),
        note("role.add_permission", permissions=Change([], ["a"])),
        note("role.add_permission", permissions=Change(["a"], ["a", "b"])),
    ]
    first, second = merged(notes)
    assert (first.action, first.target_id, first.changes) == (
        "role.create",
        "1",
        {"permissions": Change([], ["a", "b"])},
    )
    assert (second.action, second.target_id) == ("role.create", "2")


def test_one_note_stays_as_it_is_and_several_unlike_ones_are_an_update() -> None:
    (alone,) = merged([note("principal.give_role", "principal", roles=Change([], ["a"]))])
    assert alone.action == "principal.give_role"
    (both,) = merged(
        [
            note("principal.give_role", "principal", roles=Change([], ["a"])),
            note("limits.set", "principal", tokens_per_min=Change(None, 5)),
        ]
    )
    assert (both.action, sorted(both.changes)) == ("principal.update", ["roles", "tokens_per_min"])


def test_what_was_undone_on_the_way_is_no_event() -> None:
    assert merged([note("x.y", a=Change(1, 2)), note("x.y", a=Change(2, 1))]) == []
    # Settings have no id: the name tells them apart.
    settings = [AuditNote("a.set", "setting", None, "a"), AuditNote("b.set", "setting", None, "b")]
    assert merged(settings) == settings
