from __future__ import annotations

import asyncio
import time

import pytest

from fastllm_proxy.control_plane import ControlPlane
from fastllm_proxy.outbox import Outbox
from fastllm_shared.health import UsageCounters
from fastllm_shared.ids import uuid7_text
from fastllm_shared.usage import UsageEvent, decode_batch
from tests.fakes.control import FakeControl, Scripted
from tests.fakes.log import CapturedLog


def outbox_of(
    plane: ControlPlane, captured: CapturedLog, *, capacity: int = 10_000, post_seconds: float = 5.0
) -> Outbox:
    return Outbox(
        replica="r1",
        control=plane,
        log=captured.log,
        capacity_events=capacity,
        batch_seconds=0.02,
        post_seconds=post_seconds,
    )


def event(**fields: str) -> UsageEvent:
    return UsageEvent(
        id=fields.get("id", uuid7_text()),
        at=1.0,
        replica="r1",
        request_id=fields.get("request_id", "q"),
        endpoint="/chat/completions",
        status=200,
    )


def balance(counters: UsageCounters) -> bool:
    settled = counters.stored + counters.queued + counters.spooled + counters.dropped
    return counters.served == settled


async def test_events_arrive_numbered_in_batches(
    control: FakeControl, plane: ControlPlane, captured: CapturedLog
) -> None:
    outbox = outbox_of(plane, captured)
    for _ in range(1200):
        outbox.put(event())
    for _ in range(3):
        assert await outbox.turn() == 0
    batches = [decode_batch(request.body) for request in control.asked("/usage")]
    assert [len(batch.events) for batch in batches] == [500, 500, 200]
    assert [e.sequence for batch in batches for e in batch.events] == list(range(1, 1201))
    assert outbox.counters() == UsageCounters(served=1200, stored=1200)


async def test_a_quiet_turn_posts_nothing(
    control: FakeControl, plane: ControlPlane, captured: CapturedLog
) -> None:
    await outbox_of(plane, captured).turn()
    assert not control.requests


async def test_a_full_batch_does_not_wait_for_its_second(
    control: FakeControl, plane: ControlPlane, captured: CapturedLog
) -> None:
    outbox = Outbox(replica="r1", control=plane, log=captured.log, batch_seconds=30.0)
    turn = asyncio.create_task(outbox.turn())
    await asyncio.sleep(0.01)
    for _ in range(500):
        outbox.put(event())
    async with asyncio.timeout(5):
        await turn
    assert len(control.stored) == 500


@pytest.mark.parametrize(
    "failure",
    [
        Scripted(status=500),
        Scripted(status=503, body=b'{"error":{}}'),
        Scripted(status=200, body=b"<html>a captive portal</html>"),
        Scripted(status=404),
        Scripted(reset=True),
    ],
)
async def test_what_is_not_acknowledged_is_sent_again(
    control: FakeControl, plane: ControlPlane, captured: CapturedLog, failure: Scripted
) -> None:
    control.script("/usage", failure, failure)
    outbox = outbox_of(plane, captured)
    outbox.put(event())
    pauses = [await outbox.turn() for _ in range(3)]
    assert 0 < pauses[0] < pauses[1]
    assert pauses[2] == 0
    bodies = [request.body for request in control.asked("/usage")]
    assert len(bodies) == 3
    assert len(set(bodies)) == 1
    assert outbox.counters() == UsageCounters(served=1, stored=1)
    # Twice the same trouble is said once, and its end.
    assert len(captured.events("usage not accepted, kept and sent again")) == 1
    assert len(captured.events("usage is accepted again")) == 1


async def test_a_lost_acknowledgement_stores_nothing_twice(
    control: FakeControl, plane: ControlPlane, captured: CapturedLog
) -> None:
    control.script("/usage", Scripted(after_storing=True, reset=True))
    outbox = outbox_of(plane, captured)
    outbox.put(event())
    assert await outbox.turn() > 0
    assert await outbox.turn() == 0
    assert (len(control.stored), control.duplicates) == (1, 1)
    assert outbox.counters() == UsageCounters(served=1, stored=1)


async def test_a_silent_control_plane_costs_one_deadline(
    control: FakeControl, plane: ControlPlane, captured: CapturedLog
) -> None:
    control.script("/usage", Scripted(hang=True))
    outbox = outbox_of(plane, captured, post_seconds=0.1)
    outbox.put(event())
    assert await outbox.turn() > 0
    assert await outbox.turn() == 0
    assert len(control.stored) == 1


async def test_the_pause_grows_to_a_bound(
    control: FakeControl, plane: ControlPlane, captured: CapturedLog
) -> None:
    control.script("/usage", *[Scripted(status=500)] * 12)
    outbox = outbox_of(plane, captured)
    outbox.put(event())
    pauses = [await outbox.turn() for _ in range(12)]
    assert max(pauses) <= 5.0
    assert min(pauses[-3:]) >= 3.0


@pytest.mark.parametrize("refusal", [400, 413, 422])
async def test_the_one_bad_event_is_isolated(
    control: FakeControl, plane: ControlPlane, captured: CapturedLog, refusal: int
) -> None:
    outbox = outbox_of(plane, captured)
    events = [event() for _ in range(100)]
    bad = event(id="not-a-uuid", request_id="the bad one")
    control.bad_event_ids.add(bad.id)
    control.bad_event_status = refusal
    for number, good in enumerate(events):
        if number == 37:
            outbox.put(bad)
        outbox.put(good)
    while outbox.counters().queued:
        assert await outbox.turn() == 0
        assert balance(outbox.counters())
    assert set(control.stored) == {good.id for good in events}
    assert control.duplicates == 0
    assert outbox.dropped == {"invalid": 1}
    assert len(control.asked("/usage")) < 20
    (told,) = captured.events("usage event refused as invalid")
    assert (told["event_id"], told["request_id"]) == ("not-a-uuid", "the bad one")


async def test_an_event_without_a_wire_form_holds_up_nobody(
    control: FakeControl, plane: ControlPlane, captured: CapturedLog
) -> None:
    outbox = outbox_of(plane, captured)
    outbox.put(event())
    outbox.put(event(request_id="\ud800"))
    outbox.put(event())
    while outbox.counters().queued:
        await outbox.turn()
    assert len(control.stored) == 2
    assert outbox.dropped == {"invalid": 1}


async def test_a_full_queue_drops_and_counts(
    control: FakeControl, plane: ControlPlane, captured: CapturedLog
) -> None:
    control.script("/usage", Scripted(status=500))
    outbox = outbox_of(plane, captured, capacity=600)
    for _ in range(550):
        outbox.put(event())
    await outbox.turn()  # 500 of them are on their way and not settled: they count too
    for _ in range(100):
        outbox.put(event())
    assert outbox.counters() == UsageCounters(served=650, queued=600, dropped=50)
    assert outbox.dropped == {"queue_full": 50}
    assert len(captured.events("usage events are being dropped")) == 1
    while outbox.counters().queued:
        await outbox.turn()
    assert outbox.counters() == UsageCounters(served=650, stored=600, dropped=50)


async def test_a_refused_token_is_named(
    control: FakeControl, plane: ControlPlane, captured: CapturedLog
) -> None:
    control.tokens = ("another",)
    outbox = outbox_of(plane, captured)
    outbox.put(event())
    assert await outbox.turn() > 0
    assert len(captured.events("proxy token not accepted")) == 1
    assert outbox.counters().queued == 1


async def test_flush_sends_what_is_left(
    control: FakeControl, plane: ControlPlane, captured: CapturedLog
) -> None:
    outbox = outbox_of(plane, captured)
    control.script("/usage", Scripted(status=500))
    for _ in range(1100):
        outbox.put(event())
    assert await outbox.flush(time.monotonic() + 5) == 0
    assert len(control.stored) == 1100


async def test_flush_keeps_to_its_deadline(
    control: FakeControl, plane: ControlPlane, captured: CapturedLog
) -> None:
    outbox = outbox_of(plane, captured)
    control.script("/usage", Scripted(hang=True), Scripted(hang=True))
    outbox.put(event())
    began = time.monotonic()
    assert await outbox.flush(began + 0.2) == 1
    assert 0.15 < time.monotonic() - began < 0.5


async def test_a_turn_that_is_cancelled_loses_nothing(
    control: FakeControl, plane: ControlPlane, captured: CapturedLog
) -> None:
    outbox = outbox_of(plane, captured)
    control.script("/usage", Scripted(hang=True))
    outbox.put(event())
    turn = asyncio.create_task(outbox.turn())
    await control.wait_for("/usage", 1)
    turn.cancel()
    await asyncio.gather(turn, return_exceptions=True)
    assert outbox.counters() == UsageCounters(served=1, queued=1)
    assert await outbox.flush(time.monotonic() + 5) == 0
    assert outbox.counters() == UsageCounters(served=1, stored=1)


async def test_put_does_no_io_and_is_cheap(plane: ControlPlane, captured: CapturedLog) -> None:
    outbox = outbox_of(plane, captured)
    events = [event() for _ in range(5000)]
    began = time.perf_counter()
    for one in events:
        outbox.put(one)
    assert time.perf_counter() - began < 0.25  # 50 µs each would be a hundred times too much
