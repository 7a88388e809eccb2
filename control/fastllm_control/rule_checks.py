"""What makes a rule unfit to be stored, beyond the shape of its fields. Pure: no database.

Whether the destination of a jump exists, and whether jumps lead in a circle, `services.jumps` knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NoReturn

from fastllm_control.errors import Invalid
from fastllm_control.forms import RuleForm, Target
from fastllm_shared.conditions import problem
from fastllm_shared.snapshot import RuleAction

FIELDS_OF: Final[dict[RuleAction, tuple[str, ...]]] = {
    "route": ("targets", "policy"),
    "deny": ("deny_status", "deny_message"),
    "jump": ("jump",),
}
"""What belongs to one action alone."""

_NEEDED: Final[dict[RuleAction, tuple[str, str]]] = {
    "deny": ("deny_status", "a rule that denies names the status of its answer, 400 to 499"),
    "jump": ("jump", "a rule that jumps names the frontend model whose rules go on from here"),
}


def refuse_unfit(form: RuleForm, at: str = "") -> None:
    """Raise `Invalid` naming the first field that is wrong; `at` stands before it (`rules[2].`)."""
    found = problem(form.when)
    if found is not None:
        _refuse(f"{at}when.{found.field}", found.message)
    for action, fields in FIELDS_OF.items():
        for field in fields:
            if action != form.action and getattr(form, field) not in (None, ()):
                _refuse(
                    f"{at}{field}", f"is for rules whose action is `{action}`; this one's is `{form.action}`"
                )
    # A rule that routes needs no targets: without any it sends to its model's own.
    needed = _NEEDED.get(form.action)
    if needed is not None and getattr(form, needed[0]) is None:
        _refuse(f"{at}{needed[0]}", needed[1])
    refuse_repeated(form.targets, at)


def refuse_repeated(targets: Sequence[Target], at: str = "") -> None:
    """Raise `Invalid` for a target that stands twice in one list."""
    seen: set[str] = set()
    for index, entry in enumerate(targets):
        if entry.target in seen:
            message = f"{entry.target!r} is a target already: give it one weight"
            raise Invalid("repeated_target", message, f"{at}targets[{index}].target")
        seen.add(entry.target)


def _refuse(field: str, message: str) -> NoReturn:
    raise Invalid("invalid_rule", message, field)
