from __future__ import annotations

import pytest

from fastllm_shared.estimates import conversation_key
from fastllm_shared.given import Given, given
from fastllm_shared.snapshot import ProviderModelEntry


def test_a_body_is_estimated() -> None:
    body = b'{"n":2,"max_tokens":5,"model":"m","prompt":"hello"}'
    found = given("principal", body, generates=False)
    key = conversation_key("principal", b',"prompt":"hello"}')
    assert found == Given(key, len(body) // 4, 10, generates=False)
    assert given("principal", b"{}").max_tokens is None
    with pytest.raises(ValueError):  # noqa: PT011 - whatever the reason
        given("principal", b'{"a"')


def test_what_it_would_need_and_cost() -> None:
    model = ProviderModelEntry("m", "m", input_price_per_mtok=1, output_price_per_mtok=2)
    assert Given(1, 10, 5).exceeds(14)
    assert not Given(1, 10, 5).exceeds(15)
    assert not Given(1, 10).exceeds(10)
    assert Given(1, 10, 5).expected_cost(model) == 20
    assert Given(1, 10).expected_cost(model) == 10 + 2 * 1024
    assert Given(1, 10, generates=False).expected_cost(model) == 10
    assert Given(7).conversation() == 7
