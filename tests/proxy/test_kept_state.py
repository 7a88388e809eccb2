"""State over several backends is refused, over one it passes."""

from __future__ import annotations

import msgspec
import pytest

from fastllm_proxy.errors import Refused
from fastllm_proxy.kept_state import refuse_kept_state
from fastllm_proxy.view import Target
from tests.proxy.parts import exchange, live_backend, target

ONE, OTHER = live_backend(1), live_backend(2)
STATE = (
    '"previous_response_id":"resp_1"',
    '"conversation":"conv_1"',
    '"conversation" : {"id":"conv_1"}',
    '"background":true',
)


def refusal(members: str, *targets: Target) -> Refused | None:
    body = b'{"model":"assistant",' + members.encode() + b"}"
    try:
        refuse_kept_state(exchange(*targets, body=body, path="/responses"))
    except Refused as refused:
        return refused
    return None


@pytest.mark.parametrize("members", STATE)
@pytest.mark.parametrize(
    "targets",
    [(target("pool", ONE, OTHER),), (target("first", ONE), target("second", OTHER, weight=0))],
    ids=("one target", "two targets"),
)
def test_state_over_several_backends_is_refused(members: str, targets: tuple[Target, ...]) -> None:
    refused = refusal(members, *targets)
    assert refused is not None
    assert (refused.status, refused.code) == (400, "unsupported_parameter")
    assert refused.param == members.split('"')[1]


@pytest.mark.parametrize("members", STATE)
def test_state_passes_when_there_is_one_backend_or_none(members: str) -> None:
    assert refusal(members, target("first", ONE), target("again", ONE)) is None
    assert refusal(members, target("nothing")) is None


def test_backends_of_the_other_dialect_do_not_count() -> None:
    both = target("both", ONE, OTHER)
    one_speaks = msgspec.structs.replace(both, by_dialect={"openai": both.members[:1], "anthropic": ()})
    assert refusal(STATE[0], one_speaks) is None


@pytest.mark.parametrize(
    "members",
    [
        '"previous_response_id":null',
        '"conversation":null,"background":false',
        '"store":true',
        '"input":[{"role":"user","content":"previous_response_id"}],"metadata":{"background":true}',
    ],
)
def test_what_needs_no_state_passes(members: str) -> None:
    assert refusal(members, target("pool", ONE, OTHER)) is None
