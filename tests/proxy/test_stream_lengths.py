"""Event streams whose backend announces a length: what is left out or put in does not count against it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fastllm_proxy.relay import RelayTimes
from tests.fakes.engine import Answer, Fault
from tests.proxy.rig import chat
from tests.proxy.test_relay import CONTENT, DONE, USAGE, relayed


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("bytes_per_send", [None, 7])
async def test_without_its_usage_event_it_is_whole(
    tmp_path: Path, asks: bool, bytes_per_send: int | None
) -> None:
    answer = Answer(events=(CONTENT, USAGE, DONE), framing="length", bytes_per_send=bytes_per_send)
    async with relayed(tmp_path, answer) as (proxy, _):
        members: dict[str, Any] = {"stream_options": {"include_usage": True}} if asks else {}
        client = await proxy.connect()
        for _ in range(2):  # the second answer is found where the first one ends
            client.send(body=chat(stream=True, **members))
            got = await client.answer()
            assert (got.body, got.whole) == (CONTENT + (USAGE if asks else b"") + DONE, True)
            event = await proxy.events.get()
            assert (event.prompt_tokens, event.completion_tokens) == (3, 2)
        client.close()


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("missing", [1, 20, 500])
async def test_the_error_of_a_dying_backend_does_not_fill_it_up(
    tmp_path: Path, asks: bool, missing: int
) -> None:
    answer = Answer(
        events=(CONTENT, CONTENT),
        framing="length",
        declared_length=2 * len(CONTENT) + missing,
        gap=0.02,
        fault=Fault("close", at="mid_body", after=2),
    )
    async with relayed(tmp_path, answer) as (proxy, _):
        members: dict[str, Any] = {"stream_options": {"include_usage": True}} if asks else {}
        got = await proxy.post(body=chat(stream=True, **members))
        assert got.status == 200
        assert not got.whole
        assert got.body.startswith(CONTENT + CONTENT + b'data: {"error":')
        assert b'"upstream_disconnected"' in got.body
        assert got.body.endswith(b"}\n\n")


async def test_pings_do_not_fill_it_up(tmp_path: Path) -> None:
    answer = Answer(events=(CONTENT, DONE), framing="length", gap=0.3)
    async with relayed(tmp_path, answer, times=RelayTimes(ping=0.1)) as (proxy, _):
        got = await proxy.post(body=chat(stream=True))
        assert got.whole
        assert got.body.startswith(CONTENT + b": ping\n\n")
        assert got.body.endswith(DONE)
