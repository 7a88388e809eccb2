"""A whole replica in this process, between a fake control plane and fake engines."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from fastllm_proxy.app import FILES_PER_REQUEST, Replica, Surroundings, freeze_heap
from fastllm_proxy.config import read_settings
from fastllm_proxy.listen import open_sockets, url_of
from fastllm_proxy.sink import LineSink
from fastllm_proxy.status import new_identity
from tests.fakes.control import TOKEN, FakeControl
from tests.fakes.engine import Answer, FakeEngine, Fault
from tests.fakes.log import CapturedLog
from tests.fakes.replica import KEY, MODEL, snapshot_of, with_provider

HEADERS = {"authorization": f"Bearer {KEY}"}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


class Running:
    """A replica, what it logged, and a client of it."""

    def __init__(self, replica: Replica, url: str, captured: CapturedLog, out: Collected) -> None:
        self.replica = replica
        self.url = url
        self.captured = captured
        self.out = out
        self.client = aiohttp.ClientSession()

    async def chat(self, key: str = KEY) -> int:
        headers = {"authorization": f"Bearer {key}"}
        url = self.url + "/v1/chat/completions"
        async with self.client.post(url, json=CHAT, headers=headers) as response:
            await response.read()
            return response.status

    async def get(self, path: str, **headers: str) -> tuple[int, str]:
        async with self.client.get(self.url + path, headers=headers) as response:
            return response.status, await response.text()

    async def until(self, event: str, count: int = 1, seconds: float = 5.0) -> None:
        async with asyncio.timeout(seconds):
            while len(self.captured.events(event)) < count:  # noqa: ASYNC110 - a log signals nothing
                await asyncio.sleep(0.01)


class Collected(LineSink):
    def __init__(self) -> None:
        super().__init__(-1)
        self.text = ""

    def write(self, lines: bytes, count: int = 1) -> None:
        self.text += lines.decode()


@asynccontextmanager
async def running(control: FakeControl, *arguments: str, file_limit: int = 3000) -> AsyncIterator[Running]:
    captured, out = CapturedLog(), Collected()
    settings = read_settings(
        ["--control-url", control.url, "--port", "0", *arguments], {"FASTLLM_PROXY_TOKEN": TOKEN}
    )
    sockets = open_sockets("127.0.0.1", 0)
    around = Surroundings(
        identity=new_identity("1.2.3"),
        log=captured.log,
        out=out,
        err=Collected(),
        file_limit=file_limit,
        port=sockets[0].getsockname()[1],
    )
    replica = Replica(settings, around)
    await replica.start(sockets)
    scene = Running(replica, url_of(sockets[0]), captured, out)
    try:
        yield scene
    finally:
        await scene.client.close()
        await replica.close()


async def test_from_snapshot_to_usage(control: FakeControl, engine: FakeEngine) -> None:
    async with running(control) as scene:
        assert await scene.chat() == 503
        assert (await scene.get("/readyz"))[0] == 503
        control.publish(snapshot_of(engine.url))
        await scene.until("snapshot accepted")
        assert (await scene.get("/readyz"))[0] == 200
        assert await scene.chat() == 200
        await control.wait_stored(1)
        (event,) = control.stored.values()
        assert (event.principal, event.model, event.status, event.attempts) == ("team", MODEL, 200, 1)
        assert event.prompt_tokens


async def test_a_new_snapshot_is_served_at_once(control: FakeControl, engine: FakeEngine) -> None:
    async with running(control) as scene:
        control.publish(snapshot_of(engine.url))
        await scene.until("snapshot accepted")
        assert await scene.chat("sk-another") == 401
        control.publish(snapshot_of(engine.url, version=2, keys=("sk-another",)))
        await scene.until("snapshot accepted", 2)
        assert (await scene.chat("sk-another"), await scene.chat()) == (200, 401)


async def test_metrics_of_a_running_replica(control: FakeControl, engine: FakeEngine) -> None:
    async with running(control) as scene:
        control.publish(snapshot_of(engine.url))
        await scene.until("snapshot accepted")
        await scene.chat()
        await scene.chat("sk-unknown")
        status, text = await scene.get("/metrics")
        assert status == 200
        series = {
            (sample.name, sample.labels.get("model"), sample.labels.get("status")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        assert series["fastllm_requests_total", MODEL, "200"] == 1
        assert series["fastllm_requests_total", "other", "401"] == 1
        assert series["fastllm_snapshot_version", None, None] == 1


async def test_the_probe_reaches_health_and_the_report(control: FakeControl, engine: FakeEngine) -> None:
    engine.script("/models", Answer(fault=Fault("reset")))
    arguments = ("--health-interval", "0.1", "--health-report-interval", "0.1", "--health-timeout", "1")
    async with running(control, *arguments) as scene:
        control.publish(snapshot_of(engine.url))
        await scene.until("backend out of rotation")
        assert '"status":"degraded"' in (await scene.get("/health"))[1]
        assert '"reason":"reset"' in (await scene.get("/health", authorization=f"Bearer {TOKEN}"))[1]
        async with asyncio.timeout(5):
            while not (control.reports[-1].backends and control.reports[-1].backends[0].ejected):
                await control.wait_for("/health-report", len(control.asked("/health-report")) + 1)
        engine.script("/models")
        await scene.until("backend healthy, back in rotation")
        assert '"status":"ok"' in (await scene.get("/health"))[1]
        agents = {request.header("user-agent") for request in engine.requests}
        assert agents == {"fastllm-proxy/1.2.3 (probe)"}


async def test_requests_above_the_bound_are_refused(control: FakeControl, engine: FakeEngine) -> None:
    engine.script("/chat/completions", Answer(delay_to_head=30), Answer())
    async with running(control, file_limit=2 * FILES_PER_REQUEST) as scene:
        control.publish(snapshot_of(engine.url))
        await scene.until("snapshot accepted")
        slow = [asyncio.create_task(scene.chat())]
        await engine.arrived(1)
        assert await scene.chat() == 200
        engine.script("/chat/completions", Answer(delay_to_head=30))
        slow.append(asyncio.create_task(scene.chat()))
        while scene.replica.inflight < 2:  # noqa: ASYNC110 - a counter signals nothing
            await asyncio.sleep(0.01)
        assert await scene.chat() == 503
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        while scene.replica.inflight:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
        engine.script("/chat/completions")
        assert await scene.chat() == 200


async def test_the_gateway_is_not_its_own_backend(control: FakeControl, engine: FakeEngine) -> None:
    async with running(control) as scene:
        control.publish(with_provider(snapshot_of(engine.url), api_base=scene.url + "/v1"))
        await scene.until("snapshot accepted")
        assert await scene.chat() == 502
    assert scene.replica.inflight == 0
    # Refused at the address, not answered by itself: that would have been a rejected credential.
    assert "code=upstream_unavailable" in scene.out.text


async def test_the_access_log_leaves_within_a_second(control: FakeControl, engine: FakeEngine) -> None:
    async with running(control) as scene:
        control.publish(snapshot_of(engine.url))
        await scene.until("snapshot accepted")
        await scene.chat()
        async with asyncio.timeout(1.5):
            while "/chat/completions" not in scene.out.text:  # noqa: ASYNC110 - a sink signals nothing
                await asyncio.sleep(0.01)
        assert KEY not in scene.out.text


async def test_loops_are_all_turning(control: FakeControl, engine: FakeEngine) -> None:
    async with running(control, "--health-report-interval", "1") as scene:
        control.publish(snapshot_of(engine.url))
        await scene.until("snapshot accepted")
        await control.wait_for("/health-report", 2)
        loops = control.reports[-1].loops
        assert set(loops) == {"subscribe", "outbox", "report", "probe", "lag", "access_log"}
        assert all(view.failures == 0 for view in loops.values())


def test_freezing_hides_the_heap_from_the_collector() -> None:
    try:
        freeze_heap()
        assert gc.get_freeze_count() > 10_000
    finally:
        gc.unfreeze()
