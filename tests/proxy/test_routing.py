"""Frontend model → chain."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fastllm_proxy.balancer import Balancer
from fastllm_proxy.routing import route
from fastllm_proxy.view import Target
from tests.proxy.parts import exchange, live_backend, target
from tests.proxy.rig import chat

ONE = target("one", live_backend(1))


def chain(*targets: Target, **changes: Any) -> list[str]:
    made = exchange(*targets, **changes)
    found = route(made, Balancer())
    assert made.chain is found
    return [one.name for one in found]


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
