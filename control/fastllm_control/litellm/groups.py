"""The entries of one model name → provider models, a pool where shares or facts differ, and targets.

LiteLLM sends to the entries of the lowest `order` and shares them by `weight`, else `rpm`, else `tpm`. Here
each order is a target, the first with a weight and the others for failover alone; entries whose share is 0
come after the others of their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal

from msgspec import Struct

from fastllm_control.declared.document import (
    BackendReference,
    DeclaredBackend,
    DeclaredMember,
    DeclaredModel,
    DeclaredPool,
    DeclaredProvider,
)
from fastllm_control.forms import Target
from fastllm_control.litellm.deployments import METRICS, Deployment, ModelFacts
from fastllm_control.litellm.findings import Report
from fastllm_control.litellm.reasons import reason_for
from fastllm_shared.snapshot import DEFAULT_POLICY, Policy

MAX_WEIGHT = 1_000_000
_LONGEST = 200


class Group(Struct, frozen=True):
    """One model name: what carries it. `context_length` is the smallest of its entries, if all say one."""

    name: str
    models: tuple[DeclaredModel, ...]
    pools: tuple[DeclaredPool, ...]
    targets: tuple[str, ...]
    context_length: int | None


class Names:
    """Names of one name space, each given once."""

    def __init__(self, taken: Sequence[str] = ()) -> None:
        self._taken = set(taken)

    def take(self, *wanted: str) -> str:
        """The first that is free, else the last with a number."""
        for name in wanted:
            if name not in self._taken:
                break
        else:
            number = 2
            while (name := f"{wanted[-1][: _LONGEST - 6]}-{number}") in self._taken:
                number += 1
        self._taken.add(name)
        return name


def providers_of(
    deployments: Sequence[Deployment],
) -> tuple[Mapping[tuple[object, ...], str], list[DeclaredProvider]]:
    """Every endpoint once, and its name by its identity."""
    names, taken = {}, Names()
    found = []
    for entry in deployments:
        endpoint = entry.endpoint
        identity = endpoint.identity()
        if identity in names:
            continue
        key = endpoint.upstream_api_key
        with_key = [] if key is None else [f"{endpoint.label}/{key.env}"[:_LONGEST]]
        names[identity] = taken.take(endpoint.label, *with_key)
        found.append(endpoint.provider(names[identity]))
    return names, found


def group(
    name: str,
    entries: Sequence[Deployment],
    providers: Mapping[tuple[object, ...], str],
    names: Names,
    policy: Policy | None,
    report: Report,
) -> Group:
    """`policy` absent: by shares (LiteLLM's `simple-shuffle`). `names` holds the names of all groups."""
    models: list[DeclaredModel] = []
    pools: list[DeclaredPool] = []
    targets: list[str] = []
    own = [name]  # the first provider model has the name of the group
    for level in _levels(entries, policy, report):
        made = _models(name, level, providers, names, own, report)
        models += made.models
        if len(made.models) == 1 and len(set(made.weights.values())) == 1:
            targets.append(made.models[0].name)
            continue
        pool_name = names.take(f"{name[: _LONGEST - 6]}/pool")
        members = tuple(
            DeclaredMember(
                backend=BackendReference(provider=provider, provider_model=model, upstream_model=upstream),
                weight=weight,
            )
            for (provider, model, upstream), weight in made.weights.items()
        )
        pools.append(DeclaredPool(name=pool_name, policy=policy or _among(made.weights), members=members))
        targets.append(pool_name)
    lengths = [entry.facts.context_length for entry in entries]
    known = [length for length in lengths if length is not None]
    return Group(
        name, tuple(models), tuple(pools), tuple(targets), min(known) if len(known) == len(lengths) else None
    )


def as_targets(names: Sequence[str], *, spare: bool = False) -> tuple[Target, ...]:
    """The first with a weight, the others, or all that are `spare`, for failover alone."""
    return tuple(Target(name, 0 if index or spare else 1) for index, name in enumerate(names))


class _Made(Struct):
    models: list[DeclaredModel]
    weights: dict[tuple[str, str, str], int]


def _among(weights: Mapping[tuple[str, str, str], int]) -> Policy:
    return DEFAULT_POLICY if len(set(weights.values())) == 1 else "weighted"


def _shares(entries: Sequence[Deployment], policy: Policy | None, report: Report) -> list[int]:
    """The weight of each entry as an integer; figures that are no weight, or more than one, are reported."""
    used = None
    if policy is None and len(entries) > 1:
        used = next(
            (metric for metric in METRICS if any(entry.shares.get(metric) for entry in entries)), None
        )
    for entry in entries:
        for metric in entry.shares:
            path = f"{entry.path}.litellm_params.{metric}"
            if metric != used:
                report.not_carried(path, reason_for(metric))
            elif metric != "weight":
                report.warn(path, "carried as a share of the requests, not as a limit")
    if used is None:
        return [1] * len(entries)
    return _integers([entry.shares.get(used, Decimal(0)) for entry in entries])


def _integers(shares: Sequence[Decimal]) -> list[int]:
    if all(share == share.to_integral_value() and share <= MAX_WEIGHT for share in shares):
        return [int(share) for share in shares]
    largest = max(shares)
    return [max(1, int(share * 1000 / largest)) if share else 0 for share in shares]


def _levels(
    entries: Sequence[Deployment], policy: Policy | None, report: Report
) -> list[list[tuple[Deployment, int]]]:
    """Entries with their weights, by order; those without an order after those with one."""
    last = max((entry.order for entry in entries if entry.order is not None), default=Decimal(0)) + 1
    by_order: dict[Decimal, list[Deployment]] = {}
    for entry in entries:
        by_order.setdefault(last if entry.order is None else entry.order, []).append(entry)
    levels: list[list[tuple[Deployment, int]]] = []
    for order in sorted(by_order):
        shares = _shares(by_order[order], policy, report)
        shared = list(zip(by_order[order], shares, strict=True))
        levels.append([(entry, share) for entry, share in shared if share])
        if spare := [(entry, 1) for entry, share in shared if not share]:
            levels.append(spare)
        for entry, _ in spare:
            report.warn(
                entry.path, "its share is 0: it is used when the others of its name are not available"
            )
    return levels


def _models(
    name: str,
    level: Sequence[tuple[Deployment, int]],
    providers: Mapping[tuple[object, ...], str],
    names: Names,
    own: list[str],
    report: Report,
) -> _Made:
    by_facts: dict[ModelFacts, list[tuple[Deployment, int]]] = {}
    for entry, weight in level:
        by_facts.setdefault(entry.facts, []).append((entry, weight))
    made = _Made([], {})
    for facts, members in by_facts.items():
        wanted = f"{name}/{members[0][0].upstream_model}"[:_LONGEST].rstrip()
        model = own.pop() if own else names.take(wanted)
        backends: dict[tuple[str, str], DeclaredBackend] = {}
        for entry, weight in members:
            provider = providers[entry.endpoint.identity()]
            place = (provider, model, entry.upstream_model)
            if place in made.weights:
                report.warn(entry.path, "it is the same as one before it: their shares are added")
            backends.setdefault((provider, entry.upstream_model), entry.backend(provider))
            made.weights[place] = min(MAX_WEIGHT, made.weights.get(place, 0) + weight)
        plain = {field: getattr(facts, field) for field in facts.__struct_fields__}
        made.models.append(DeclaredModel(name=model, **plain, backends=tuple(backends.values())))
    return made
