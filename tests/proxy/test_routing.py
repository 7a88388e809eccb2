"""Frontend model → chain, for an exchange."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest

from fastllm_proxy.balancer import Balancer
from fastllm_proxy.errors import Refused
from fastllm_proxy.exchange import Exchange
from fastllm_proxy.forms import Form
from fastllm_proxy.routing import RequestFacts, route
from fastllm_proxy.view import Target, View, build_view
from fastllm_shared.snapshot import (
    Conditions,
    FrontendModelEntry,
    PrincipalEntry,
    ProviderModelEntry,
    RuleEntry,
    TargetEntry,
)
from tests.proxy.parts import CALLER, exchange, live_backend, target
from tests.proxy.rig import MODEL, backend, chat, provider, snapshot

ONE = target("one", live_backend(1))


def chain(*targets: Target, **changes: Any) -> list[str]:
    made = exchange(*targets, **changes)
    found = route(made, Balancer())
    assert made.chain is found
    return [one.name for one in found]


def configured(*rules: RuleEntry, fallback: str | None = None, **net: Any) -> View:
    """`assistant` with these rules over `one`, and `net` over `two`."""
    base = snapshot([provider(n, "http://127.0.0.1:1/v1") for n in (1, 2)], [backend(n) for n in (1, 2)])
    models = tuple(
        ProviderModelEntry(f"model-{name}", name, backends=(f"backend-{n}",))
        for n, name in enumerate(("one", "two"), 1)
    )
    frontends = (
        FrontendModelEntry("frontend-1", MODEL, 0.0, rules=rules, targets=(TargetEntry("one"),)),
        FrontendModelEntry("frontend-2", "net", 0.0, targets=(TargetEntry("two"),), **net),
    )
    changed = msgspec.structs.replace(
        base, provider_models=models, frontend_models=frontends, fallback_model=fallback
    )
    return build_view(changed, {f"backend-{n}": live_backend(n) for n in (1, 2)})


def asking(view: View, *grants: str, **changes: Any) -> Exchange:
    made = exchange(view=view, **changes)
    made.frontend = view.models[MODEL]
    made.chain = None
    made.caller = msgspec.structs.replace(
        CALLER,
        principal=PrincipalEntry("principal-1", "team-a", "service_account", roles=("gold",)),
        models=frozenset((MODEL, *grants)),
    )
    return made


def routed(made: Exchange) -> tuple[list[str], int | None, str | None]:
    return [found.name for found in route(made, Balancer())], made.rule, made.tag


def to_two(**when: Any) -> View:
    return configured(RuleEntry(0, Conditions(**when), targets=(TargetEntry("two"),), tag="t"))


APPLIES, NOT = (["two"], 0, "t"), (["one"], None, None)


def test_one_target_is_the_chain() -> None:
    assert chain(ONE) == ["one"]
    assert chain() == []


def test_the_split_follows_the_weights_and_keeps_the_rest_as_failover() -> None:
    heavy, light = target("heavy", live_backend(1), weight=3), target("light", live_backend(2), weight=1)
    spare = target("spare", live_backend(3), weight=0)
    firsts: Counter[str] = Counter()
    for number in range(1000):
        body = chat(messages=[{"role": "user", "content": f"q{number}"}])
        names = chain(heavy, light, spare, body=body)
        assert names in (["heavy", "light", "spare"], ["light", "heavy", "spare"])
        assert names == chain(heavy, light, spare, body=body)
        firsts[names[0]] += 1
    assert 690 < firsts["heavy"] < 810


def test_what_cannot_hold_the_request_goes_to_the_end() -> None:
    small = target("small", live_backend(1), context_length=100)
    large = target("large", live_backend(2), context_length=100_000, weight=0)
    assert chain(small, large, body=chat()) == ["small", "large"]
    assert chain(small, large, body=chat(max_tokens=90)) == ["large", "small"]
    assert chain(small, large, body=chat(max_tokens=10, n=9)) == ["large", "small"]
    long = chat(messages=[{"role": "user", "content": "x" * 400}])
    assert chain(small, large, body=long) == ["large", "small"]
    picture = chat(messages=[{"role": "user", "content": "data:image/png;base64," + "A" * 4000}])
    assert chain(small, large, body=picture) == ["small", "large"]
    assert chain(small, body=long) == ["small"]


def test_rules_are_asked_of_the_request() -> None:
    for view, applies in (
        (to_two(principals=("team-a",)), True),
        (to_two(principals=("principal-1",)), False),
        (to_two(roles=("gold", "silver")), True),
        (to_two(roles=("silver",)), False),
        (to_two(stream=False), True),
        (to_two(min_max_tokens=21), True),
        (to_two(max_max_tokens=20), False),
        (to_two(max_prompt_tokens=30), True),
        (to_two(min_prompt_tokens=31), False),
        (to_two(max_budget_used_percent=0), True),
        (to_two(before="00:01"), True),  # at the epoch
        (to_two(after="00:01"), False),
    ):
        assert routed(asking(view, body=chat(max_tokens=7, n=3))) == (APPLIES if applies else NOT)


@pytest.mark.parametrize(
    ("sent", "applies"),
    [
        (((b"X-Tier", b"batch"),), True),
        (((b"x-tier", b"Batch"),), False),
        (((b"x-tier", b"batch"), (b"X-TIER", b"other")), False),
        (((b"x-tiers", b"batch"),), False),
        ((), False),
    ],
)
def test_headers_count_whole(sent: tuple[tuple[bytes, bytes], ...], applies: bool) -> None:
    made = asking(to_two(headers={"X-Tier": "batch"}), headers=sent)
    assert routed(made) == (APPLIES if applies else NOT)


def test_a_rule_looks_at_its_own_backends() -> None:
    view = to_two(max_inflight_per_backend=2)
    view.backends["backend-1"].inflight = 99
    view.backends["backend-2"].inflight = 2
    assert routed(asking(view)) == APPLIES
    view.backends["backend-2"].inflight = 3
    assert routed(asking(view)) == NOT
    view.backends["backend-2"].inflight = 0
    view.backends["backend-2"].cooling_until = float("inf")
    assert routed(asking(view)) == NOT


def test_a_rule_that_denies() -> None:
    rule = RuleEntry(0, action="deny", deny_status=413, deny_message="too long for us", tag="shed")
    made = asking(configured(rule))
    with pytest.raises(Refused, match="too long for us") as refused:
        route(made, Balancer())
    assert (refused.value.status, refused.value.code) == (413, "denied_by_rule")
    assert (made.rule, made.tag, made.chain) == (0, "shed", None)


def test_a_jump_is_counted_as_the_rule_of_the_model_that_was_asked_for() -> None:
    jump = RuleEntry(4, action="jump", jump="net", tag="jumped")
    assert routed(asking(configured(jump))) == (["two"], 4, "jumped")
    assert routed(asking(configured(msgspec.structs.replace(jump, jump="gone")))) == (["one"], None, None)


def test_a_fallback_ends_the_chain_of_those_who_may_use_it() -> None:
    view = configured(fallback="net")
    assert routed(asking(view, "net")) == (["one", "two"], None, None)
    assert routed(asking(view)) == (["one"], None, None)
    shed = configured(fallback="net", rules=(RuleEntry(0, action="deny"),))
    assert routed(asking(shed, "net")) == (["one"], None, None)


def test_a_form_is_asked_as_what_text_is_in_it() -> None:
    made = asking(to_two(max_prompt_tokens=10), body=chat())
    made.form = Form(30_000_000, 40, None)
    assert routed(made) == APPLIES
    assert RequestFacts(made).prompt_tokens == 10


def test_nothing_is_estimated_that_no_rule_asks_for() -> None:
    made = asking(to_two(stream=True))
    assert routed(made) == NOT
    assert (made.prompt_estimate, made.affinity) == (None, None)
