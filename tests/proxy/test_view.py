"""A snapshot as what requests are served from."""

from __future__ import annotations

import msgspec

from fastllm_proxy.view import build_view
from fastllm_shared.keys import digest_of
from fastllm_shared.snapshot import (
    FrontendModelEntry,
    KeyEntry,
    PoolEntry,
    PoolMember,
    PrincipalEntry,
    ProviderModelEntry,
    RuleEntry,
    Snapshot,
    TargetEntry,
)
from tests.proxy.parts import live_backend
from tests.proxy.rig import KEY, MODEL, backend, provider, snapshot

LIVE = {
    "backend-1": live_backend(1),
    "backend-2": live_backend(2, protocol="openai"),
    "backend-3": live_backend(3, state="draining"),
}


def entries(**changes: object) -> Snapshot:
    made = snapshot(
        [provider(n, "http://127.0.0.1:1/v1") for n in (1, 2, 3)], [backend(n) for n in (1, 2, 3)]
    )
    return msgspec.structs.replace(made, **changes)


def frontend(*targets: str, **changes: object) -> FrontendModelEntry:
    entry = FrontendModelEntry("f", "f", 0.0, targets=tuple(TargetEntry(name) for name in targets))
    return msgspec.structs.replace(entry, **changes)


def test_keys_find_their_principals() -> None:
    view = build_view(entries(), LIVE)
    caller = view.callers[digest_of(KEY)]
    assert caller.principal.name == "team-a"
    assert caller.may_name(MODEL)
    assert not caller.may_name("not-granted")
    assert (view.version, view.history) == (1, "history")


def test_a_grant_on_everything() -> None:
    everyone = PrincipalEntry("p", "all", "user", all_models=True)
    view = build_view(entries(principals=(everyone,), keys=(KeyEntry(b"k", "k", "p", "sk"),)), LIVE)
    assert view.callers[b"k"].may_name("anything")


def test_a_key_without_its_principal_opens_nothing() -> None:
    assert build_view(entries(principals=()), LIVE).callers == {}


def test_only_active_backends_are_members_by_dialect() -> None:
    target = build_view(entries(), LIVE).models[MODEL].default.all[0]
    assert [m.backend.id for m in target.members] == ["backend-1", "backend-2"]
    assert [m.backend.id for m in target.by_dialect["openai"]] == ["backend-1", "backend-2"]
    assert [m.backend.id for m in target.by_dialect["anthropic"]] == ["backend-1"]


def test_a_backend_of_the_other_dialect_alone_serves_only_that() -> None:
    only = {"backend-1": live_backend(1, protocol="anthropic")}
    target = build_view(entries(), only).models[MODEL].default.all[0]
    assert target.by_dialect["openai"] == ()
    assert len(target.by_dialect["anthropic"]) == 1


def test_unresolved_targets_are_skipped_and_a_known_name_without_backends_is_not() -> None:
    made = entries(
        frontend_models=(frontend("gone", "empty", "qwen"),),
        provider_models=(
            ProviderModelEntry("model-1", "qwen", context_length=100, backends=("backend-1", "lost")),
            ProviderModelEntry("model-2", "empty", context_length=300),
        ),
    )
    model = build_view(made, LIVE).models["f"]
    assert [(t.name, len(t.members), t.context_length) for t in model.default.all] == [
        ("empty", 0, 300),
        ("qwen", 1, 100),
    ]
    assert model.context_length == 300


def test_pools_hold_backends_with_weights_and_their_own_policy() -> None:
    pool = PoolEntry(
        "pool-1",
        "local",
        "least-loaded",
        (PoolMember("backend-1", 3), PoolMember("backend-2", 0), PoolMember("backend-3"), PoolMember("lost")),
    )
    model = build_view(entries(pools=(pool,), frontend_models=(frontend("local"),)), LIVE).models["f"]
    target = model.default.all[0]
    assert target.policy == "least-loaded"
    assert [(m.backend.id, m.weight) for m in target.members] == [("backend-1", 3)]


def test_targets_of_rules_are_resolved_beside_the_defaults() -> None:
    rule = RuleEntry(7, targets=(TargetEntry("qwen"), TargetEntry("gone")))
    model = build_view(entries(frontend_models=(frontend("qwen", rules=(rule,)),)), LIVE).models["f"]
    assert [t.name for t in model.by_rule[7].all] == ["qwen"]


def test_the_fallback_is_a_frontend_model() -> None:
    assert build_view(entries(fallback_model=MODEL), LIVE).routes.fallback is not None
    assert build_view(entries(fallback_model="gone"), LIVE).routes.fallback is None
    assert build_view(entries(), LIVE).routes.fallback is None
