"""Jumps between the rules of frontend models: they lead to what exists, and never in a circle."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence

from fastllm_control.advisory_locks import AdvisoryLock, take
from fastllm_control.errors import Invalid
from fastllm_control.naming import missing
from fastllm_control.repositories import frontend_models, rules
from fastllm_control.transaction import Transaction


async def hold_routing(tx: Transaction) -> None:
    """Wait until nobody else writes rules or names that rules hold, and keep it so until the commit. To be
    taken after the row of a frontend model is locked."""
    await take(tx.session, AdvisoryLock.ROUTING)


async def destination(tx: Transaction, reference: str, field: str) -> str:
    """The name of the frontend model that a jump is to lead to, an id or name. Raises `Invalid`."""
    found = await frontend_models.find(tx.session, reference)
    if found is None:
        absent = missing("frontend model", reference)
        raise Invalid(absent.code, absent.message, field)
    return found.name


async def refuse_circle(
    tx: Transaction, model: str, leads_to: Sequence[str] | None, fields: Mapping[str, str], otherwise: str
) -> None:
    """Raise `Invalid` if the jumps of the frontend model `model` come back to it.

    `leads_to` are the destinations that its rules are about to have, `None`: those that are stored. The field
    that is named is the one that `fields` knows for the first step of the circle, else `otherwise`.
    """
    await tx.session.flush()
    graph: dict[str, set[str]] = {}
    for name, jump in await rules.jumps(tx.session):
        graph.setdefault(name, set()).add(jump)
    if leads_to is not None:
        graph[model] = set(leads_to)
    found = circle(graph, model)
    if found is not None:
        message = f"these jumps would lead in a circle: {' → '.join(found)}"
        raise Invalid("jump_loop", message, fields.get(found[1], otherwise))


def circle(graph: Mapping[str, Collection[str]], start: str) -> list[str] | None:
    """The shortest way from `start` back to it, both ends named; `None` if there is none."""
    came_from: dict[str, str] = {}
    waiting = deque([start])
    while waiting:
        here = waiting.popleft()
        for there in sorted(graph.get(here, ())):
            if there == start:
                return _way(came_from, start, here)
            if there not in came_from:
                came_from[there] = here
                waiting.append(there)
    return None


def _way(came_from: Mapping[str, str], start: str, last: str) -> list[str]:
    way = [start]
    here = last
    while here != start:
        way.append(here)
        here = came_from[here]
    return [start, *reversed(way)]
