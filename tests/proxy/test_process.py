"""What is about the process: start, signals, drain, and a control plane that stops or dies."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest

from fastllm_proxy.process import Leave, Signals
from fastllm_proxy.sink import LineSink
from tests.fakes.control import FakeControl
from tests.fakes.engine import Answer, FakeEngine
from tests.fakes.log import CapturedLog
from tests.fakes.proxy import ProxyProcess, run_control, run_proxy
from tests.fakes.replica import KEY, MODEL, snapshot_of

HEADERS = {"authorization": f"Bearer {KEY}"}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(headers=HEADERS) as session:
        yield session


@asynccontextmanager
async def serving(engine: FakeEngine, *arguments: str) -> AsyncIterator[tuple[ProxyProcess, FakeControl]]:
    async with FakeControl.start() as control:
        control.publish(snapshot_of(engine.url))
        async with run_proxy(*arguments, control_url=control.url) as proxy:
            await proxy.until("snapshot accepted")
            yield proxy, control


async def chat(client: aiohttp.ClientSession, proxy: ProxyProcess) -> int:
    async with client.post(proxy.url + "/v1/chat/completions", json=CHAT) as response:
        await response.read()
        return response.status


def slow_stream(events: int, gap: float) -> Answer:
    return Answer(words=tuple(f" w{n}" for n in range(events)), gap=gap)


async def test_it_serves_logs_reports_and_leaves(engine: FakeEngine, client: aiohttp.ClientSession) -> None:
    async with serving(engine, "--drain-delay", "0") as (proxy, control):
        assert await chat(client, proxy) == 200
        await control.wait_stored(1)
        proxy.send(signal.SIGTERM)
        assert await proxy.exited() == 0
        (line,) = proxy.stdout.splitlines()
        record = msgspec.json.decode(line)
        assert (record["status"], record["model"], record["principal"]) == (200, MODEL, "team")
        assert KEY not in proxy.stdout.decode()
        (event,) = control.stored.values()
        assert event.replica == control.reports[0].replica == proxy.events("listening")[0]["replica"]
        last = control.reports[-1]
        assert last.draining
        assert (last.usage.served, last.usage.stored) == (1, 1)
    assert [entry["event"] for entry in proxy.logged][-3:] == ["draining", "listener closed", "stopped"]


async def test_sigterm_with_a_running_stream(engine: FakeEngine, client: aiohttp.ClientSession) -> None:
    engine.script("/chat/completions", slow_stream(12, 0.15), Answer())
    async with serving(engine, "--drain-delay", "0.5", "--shutdown-grace", "20") as (proxy, control):
        stream = await client.post(proxy.url + "/v1/chat/completions", json=CHAT | {"stream": True})
        assert await stream.content.readline()
        proxy.send(signal.SIGTERM)
        await proxy.until("draining")
        async with client.get(proxy.url + "/readyz") as ready:
            assert ready.status == 503
            assert ready.headers["connection"] == "close"
        # New connections are still served while load balancers learn of it.
        async with aiohttp.ClientSession(headers=HEADERS) as other:
            assert await chat(other, proxy) == 200
        await proxy.until("listener closed")
        with pytest.raises(aiohttp.ClientConnectorError):
            await chat(client, proxy)
        assert (await stream.read()).rstrip().endswith(b"data: [DONE]")
        assert await proxy.exited() == 0
        assert {event.status for event in control.stored.values()} == {200}
        assert len(control.stored) == 2
    assert proxy.events("requests cut, the shutdown grace is over") == []


async def test_what_outlasts_the_grace_is_cut_counted_and_in_time(
    engine: FakeEngine, client: aiohttp.ClientSession
) -> None:
    engine.script("/chat/completions", slow_stream(1000, 0.1))
    async with serving(engine, "--drain-delay", "0", "--shutdown-grace", "1.5") as (proxy, control):
        stream = await client.post(proxy.url + "/v1/chat/completions", json=CHAT | {"stream": True})
        await stream.content.readline()
        signalled_at = time.monotonic()
        proxy.send(signal.SIGTERM)
        with pytest.raises(aiohttp.ClientPayloadError):
            await stream.read()
        assert await proxy.exited() == 0
        assert time.monotonic() - signalled_at < 1.6
        (told,) = proxy.events("requests cut, the shutdown grace is over")
        assert told["count"] == 1
        (event,) = control.stored.values()
        assert event.status != 200
        assert event.replica


async def test_a_second_signal_exits_now(engine: FakeEngine, client: aiohttp.ClientSession) -> None:
    engine.script("/chat/completions", slow_stream(1000, 0.1))
    async with serving(engine) as (proxy, _):
        stream = await client.post(proxy.url + "/v1/chat/completions", json=CHAT | {"stream": True})
        await stream.content.readline()
        proxy.send(signal.SIGTERM)
        await proxy.until("draining")
        began = time.monotonic()
        proxy.send(signal.SIGINT)
        assert await proxy.exited() == 128 + signal.SIGINT
        assert time.monotonic() - began < 1.0
        stream.close()
    assert proxy.events("second signal, exiting now")


async def test_usage_that_nobody_takes_does_not_hold_up_the_end(
    engine: FakeEngine, client: aiohttp.ClientSession
) -> None:
    async with serving(engine, "--drain-delay", "0", "--shutdown-grace", "1.2") as (proxy, control):
        control.tokens = ()
        assert await chat(client, proxy) == 200
        began = time.monotonic()
        proxy.send(signal.SIGTERM)
        assert await proxy.exited() == 0
        assert time.monotonic() - began < 1.3
    (lost,) = proxy.events("usage events lost, the control plane did not take them in time")
    assert lost["count"] == 1


async def test_without_a_control_plane_it_runs_and_is_not_ready(
    engine: FakeEngine, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with run_control(tmp_path) as control:
        await control.kill()
        async with run_proxy("--config-poll", "0.5", control_url=control.url) as proxy:
            await proxy.until("control plane not reached")
            for path, status in (("/livez", 200), ("/readyz", 503), ("/health", 503)):
                async with client.get(proxy.url + path) as response:
                    assert (path, response.status) == (path, status)
            async with client.post(proxy.url + "/v1/chat/completions", json=CHAT) as response:
                assert response.status == 503
                assert (await response.json())["error"]["code"] == "not_ready"
                assert response.headers["retry-after"]
            control.publish(snapshot_of(engine.url))
            await control.start()
            await proxy.until("snapshot accepted", seconds=5)
            async with client.get(proxy.url + "/readyz") as response:
                assert response.status == 200
            assert await chat(client, proxy) == 200


async def test_a_control_plane_stopped_then_killed_is_not_noticed(
    engine: FakeEngine, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with run_control(tmp_path) as control:
        control.publish(snapshot_of(engine.url))
        async with run_proxy("--config-poll", "1", control_url=control.url) as proxy:
            await proxy.until("snapshot accepted")
            control.send(signal.SIGSTOP)
            for _ in range(20):
                assert await chat(client, proxy) == 200
            await asyncio.sleep(1.2)  # past the second after which a batch is posted: it hangs there
            await control.kill()
            for _ in range(20):
                assert await chat(client, proxy) == 200
            await proxy.until("usage not accepted, kept and sent again")
            control.publish(snapshot_of(engine.url, version=2))
            await control.start()
            events = await control.until_stored(40)
            assert (await proxy.until("snapshot accepted", count=2))["version"] == 2
    assert len({event.id for event in events}) == len(events) == 40
    assert sorted(event.sequence for event in events) == list(range(1, 41))


async def test_a_control_plane_that_was_only_stopped_gets_each_event_once(
    engine: FakeEngine, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with run_control(tmp_path) as control:
        control.publish(snapshot_of(engine.url))
        async with run_proxy(control_url=control.url) as proxy:
            await proxy.until("snapshot accepted")
            control.send(signal.SIGSTOP)
            for _ in range(10):
                assert await chat(client, proxy) == 200
            await asyncio.sleep(1.2)
            control.send(signal.SIGCONT)
            events = await control.until_stored(10, seconds=5)
    assert len({event.id for event in events}) == len(events) == 10


async def test_a_port_in_use_is_one_clear_line(engine: FakeEngine) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with run_proxy("--port", str(port), control_url="http://127.0.0.1:9", listening=False) as proxy:
            assert await proxy.exited() == 1
    (line,) = proxy.logged
    assert line["event"] == (
        f"cannot listen on 127.0.0.1:{port}: "
        f"port {port} is in use by another process (choose another with --port)"
    )


async def test_bad_settings_are_told_together_before_anything_starts() -> None:
    async with run_proxy(
        "--workers", "x", "--drain-delay", "-1", control_url="nonsense", token="", listening=False
    ) as proxy:
        assert await proxy.exited() == 2
    told = "".join(str(line.get("text")) for line in proxy.logged)
    for name in ("--workers", "--drain-delay", "FASTLLM_PROXY_TOKEN"):
        assert name in told
    assert "Traceback" not in told


async def test_a_log_that_nobody_reads_stops_nobody(
    engine: FakeEngine, client: aiohttp.ClientSession
) -> None:
    reading, writing = os.pipe()
    try:
        async with FakeControl.start() as control:
            control.publish(snapshot_of(engine.url))
            async with run_proxy("--drain-delay", "0", control_url=control.url, stdout=writing) as proxy:
                await proxy.until("snapshot accepted")
                for _ in range(60):
                    assert set(await asyncio.gather(*(chat(client, proxy) for _ in range(20)))) == {200}
                # Some 400 kB of lines, and a pipe holds 64 kB.
                proxy.send(signal.SIGTERM)
                assert await proxy.exited() == 0
    finally:
        os.close(reading)
        os.close(writing)


async def test_the_watchdog_ends_a_loop_that_is_stuck() -> None:
    left: list[int] = []
    captured = CapturedLog()
    leave = Leave(captured.log, LineSink(2), left.append)
    signals = Signals(asyncio.get_running_loop(), 0.1, leave)
    try:
        signal.raise_signal(signal.SIGTERM)
        await signals.first()
        time.sleep(0.3)  # noqa: ASYNC251 - a loop that is stuck
        assert left == [1]
        assert captured.events("shutdown grace exceeded, exiting now")
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0.01)
        assert left == [1, 128 + signal.SIGTERM]
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)
