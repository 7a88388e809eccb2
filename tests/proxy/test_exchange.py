from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastllm_proxy.forms import Form
from fastllm_proxy.spool import Spools
from fastllm_shared.given import given as spoken_of
from fastllm_shared.snapshot import ProviderModelEntry
from tests.fakes.log import CapturedLog
from tests.proxy.parts import exchange
from tests.proxy.rig import chat


def test_nothing_is_known_before_a_stage_has_found_it_out() -> None:
    fresh = exchange()
    assert (fresh.attempts, fresh.status) == (0, 0)
    for unknown in (
        "backend",
        "sent_at",
        "first_byte_at",
        "mirror",
        "usage",
        "refusal",
        "code",
        "affinity",
        "rule",
    ):
        assert getattr(fresh, unknown) is None


def test_forgetting_the_body_keeps_what_is_still_asked_for() -> None:
    released = []
    made = exchange(body=chat(stream=True))
    made.release_body = lambda: released.append(True)
    made.forget_body()
    made.forget_body()
    assert made.body == b""
    assert made.peek is not None
    assert (made.peek.model, made.peek.stream, made.peek.members) == ("assistant", True, {})
    assert released == [True, True]


async def test_forgetting_a_form_gives_its_disk_back(tmp_path: Path) -> None:
    spools = Spools(CapturedLog().log, str(tmp_path))
    made = exchange()
    made.form = Form(5, 0, await spools.open())
    assert spools.open_files == 1
    made.forget_body()
    made.forget_body()
    assert spools.open_files == 0
    spools.close()


_TEXTS = st.text(max_size=30) | st.just("data:image/png;base64," + "A" * 3000)
_MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": _TEXTS})
)
_COUNTS = st.integers(-1, 10**20) | st.none() | st.just("many")
_BODIES = st.fixed_dictionaries(
    {"model": st.text(max_size=8)},
    optional={
        "messages": _MESSAGES | st.integers(),
        "input": _TEXTS,
        "prompt": _TEXTS,
        "max_tokens": _COUNTS,
        "max_completion_tokens": _COUNTS,
        "max_output_tokens": _COUNTS,
        "n": _COUNTS,
    },
)
MODEL = ProviderModelEntry("m", "m", input_price_per_mtok=3, output_price_per_mtok=7)


@given(_BODIES, st.permutations(range(8)), st.booleans(), st.booleans(), st.integers(0, 2000))
def test_a_request_that_is_only_spoken_of_gets_the_same_answers(
    members: dict[str, Any], order: list[int], spaced: bool, ascii_only: bool, limit: int
) -> None:
    """The dry run must see in a body what a proxy sees in it."""
    names = sorted(members, key=lambda name: order[list(members).index(name) % len(order)])
    body = json.dumps(
        {name: members[name] for name in names},
        separators=(", ", ": ") if spaced else (",", ":"),
        ensure_ascii=ascii_only,
    ).encode()
    made, said = exchange(body=body), spoken_of("principal-1", body)
    assert made.dialect == said.dialect
    assert made.conversation() == said.conversation()
    assert (made.prompt_tokens(), made.requested_tokens()) == (said.prompt_tokens, said.max_tokens)
    assert made.exceeds(limit) == said.exceeds(limit)
    assert made.expected_cost(MODEL) == said.expected_cost(MODEL)


@pytest.mark.parametrize(
    ("path", "cost"),
    [
        ("/chat/completions", 1000 + 1024),
        ("/messages", 1000 + 1024),
        ("/embeddings", 1000),
        ("/messages/count_tokens", 1000),
    ],
)
def test_what_generates_nothing_costs_its_prompt(path: str, cost: int) -> None:
    made = exchange(path=path, body=chat(messages=[]))
    made.prompt_estimate = 1000
    priced = msgspec.structs.replace(MODEL, input_price_per_mtok=1, output_price_per_mtok=1)
    assert made.expected_cost(priced) == cost
