"""Aliases and fallbacks → frontend models.

A fallback is a further target with the weight 0: requests get there when nothing before it can answer. One
for requests that are too long is a rule on the size of the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from fastllm_control.declared.document import DeclaredFrontend
from fastllm_control.forms import RuleForm, Target
from fastllm_control.litellm.findings import Report, within
from fastllm_control.litellm.groups import Group, as_targets
from fastllm_control.naming import Name
from fastllm_shared.ids import has_uuid_shape
from fastllm_shared.snapshot import Conditions, Policy


class Routing(Struct):
    """What the file says beside `model_list`. `default` is for models that no list names."""

    policy: Policy | None = None
    fallbacks: dict[str, tuple[str, tuple[str, ...]]] = {}
    context_fallbacks: dict[str, tuple[str, tuple[str, ...]]] = {}
    default: tuple[str, tuple[str, ...]] = ("", ())
    aliases: dict[str, tuple[str, str]] = {}


def named_lists(value: Any, path: str, report: Report) -> dict[str, tuple[str, tuple[str, ...]]]:
    """LiteLLM's `[{model: [others]}]`, with the path of each."""
    if value is None:
        return {}
    entries = value if isinstance(value, list) else [value]
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for index, entry in enumerate(entries):
        place = f"{path}[{index}]" if isinstance(value, list) else path
        if not isinstance(entry, Mapping):
            report.not_carried(place, "a mapping from a model to a list of others is expected here")
            continue
        for model, others in entry.items():
            where = within(place, str(model))
            found[str(model)] = (where, names_in(others, where, report))
    return found


def names_in(value: Any, path: str, report: Report) -> tuple[str, ...]:
    """A list of model names."""
    names = []
    for index, name in enumerate(value if isinstance(value, list) else [] if value is None else [value]):
        if isinstance(name, str):
            names.append(name)
        else:
            report.not_carried(f"{path}[{index}]", "only a model's name can stand here, not its parameters")
    return tuple(dict.fromkeys(names))


def aliases_of(value: Mapping[str, Any], path: str, report: Report) -> dict[str, tuple[str, str]]:
    """`model_group_alias`: with the path of each."""
    found = {}
    for alias, target in value.items():
        where = within(path, alias)
        if isinstance(target, Mapping):
            if target.get("hidden"):
                report.not_carried(within(where, "hidden"), "models are shown to whoever may use them")
            target = target.get("model")
        if isinstance(target, str):
            found[alias] = (where, target)
        else:
            report.not_carried(where, "an alias names a model")
    return found


def frontends(groups: Mapping[str, Group], routing: Routing, report: Report) -> list[DeclaredFrontend]:
    """One for each group, and one for each alias, which goes where its model goes."""
    known = {alias: target for alias, (_, target) in routing.aliases.items()}
    resolver = _Resolver(groups, known, report)
    made = {name: _frontend(group, routing, resolver) for name, group in groups.items()}
    for alias, (path, target) in routing.aliases.items():
        wrong = _alias_problem(alias, made)
        found = resolver.group(target)
        if found is None or wrong is not None:
            report.not_carried(path, wrong or f"there is no model {target!a} that was carried")
            continue
        made[alias] = msgspec.structs.replace(made[found.name], name=alias)
    for path, name in resolver.unused(routing):
        report.not_carried(path, f"there is no model {name!a} that was carried")
    return list(made.values())


class _Resolver:
    def __init__(self, groups: Mapping[str, Group], aliases: Mapping[str, str], report: Report) -> None:
        self._groups = groups
        self._aliases = aliases
        self.report = report
        self._missing: set[tuple[str, str]] = set()

    def group(self, name: str) -> Group | None:
        return self._groups.get(name) or self._groups.get(self._aliases.get(name, ""))

    def targets(self, path: str, names: Sequence[str], group: Group | None) -> tuple[str, ...]:
        """The targets of other groups; each that is not there is reported once."""
        found: list[str] = []
        for name in names:
            other = self.group(name)
            if other is None and (path, name) not in self._missing:
                self._missing.add((path, name))
                self.report.not_carried(path, f"there is no model {name!a} that was carried")
            if other is not None and other is not group:
                found += other.targets
        return tuple(dict.fromkeys(found))

    def unused(self, routing: Routing) -> list[tuple[str, str]]:
        """Lists of models that are not there."""
        lists = [*routing.fallbacks.items(), *routing.context_fallbacks.items()]
        return [(path, name) for name, (path, _) in lists if name != "*" and self.group(name) is None]


def _frontend(group: Group, routing: Routing, resolver: _Resolver) -> DeclaredFrontend:
    fallbacks = _for(group.name, routing.fallbacks, routing) or routing.fallbacks.get("*") or routing.default
    spare = [name for name in resolver.targets(*fallbacks, group) if name not in group.targets]
    return DeclaredFrontend(
        name=group.name,
        policy=routing.policy,
        retry_on_timeout=bool(spare),
        targets=(*as_targets(group.targets), *as_targets(spare, spare=True)),
        rules=_context_rules(group, routing, resolver),
    )


def _for(
    name: str, lists: Mapping[str, tuple[str, tuple[str, ...]]], routing: Routing
) -> tuple[str, tuple[str, ...]] | None:
    """What is said of a model, by its name or by an alias of it."""
    if name in lists:
        return lists[name]
    return next(
        (lists[a] for a, (_, target) in routing.aliases.items() if target == name and a in lists), None
    )


def _context_rules(group: Group, routing: Routing, resolver: _Resolver) -> tuple[RuleForm, ...]:
    found = _for(group.name, routing.context_fallbacks, routing)
    if found is None:
        return ()
    path, names = found
    if group.context_length is None:
        reason = "the context length of the model is not known: say model_info.max_input_tokens of each entry"
        resolver.report.not_carried(path, reason)
        return ()
    targets: tuple[Target, ...] = as_targets(resolver.targets(path, names, group))
    if not targets:
        return ()
    return (RuleForm(when=Conditions(min_prompt_tokens=group.context_length + 1), targets=targets),)


def _alias_problem(alias: str, made: Mapping[str, DeclaredFrontend]) -> str | None:
    if alias in made:
        return "model_list has a model of that name, which is what requests get"
    try:
        msgspec.convert(alias, Name)
    except msgspec.ValidationError as error:
        return f"it cannot be a name here: {error}"
    if "*" in alias or has_uuid_shape(alias):
        return "it cannot be a name here"
    return None
