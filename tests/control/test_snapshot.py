"""Rows in, snapshot out."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
import pytest

from fastllm_control.provider_secrets import seal_credential, seal_headers
from fastllm_control.secrets import Keyring
from fastllm_control.snapshot import build
from fastllm_control.snapshot_rows import (
    FrontendModelRow,
    PoolMemberRow,
    PoolRow,
    PrincipalRow,
    RuleRow,
    TargetRow,
)
from fastllm_shared.ids import uuid7
from fastllm_shared.snapshot import (
    BudgetEntry,
    Conditions,
    LimitsEntry,
    PoolMember,
    Snapshot,
    TargetEntry,
    decode_snapshot,
    encode_snapshot,
)
from tests.fakes.rows import VERSION, backend, model, provider, rows

RING = Keyring.parse("ab" * 32)
OTHER = Keyring.parse("cd" * 32)


def built(**content: Any) -> Snapshot:
    made = build(rows(**content), RING.open)
    assert made.dropped == ()
    return made.snapshot


def test_nothing_makes_an_empty_snapshot_that_says_when_it_was_committed() -> None:
    snapshot = built()
    assert snapshot == Snapshot(version=VERSION, history="h", created_at=1_796_000_000.0)


def test_a_principal_carries_its_roles_grants_limits_and_budget() -> None:
    identity, limits, budget = uuid7(), LimitsEntry(60), BudgetEntry(1000, window="daily")
    snapshot = built(
        principals=[PrincipalRow(identity, "team", "service_account", limits, budget)],
        roles={identity: ["reader", "writer"]},
        resources={identity: ["model/b", "model/a/x", "model/b"]},
    )
    (entry,) = snapshot.principals
    assert (entry.id, entry.roles, entry.models) == (str(identity), ("reader", "writer"), ("a/x", "b"))
    assert (entry.limits, entry.budget, entry.all_models) == (limits, budget, False)


def test_a_grant_on_everything_is_no_model_called_star() -> None:
    identity = uuid7()
    snapshot = built(
        principals=[PrincipalRow(identity, "team", "user", None, None)],
        resources={identity: ["model/*", "model/a"]},
    )
    assert snapshot.principals[0].all_models
    assert snapshot.principals[0].models == ("a",)


def test_a_provider_carries_what_it_takes_to_dial_it() -> None:
    row = provider(
        protocol="both", auth_header="x-api-key", auth_scheme="", stream_usage="never", server_name="s"
    )
    row = msgspec.structs.replace(
        row,
        credential=seal_credential(RING, row.id, "sk-upstream"),
        extra_headers=seal_headers(RING, row.id, {"x-org": "42"}),
    )
    (entry,) = built(providers=[row]).providers
    assert (entry.credential, entry.extra_headers) == ("sk-upstream", (("x-org", "42"),))
    assert (entry.protocol, entry.auth_header, entry.auth_scheme) == ("both", "x-api-key", "")
    assert (entry.stream_usage, entry.server_name, entry.api_base) == ("never", "s", row.api_base)


def test_backends_join_their_models_and_take_the_deployments_values() -> None:
    gpu, qwen = provider(), model()
    first, second = backend(gpu, qwen), backend(gpu, qwen, admission_max_queued=0, unhealthy_after=3)
    snapshot = built(providers=[gpu], models=[qwen, model("bare")], backends=[first, second])
    assert [entry.backends for entry in snapshot.provider_models] == [(str(first.id), str(second.id)), ()]
    assert snapshot.backends[0].admission_high_water == 4
    assert snapshot.backends[0].admission_max_queued == 64
    assert snapshot.backends[1].admission_max_queued == 0
    assert snapshot.backends[1].unhealthy_after == 3


@pytest.mark.parametrize(
    ("of_provider", "of_backend", "state"),
    [
        ({}, {}, "active"),
        ({"state": "draining"}, {}, "draining"),
        ({}, {"state": "draining"}, "draining"),
        ({"agent_draining": True}, {}, "draining"),
        ({"state": "disabled"}, {}, None),
        ({}, {"state": "disabled"}, None),
        ({"state": "disabled"}, {"state": "draining"}, None),
        ({}, {"condition": "pending"}, None),
        ({"kind": "dynamic"}, {"condition": "pending"}, None),
        ({"kind": "dynamic"}, {"condition": "drifted"}, None),
        ({"kind": "dynamic"}, {"condition": "degraded"}, None),
        ({"kind": "dynamic", "condition": "degraded"}, {}, None),
        ({"kind": "dynamic", "condition": "needs_credential"}, {}, "active"),
        ({}, {"condition": "drifted"}, "active"),
        ({"kind": "cloud"}, {"condition": "degraded"}, "active"),
        ({"condition": "unreachable"}, {}, "active"),
    ],
)
def test_only_backends_that_may_get_requests_are_in(
    of_provider: dict[str, Any], of_backend: dict[str, Any], state: str | None
) -> None:
    gpu, qwen = provider(**of_provider), model()
    snapshot = built(providers=[gpu], models=[qwen], backends=[backend(gpu, qwen, **of_backend)])
    assert [entry.state for entry in snapshot.backends] == ([] if state is None else [state])
    assert len(snapshot.provider_models[0].backends) == len(snapshot.backends)


def test_an_undecryptable_credential_costs_its_backends_and_nothing_else() -> None:
    bad, good, qwen = provider(name="bad"), provider(name="good"), model()
    bad = msgspec.structs.replace(bad, credential=seal_credential(OTHER, bad.id, "sk-lost"))
    lost, kept = backend(bad, qwen), backend(good, qwen)
    made = build(rows(providers=[bad, good], models=[qwen], backends=[lost, kept]), RING.open)
    assert [entry.name for entry in made.snapshot.providers] == ["good"]
    assert [entry.id for entry in made.snapshot.backends] == [str(kept.id)]
    assert made.snapshot.provider_models[0].backends == (str(kept.id),)
    (dropped,) = made.dropped
    assert (dropped.kind, dropped.id, dropped.name) == ("provider", str(bad.id), "bad")
    assert dropped.backends == (str(lost.id),)
    assert OTHER.key_ids[0] in dropped.reason
    assert "sk-lost" not in repr(made)


def test_undecryptable_headers_count_like_a_credential() -> None:
    bad = provider()
    bad = msgspec.structs.replace(bad, extra_headers=seal_headers(OTHER, bad.id, {"x": "y"}))
    assert [dropped.name for dropped in build(rows(providers=[bad]), RING.open).dropped] == ["gpu-1"]


def test_a_backend_that_is_a_member_by_itself_has_its_own_weight() -> None:
    gpu, qwen = provider(), model()
    one, two = backend(gpu, qwen), backend(gpu, qwen)
    pool = PoolRow(uuid7(), "local", "weighted")
    members = [PoolMemberRow(pool.id, qwen.name, None, 1), PoolMemberRow(pool.id, None, two.id, 4)]
    snapshot = built(providers=[gpu], models=[qwen], backends=[one, two], pools=[pool], pool_members=members)
    assert snapshot.pools[0].members == (PoolMember(str(one.id), 1), PoolMember(str(two.id), 4))


def test_pools_are_flattened_to_backends_that_are_in() -> None:
    gpu, qwen, other = provider(), model(), model("other")
    one, two, off = backend(gpu, qwen), backend(gpu, qwen), backend(gpu, other, state="disabled")
    pool = PoolRow(uuid7(), "local", "least-loaded")
    members = [
        PoolMemberRow(pool.id, None, two.id, 5),
        PoolMemberRow(pool.id, "qwen", None, 2),
        PoolMemberRow(pool.id, "other", None, 1),
        PoolMemberRow(pool.id, None, off.id, 1),
    ]
    snapshot = built(
        providers=[gpu], models=[qwen, other], backends=[one, two, off], pools=[pool], pool_members=members
    )
    assert snapshot.pools[0].policy == "least-loaded"
    assert snapshot.pools[0].members == (PoolMember(str(two.id), 5), PoolMember(str(one.id), 2))


def frontend(name: str = "assistant") -> FrontendModelRow:
    return FrontendModelRow(uuid7(), name, None, False, 1.0)


def rule(of: FrontendModelRow, **changed: Any) -> RuleRow:
    plain = dict.fromkeys(RuleRow.__struct_fields__) | {"action": "route", "conditions": {}, "position": 0}
    return RuleRow(**{**plain, "id": uuid7(), "frontend_model_id": of.id, **changed})


def test_a_frontend_model_has_its_rules_and_targets_in_order() -> None:
    assistant, other = frontend(), frontend("other")
    first = rule(assistant, conditions={"stream": True, "days": ["mon"]}, tag="t")
    second = rule(assistant, position=1, action="deny", deny_status=413, deny_message="no")
    snapshot = built(
        frontend_models=[assistant, other],
        rules=[first, second],
        rule_targets=[TargetRow(first.id, "cheap", 1)],
        default_targets=[TargetRow(assistant.id, "qwen", 3), TargetRow(assistant.id, "spill", 1)],
        fallback_model="other",
    )
    entry = snapshot.frontend_models[0]
    assert entry.targets == (TargetEntry("qwen", 3), TargetEntry("spill", 1))
    assert entry.rules[0].when == Conditions(stream=True, days=("mon",))
    assert (entry.rules[0].targets, entry.rules[0].tag) == ((TargetEntry("cheap", 1),), "t")
    assert (entry.rules[1].action, entry.rules[1].deny_status) == ("deny", 413)
    assert (snapshot.frontend_models[1].rules, snapshot.frontend_models[1].targets) == ((), ())
    assert snapshot.fallback_model == "other"


@pytest.mark.parametrize("conditions", [{"phase_of_the_moon": "full"}, {"stream": "yes"}, [], None])
def test_a_model_with_an_unreadable_rule_is_left_out_whole(conditions: object) -> None:
    """Without its rule it would let through what the rule was to deny."""
    bad, good = frontend("bad"), frontend("good")
    made = build(rows(frontend_models=[bad, good], rules=[rule(bad, conditions=conditions)]), RING.open)
    assert [entry.name for entry in made.snapshot.frontend_models] == ["good"]
    assert [(dropped.kind, dropped.name) for dropped in made.dropped] == [("frontend_model", "bad")]


def test_what_is_built_goes_over_the_wire_and_back() -> None:
    gpu, qwen, assistant = provider(), model(), frontend()
    snapshot = built(
        providers=[gpu],
        models=[qwen],
        backends=[backend(gpu, qwen)],
        frontend_models=[assistant],
        rules=[rule(assistant)],
        principals=[PrincipalRow(uuid7(), "p", "user", None, None)],
    )
    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot


def test_the_same_rows_make_the_same_bytes() -> None:
    """Several control planes build a version each, and proxies may poll any of them."""
    identity = UUID(int=7)
    content: dict[str, Any] = {
        "principals": [PrincipalRow(identity, "p", "user", None, None)],
        "resources": {identity: ["model/b", "model/a", "model/c"]},
    }
    assert encode_snapshot(built(**content)) == encode_snapshot(built(**content))
