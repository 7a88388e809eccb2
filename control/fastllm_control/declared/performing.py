"""The steps of a plan, done through the services that the admin API uses: they check and audit.

Additions come before what takes away, so that nobody is locked out on the way, and rules once every frontend
model is there. A refusal says which line of the file asked for what is refused.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import Struct

from fastllm_control.declared.checking import provider_form
from fastllm_control.declared.document import (
    DeclaredBackend,
    DeclaredMember,
    DeclaredPrincipal,
    Document,
)
from fastllm_control.declared.export import Current
from fastllm_control.declared.plan import SECTION_OF, Step, all_members, by_name, same_backends
from fastllm_control.declared.problems import Lines, Problem
from fastllm_control.declared.references import Resolved
from fastllm_control.dial import DialResult
from fastllm_control.errors import ApiError
from fastllm_control.forms import (
    BackendPatch,
    FrontendModelPatch,
    NewBackend,
    NewFrontendModel,
    NewPool,
    NewProviderModel,
    PoolMemberForm,
    PoolPatch,
    ProviderModelPatch,
    ProviderPatch,
)
from fastllm_control.repositories import declared
from fastllm_control.secrets import Keyring
from fastllm_control.services import (
    caps,
    fallback,
    frontend_models,
    pools,
    principals,
    provider_models,
    providers,
    roles,
    rules,
)
from fastllm_control.transaction import Transaction
from fastllm_shared.snapshot import LimitsEntry

UNDIALLED = DialResult(False, reason="it was not dialled yet")
_SECRETS = ("upstream_api_key", "extra_headers")


class Wanted(Struct, frozen=True):
    """All that the steps are made from."""

    document: Document
    lines: Lines
    current: Current
    secrets: Mapping[str, Resolved]
    dials: Mapping[str, DialResult]


class Performer:
    """One use for one transaction."""

    def __init__(self, tx: Transaction, ring: Keyring, now: datetime.datetime, wanted: Wanted) -> None:
        self._tx = tx
        self._ring = ring
        self._now = now
        self._wanted = wanted
        self._entries = {kind: by_name(getattr(wanted.document, name)) for kind, name in SECTION_OF.items()}
        self._before = {
            kind: by_name(getattr(wanted.current.document, name)) for kind, name in SECTION_OF.items()
        }
        self._places = {
            (kind, entry.name): f"{name}[{index}]"
            for kind, name in SECTION_OF.items()
            for index, entry in enumerate(getattr(wanted.document, name) or ())
        }

    async def perform(self, steps: Sequence[Step]) -> None:
        """Everything, or the first refusal (`ApiError`, with line and field)."""
        made = [step for step in steps if step.action != "delete" or step.kind == "backend"]
        gone = [step for step in steps if step not in made]
        first = steps[: next((place for place, step in enumerate(steps) if step in made), len(steps))]
        for step in first:
            await self._delete(step)
        for step in made:
            await self._make(step)
        await self._rules([step for step in made if step.kind == "frontend_model"])
        for step in made:
            if step.kind == "fallback_model":
                with self._at("fallback_model"):
                    await fallback.set_fallback(self._tx, step.name or None, dangling=True)
        for step in made:
            if step.action == "update" and step.kind in ("role", "principal"):
                await self._take(step)
        for step in gone:
            if step not in first:
                await self._delete(step)

    async def _make(self, step: Step) -> None:
        match step.kind, step.action:
            case "provider", "create":
                await self._create_provider(step)
            case "provider", _:
                await self._update_provider(step)
            case "provider_model", "create":
                await self._create_model(step)
            case "provider_model", _:
                await self._update_model(step)
            case "backend", _:
                await self._change_backend(step)
            case "pool", _:
                await self._make_pool(step)
            case "frontend_model", "create":
                await self._create_frontend(step)
            case "frontend_model", _:
                await self._update_frontend(step)
            case "role", _:
                await self._add_role(step)
            case "principal", _:
                await self._add_principal(step)

    async def _delete(self, step: Step) -> None:
        tx, name = self._tx, step.name
        with self._at(SECTION_OF[step.kind]):
            match step.kind:
                case "provider":
                    await providers.delete(tx, name, force=True)
                case "provider_model":
                    await provider_models.delete(tx, name)
                case "pool":
                    await pools.delete(tx, name)
                case "frontend_model":
                    await frontend_models.delete(tx, name)
                case "role":
                    await roles.delete(tx, name, self._now)
                case "principal":
                    await principals.delete(tx, name, self._now)

    @contextmanager
    def _at(self, place: str) -> Iterator[None]:
        """A refusal within names the line and the field of the file."""
        try:
            yield
        except ApiError as error:
            raise located(error, self._wanted.lines, place) from None

    def _of(self, step: Step) -> tuple[Any, str]:
        """The entry that a step is about, and its place in the file."""
        return self._entries[step.kind][step.name], self._places[step.kind, step.name]

    async def _create_provider(self, step: Step) -> None:
        entry, place = self._of(step)
        form = provider_form(entry, *self._wanted.secrets[step.name].given())
        with self._at(place):
            await providers.create(self._tx, self._ring, form, self._wanted.dials.get(step.name, UNDIALLED))

    async def _update_provider(self, step: Step) -> None:
        entry, place = self._of(step)
        secrets = self._wanted.secrets[step.name]
        values = {name: getattr(entry, name) for name in _with_reason(step.fields)}
        values |= {name: getattr(secrets, name) for name in _SECRETS if name in values}
        with self._at(place):
            await providers.change(self._tx, self._ring, step.name, ProviderPatch(**values))

    async def _create_model(self, step: Step) -> None:
        entry, place = self._of(step)
        backends = tuple(_new_backend(backend) for backend in entry.backends)
        plain = _values(entry, but=("backends",))
        with self._at(place):
            await provider_models.create(self._tx, NewProviderModel(**plain, backends=backends))

    async def _update_model(self, step: Step) -> None:
        entry, place = self._of(step)
        patch = ProviderModelPatch(**{name: getattr(entry, name) for name in step.fields})
        with self._at(place):
            await provider_models.change(self._tx, step.name, patch)

    async def _change_backend(self, step: Step) -> None:
        assert step.backend is not None  # the plan gives one to every step of this kind
        model = step.backend.provider_model
        entry = self._entries["provider_model"][model]
        key = (step.backend.provider, step.backend.upstream_model)
        places = {one: index for index, one in enumerate(same_backends(entry))}
        place = self._places["provider_model", model]
        with self._at(f"{place}.backends[{places[key]}]" if key in places else place):
            if step.action == "create":
                row = await provider_models.require(self._tx.session, model)
                await provider_models.add_backends(self._tx, row, [_new_backend(same_backends(entry)[key])])
                return
            backend_id = self._wanted.current.backend_ids[key[0], model, key[1]]
            if step.action == "delete":
                await provider_models.delete_backend(self._tx, backend_id)
                return
            wanted = same_backends(entry)[key]
            patch = BackendPatch(**{name: getattr(wanted, name) for name in _with_reason(step.fields)})
            await provider_models.change_backend(self._tx, backend_id, patch)

    async def _make_pool(self, step: Step) -> None:
        entry, place = self._of(step)
        fields = step.fields if step.action == "update" else ("name", "policy", "members")
        values: dict[str, Any] = {name: getattr(entry, name) for name in fields}
        if "members" in values:
            values["members"] = await self._members(all_members(entry, self._wanted.current))
        with self._at(place):
            if step.action == "create":
                await pools.create(self._tx, NewPool(**values), dangling=True)
            else:
                await pools.change(self._tx, step.name, PoolPatch(**values), dangling=True)

    async def _members(self, members: Sequence[DeclaredMember]) -> tuple[PoolMemberForm, ...]:
        # Read here, since backends may just have been made.
        ids = await declared.backend_ids(self._tx.session)
        forms = []
        for member in members:
            one = member.backend
            backend_id = None if one is None else ids[one.provider, one.provider_model, one.upstream_model]
            forms.append(PoolMemberForm(member.provider_model, backend_id, member.weight))
        return tuple(forms)

    async def _create_frontend(self, step: Step) -> None:
        entry, place = self._of(step)
        with self._at(place):
            await frontend_models.create(self._tx, NewFrontendModel(**_values(entry, but=("rules",))))

    async def _update_frontend(self, step: Step) -> None:
        entry, place = self._of(step)
        values = {name: getattr(entry, name) for name in step.fields if name != "rules"}
        if values:
            with self._at(place):
                await frontend_models.change(self._tx, step.name, FrontendModelPatch(**values))

    async def _rules(self, steps: Sequence[Step]) -> None:
        changed = [step for step in steps if step.action == "create" or "rules" in step.fields]
        # Jumps that go are taken out first: those that come might else seem to lead in a circle with them.
        for step in changed:
            before = self._before["frontend_model"].get(step.name)
            kept = {rule.jump for rule in self._entries["frontend_model"][step.name].rules}
            left = [rule for rule in before.rules if rule.jump in (None, *kept)] if before else []
            if before and len(left) < len(before.rules):
                await rules.replace_all(self._tx, step.name, left, dangling=True)
        for step in changed:
            entry, place = self._of(step)
            with self._at(place):
                await rules.replace_all(self._tx, step.name, entry.rules, dangling=True)

    async def _add_role(self, step: Step) -> None:
        entry, place = self._of(step)
        if step.action == "create":
            with self._at(place):
                await roles.create(self._tx, entry.name)
        before = self._before["role"].get(step.name)
        for index, permission in enumerate(entry.permissions):
            if before is None or permission not in before.permissions:
                with self._at(f"{place}.permissions[{index}]"):
                    await roles.add_permission(self._tx, step.name, permission)

    async def _add_principal(self, step: Step) -> None:
        entry, place = self._of(step)
        if step.action == "create":
            with self._at(place):
                await principals.create(self._tx, entry.name, entry.kind)
        before = self._before["principal"].get(step.name, DeclaredPrincipal(name=entry.name))
        for index, role in enumerate(entry.roles):
            if role not in before.roles:
                with self._at(f"{place}.roles[{index}]"):
                    await principals.give_role(self._tx, step.name, role)
        if entry.limits != before.limits:
            with self._at(f"{place}.limits"):
                await caps.set_limits(self._tx, step.name, _limits(entry))
        if entry.budget != before.budget:
            with self._at(f"{place}.budget"):
                await self._set_budget(entry)

    async def _set_budget(self, entry: DeclaredPrincipal) -> None:
        if entry.budget is None:
            await caps.drop_budget(self._tx, entry.name)
        else:
            terms = caps.BudgetTerms(**_values(entry.budget))
            await caps.set_budget(self._tx, entry.name, terms, self._now)

    async def _take(self, step: Step) -> None:
        """What a role or a principal no longer holds."""
        entry, place = self._of(step)
        before = self._before[step.kind][step.name]
        with self._at(place):
            if isinstance(entry, DeclaredPrincipal):
                for role in before.roles:
                    if role not in entry.roles:
                        await principals.take_role(self._tx, step.name, role, self._now)
                return
            for permission in before.permissions:
                if permission not in entry.permissions:
                    await roles.drop_permission(self._tx, step.name, permission, self._now)


def located(error: ApiError, lines: Lines, place: str) -> ApiError:
    """The same refusal, with the line and the field of the file."""
    field = ".".join(part for part in (place, error.field or "") if part)
    message = str(Problem(error.message, field, lines.line_of(field)))
    return type(error)(error.code, message, field)


def _values(entry: Struct, but: Sequence[str] = ()) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in entry.__struct_fields__ if name not in but}


def _with_reason(fields: Sequence[str]) -> set[str]:
    # A new state forgets the old reason, also where the new one is the same.
    return {*fields, "state_reason"} if "state" in fields else set(fields)


def _new_backend(entry: DeclaredBackend) -> NewBackend:
    return NewBackend(**_values(entry))


def _limits(entry: DeclaredPrincipal) -> LimitsEntry:
    return LimitsEntry() if entry.limits is None else LimitsEntry(**_values(entry.limits))
