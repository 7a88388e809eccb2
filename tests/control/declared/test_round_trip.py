"""Any configuration, exported and applied to an empty database, is served the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fastllm_control.access import Permission
from fastllm_control.config import DatabaseSettings
from fastllm_control.database import open_engine
from fastllm_control.declared import document as d
from fastllm_control.declared.text import read, write
from fastllm_control.forms import RuleForm, Target
from fastllm_control.transaction import Database
from fastllm_shared.snapshot import Conditions
from tests.fakes.database import TestDatabases
from tests.fakes.declared import CLOSED, Files

NAMES = ("a", "b/c", "on", "1e3", "22:00", "ä ö", "x: y", "- z")
MODELS = NAMES[:4]
POOLS = NAMES[4:]
POLICIES = ("weighted", "cache-affinity", "least-loaded", "lowest-latency", "round-robin", "cheapest")
SECRETS = {f"KEY_{number}": f"canary-{number}" for number in range(3)}
REFERENCES = st.sampled_from([d.SecretReference(env=name) for name in SECRETS])
COUNT = st.none() | st.integers(1, 1_000_000)
TEXT = st.none() | st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)


def some(names: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(names), unique=True, max_size=4)


def targets() -> st.SearchStrategy[tuple[Target, ...]]:
    chosen = some((*NAMES, "not there"))
    return chosen.map(lambda names: tuple(Target(name, at + 1) for at, name in enumerate(names)))


PROVIDERS = st.builds(
    d.DeclaredProvider,
    name=st.just(""),
    api_base=st.just(CLOSED),
    protocol=st.sampled_from(["openai", "anthropic", "both"]),
    upstream_api_key=st.none() | REFERENCES,
    auth_scheme=st.none() | st.just("") | st.just("Token"),
    extra_headers=st.dictionaries(st.sampled_from(["x-a", "X-B"]), REFERENCES | st.just("plain"), max_size=2),
    stream_usage=st.sampled_from(["inject", "never"]),
    state=st.sampled_from(["active", "draining", "disabled"]),
    state_reason=TEXT,
)
CONDITIONS = st.builds(
    Conditions,
    principals=st.none() | st.just(("a", "on")),
    stream=st.none() | st.booleans(),
    headers=st.none() | st.just({"x-tier": "batch"}),
    min_prompt_tokens=st.none() | st.integers(0, 10**6),
    max_budget_used_percent=st.none() | st.floats(0, 100),
    after=st.none() | st.just("22:00"),
    days=st.none() | st.just(("mon", "sun")),
)
ROUTES = st.builds(
    RuleForm,
    when=CONDITIONS,
    targets=targets(),
    policy=st.none() | st.sampled_from(POLICIES),
    tag=st.none() | st.just("batch"),
)
DENIALS = st.builds(
    RuleForm,
    when=CONDITIONS,
    action=st.just("deny"),
    deny_status=st.integers(400, 499),
    deny_message=st.none() | st.just("no: # really"),
)
BUDGETS = st.builds(
    d.DeclaredBudget,
    tokens_total=st.integers(1, 10**15),
    cost_total_micros=COUNT,
    window=st.sampled_from(["daily", "weekly", "monthly"]),
    timezone=st.sampled_from(["UTC", "Europe/Brussels"]),
)
PERMISSIONS = (
    Permission("usage:read"),
    Permission("model:invoke", "model/a"),
    Permission("model:invoke", "model/*"),
    Permission("config:write"),
)


@st.composite
def documents(draw: st.DrawFn) -> d.Document:
    """Whole files in which every reference is to something."""

    def named(kind: st.SearchStrategy[Any], names: tuple[str, ...]) -> tuple[Any, ...]:
        return tuple(_renamed(draw(kind), name) for name in draw(some(names)))

    providers = named(PROVIDERS, NAMES)
    served_by = tuple(provider.name for provider in providers)
    models = named(_models(served_by), MODELS)
    frontends = [_renamed(draw(_frontends(())), name) for name in draw(some(NAMES))]
    # Jumps lead to later ones only, so never in a circle.
    jumps = tuple(
        _with_jump(one, frontends[place + 1].name) if place + 1 < len(frontends) else one
        for place, one in enumerate(frontends)
    )
    permissions = st.lists(st.sampled_from(PERMISSIONS), unique=True).map(tuple)
    roles = named(st.builds(d.DeclaredRole, name=st.just(""), permissions=permissions), NAMES)
    held = ("viewer", "operator", *(role.name for role in roles))
    return d.Document(
        format=1,
        providers=providers,
        provider_models=models,
        pools=named(_pools(models), POOLS),
        frontend_models=jumps,
        fallback_model=draw(st.sampled_from([None, *(one.name for one in frontends)])),
        roles=roles,
        principals=named(_principals(held), NAMES),
    )


def _renamed(entry: Any, name: str) -> Any:
    values = {field: getattr(entry, field) for field in entry.__struct_fields__} | {"name": name}
    # Kinds cannot change: in every file a name is of the same one.
    if isinstance(entry, d.DeclaredProvider):
        values["kind"] = "static" if len(name) % 2 else "cloud"
    if isinstance(entry, d.DeclaredPrincipal):
        values["kind"] = "user" if len(name) % 2 else "service_account"
    return type(entry)(**values)


def _with_jump(entry: Any, destination: str) -> Any:
    jump = RuleForm(when=Conditions(stream=True), action="jump", jump=destination)
    values = {field: getattr(entry, field) for field in entry.__struct_fields__}
    return d.DeclaredFrontend(**values | {"rules": (*entry.rules, jump)})


def _models(providers: tuple[str, ...]) -> st.SearchStrategy[d.DeclaredModel]:
    backend = st.builds(
        d.DeclaredBackend,
        provider=st.sampled_from(providers or ("",)),
        upstream_model=st.sampled_from(["U", "org/V"]),
        upstream_timeout_seconds=st.none() | st.floats(0.5, 100),
        admission_max_queued=st.none() | st.integers(0, 9),
        state=st.sampled_from(["active", "draining"]),
        state_reason=TEXT,
    )
    backends = st.lists(backend, max_size=4, unique_by=lambda one: (one.provider, one.upstream_model))
    return st.builds(
        d.DeclaredModel,
        name=st.just(""),
        context_length=COUNT,
        input_price_per_mtok=COUNT,
        backends=backends.map(tuple) if providers else st.just(()),
    )


def _pools(models: tuple[Any, ...]) -> st.SearchStrategy[d.DeclaredPool]:
    whole = [d.DeclaredMember(provider_model=model.name, weight=2) for model in models]
    single = [
        d.DeclaredMember(
            backend=d.BackendReference(
                provider=one.provider, provider_model=model.name, upstream_model=one.upstream_model
            )
        )
        for model in models
        for one in model.backends
    ]
    members = (
        st.lists(st.sampled_from([*whole, *single]), unique_by=repr, max_size=3) if whole else st.just([])
    )
    return st.builds(
        d.DeclaredPool, name=st.just(""), policy=st.sampled_from(POLICIES), members=members.map(tuple)
    )


def _frontends(rules: tuple[RuleForm, ...]) -> st.SearchStrategy[d.DeclaredFrontend]:
    return st.builds(
        d.DeclaredFrontend,
        name=st.just(""),
        policy=st.none() | st.sampled_from(POLICIES),
        retry_on_timeout=st.booleans(),
        targets=targets(),
        rules=st.lists(ROUTES | DENIALS, max_size=3).map(lambda found: (*rules, *found)),
    )


def _principals(roles: tuple[str, ...]) -> st.SearchStrategy[d.DeclaredPrincipal]:
    return st.builds(
        d.DeclaredPrincipal,
        name=st.just(""),
        roles=some(roles).map(tuple),
        limits=st.none() | st.builds(d.DeclaredLimits, requests_per_min=COUNT, max_concurrent=COUNT),
        budget=st.none() | BUDGETS,
    )


@contextmanager
def fresh(databases: TestDatabases, template: str, count: int) -> Iterator[list[str]]:
    names = [databases.create(template=template) for _ in range(count)]
    try:
        yield [databases.url(name) for name in names]
    finally:
        for name in names:
            databases.drop(name)


async def _round_trip(urls: list[str], first: d.Document, second: d.Document) -> None:
    engines = [open_engine(DatabaseSettings(database_url=url)) for url in urls]
    one, other = (Files(Database(engine)) for engine in engines)
    try:
        await one.apply(write(first), SECRETS)
        exported = await one.export()
        assert "canary" not in exported
        assert (await one.apply(exported, prune=True)).steps == ()
        await other.apply(exported, _secrets_of(exported, await one.served()))
        assert await other.served() == await one.served()
        assert await other.export() == exported
        # And from one configuration to any other.
        await other.apply(write(second), SECRETS, prune=True)
        assert (await other.apply(write(second), SECRETS, prune=True)).steps == ()
    finally:
        for engine in engines:
            await engine.dispose()


def _secrets_of(exported: str, served: dict[str, Any]) -> dict[str, str]:
    """What an exported file's references stand for: their names are derived from the providers'."""
    found: dict[str, str] = {}
    for entry in read(exported).document.providers or ():
        held = next(one for one in served["providers"] if one["name"] == entry.name)
        if entry.upstream_api_key is not None:
            found[str(entry.upstream_api_key.env)] = held["credential"]
        for name, value in dict(held["extra_headers"]).items():
            reference = entry.extra_headers[name]
            assert isinstance(reference, d.SecretReference)
            found[str(reference.env)] = value
    return found


@settings(
    max_examples=3,
    phases=[Phase.generate],  # to shrink a case would take two databases a try
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(documents(), documents())
def test_export_and_apply_into_an_empty_database(
    databases: TestDatabases, migrated_template: str, first: d.Document, second: d.Document
) -> None:
    with fresh(databases, migrated_template, 2) as urls:
        asyncio.run(_round_trip(urls, first, second))
