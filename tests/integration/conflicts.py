"""Fifty writes that get in each other's way, and what must be true of them together afterwards."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from fastllm_control.api.everything import OPERATIONS
from tests.fakes.control_plane import Answer, ControlPlane

NAMES = ("a", "b", "c")
RULE: dict[str, Any] = {"targets": [{"target": "m-a"}], "tag": "x"}


def is_there(path: str) -> bool:
    """Whether anything is served of that kind."""
    kind = "/".join(path.split("/")[:3])
    return any(one.path.startswith(kind) for one in OPERATIONS)


class Call(NamedTuple):
    method: str
    path: str
    body: object = None


class Sent(NamedTuple):
    call: Call
    request_id: str
    answer: Answer

    @property
    def passed(self) -> bool:
        return self.answer.status < 300


class Event(msgspec.Struct, frozen=True):
    id: int
    action: str
    target_kind: str
    target_id: str | None
    changes: dict[str, dict[str, Any]]
    version: int | None
    request_id: str


async def prepare(plane: ControlPlane) -> None:
    """Three of each kind, so that everything meets something."""
    for name in NAMES:
        await plane.principal(name)
        await plane.role(name)
        for path, body in (
            ("/admin/provider-models", {"name": f"m-{name}"}),
            ("/admin/pools", {"name": f"p-{name}"}),
            ("/admin/frontend-models", {"name": f"f-{name}", "targets": [{"target": "m-a"}]}),
            (f"/admin/frontend-models/f-{name}/rules", {"when": {"roles": list(NAMES)}, **RULE}),
        ):
            if not is_there(path):
                continue
            made = await plane.call("POST", path, body)
            assert made.status == 201, made.body


def conflicting(seed: int, rules: Sequence[str]) -> list[Call]:
    """Fifty calls in an order of their own; `rules` are ids of rules that are there."""
    draw = random.Random(seed)
    calls = [*_names(draw), *_access(draw), *_routes(draw, rules)]
    return draw.sample([call for call in calls if is_there(call.path)], 50)


def _names(draw: random.Random) -> Iterator[Call]:
    """The same names for many, across kinds that share a name space; and renamings in a ring."""
    for _ in range(3):
        for kind in ("provider-models", "pools", "frontend-models", "principals", "roles"):
            yield Call("POST", f"/admin/{kind}", {"name": "wanted"})
    for before, after in (("a", "b"), ("b", "c"), ("c", "a"), ("a", "d"), ("d", "a")):
        for kind, prefix in (("provider-models", "m-"), ("pools", "p-"), ("frontend-models", "f-")):
            yield Call("PATCH", f"/admin/{kind}/{prefix}{before}", {"name": prefix + after})
    for kind in ("provider-models", "pools"):
        yield Call("PATCH", f"/admin/{kind}/{kind[0]}-a", {"name": "shared"})
        yield Call("DELETE", f"/admin/{kind}/wanted")
    yield Call("PATCH", "/admin/roles/c", {"name": draw.choice("de")})
    yield Call("PATCH", "/admin/principals/c", {"name": draw.choice("de")})
    yield Call("DELETE", "/admin/frontend-models/wanted")
    yield Call("DELETE", "/admin/principals/wanted")
    yield Call("DELETE", "/admin/roles/wanted")


def _access(draw: random.Random) -> Iterator[Call]:
    for _ in range(3):
        for name in ("a", "b"):
            role = draw.choice(("viewer", "operator", "inference"))
            yield Call("POST", f"/admin/principals/{name}/roles", {"role": role})
            yield Call("DELETE", f"/admin/principals/{name}/roles", {"role": role})
            permission = {"verb": "model:invoke", "resource": "model/" + draw.choice(("f-a", "f-b", "*"))}
            yield Call("POST", f"/admin/roles/{name}/permissions", permission)
            yield Call("DELETE", f"/admin/roles/{name}/permissions", permission)
            yield Call("PUT", f"/admin/principals/{name}/limits", {"max_concurrent": draw.randint(1, 3)})
            budget = {"window": "daily", "tokens_total": draw.randint(1, 3)}
            yield Call("PUT", f"/admin/principals/{name}/budget", budget)
            yield Call("DELETE", f"/admin/principals/{name}/budget")


def _routes(draw: random.Random, rules: Sequence[str]) -> Iterator[Call]:
    for number in range(4):
        name = draw.choice(NAMES)
        targets = [{"target": draw.choice(("m-a", "m-b", "p-a", "p-b"))}]
        yield Call("PUT", f"/admin/frontend-models/f-{name}/targets", {"targets": targets})
        rule = {"position": draw.randint(0, 2), "targets": targets, "tag": str(number)}
        yield Call("POST", "/admin/frontend-models/f-a/rules", rule)
        yield Call("PATCH", f"/admin/rules/{draw.choice(rules)}", {"tag": str(number), "position": 0})
        yield Call("PATCH", f"/admin/pools/p-{name}", {"policy": draw.choice(("weighted", "round-robin"))})
        jump = {"action": "jump", "jump": f"f-{draw.choice(NAMES)}"}
        yield Call("POST", f"/admin/frontend-models/f-{name}/rules", jump)
        yield Call("PUT", "/admin/fallback-model", {"frontend_model": f"f-{name}"})
    yield Call("DELETE", f"/admin/rules/{draw.choice(rules)}")
    yield Call("PUT", "/admin/frontend-models/f-b/rules", {"rules": [RULE]})


async def send_all(planes: Sequence[ControlPlane], calls: Sequence[Call], mark: str) -> list[Sent]:
    """All at once, in turn through one control plane and another."""

    async def send(number: int, call: Call) -> Sent:
        plane, request_id = planes[number % len(planes)], f"{mark}-{number}"
        headers = {"x-request-id": request_id}
        token = planes[0].admin_key
        answer = await plane.call(call.method, call.path, call.body, token=token, headers=headers)
        return Sent(call, request_id, answer)

    return await asyncio.gather(*(send(number, call) for number, call in enumerate(calls)))


def breaks(events: Sequence[Event]) -> Iterator[str]:
    """Where an event does not go on from what the one before it left: a write that was lost, or one that
    read what was not so any more. What a renamed thing takes along is no change of its own."""
    last: dict[tuple[str, str | None, str], Any] = {}
    for event in events:
        for field, change in event.changes.items():
            if field in ("when", "rules", "jump", "permissions", "position", "rule_count", "fallback_model"):
                continue
            key = (event.target_kind, event.target_id, field)
            if key in last and last[key] != change["before"]:
                yield f"{event.action} {event.target_id}: {field} was {last[key]}, not {change['before']}"
            last[key] = change["after"]


def names_left(events: Sequence[Event], before: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The ids of each kind that must be there, by the events alone."""
    found = {kind: set(ids) for kind, ids in before.items()}
    for event in events:
        kind, _, verb = event.action.partition(".")
        if kind in found and event.target_id is not None:
            if verb == "create":
                found[kind].add(event.target_id)
            elif verb == "delete":
                found[kind].remove(event.target_id)
    return found
