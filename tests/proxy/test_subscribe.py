from __future__ import annotations

import asyncio
import time

import pytest

from fastllm_proxy.control_plane import ControlPlane
from fastllm_proxy.subscribe import MARGIN_SECONDS, Subscriber
from fastllm_shared.snapshot import Snapshot, encode_snapshot
from tests.fakes.control import TOKEN, FakeControl, Scripted
from tests.fakes.log import CapturedLog


class Accepted(list[Snapshot]):
    """Where accepted snapshots go; raises for those that cannot be served."""

    unusable: set[int]

    def __init__(self) -> None:
        super().__init__()
        self.unusable = set()

    def accept(self, snapshot: Snapshot) -> None:
        if snapshot.version in self.unusable:
            raise KeyError("a reference that leads nowhere")
        self.append(snapshot)

    @property
    def versions(self) -> list[int]:
        return [snapshot.version for snapshot in self]


def snapshot(version: int, history: str = "h") -> Snapshot:
    return Snapshot(version=version, history=history, created_at=1.0)


def subscriber(
    plane: ControlPlane, accepted: Accepted, captured: CapturedLog, poll_seconds: float = 0.3
) -> Subscriber:
    return Subscriber(control=plane, accept=accepted.accept, log=captured.log, poll_seconds=poll_seconds)


async def test_a_snapshot_is_taken_and_then_waited_for(
    control: FakeControl, plane: ControlPlane, captured: CapturedLog
) -> None:
    accepted = Accepted()
    under_test = subscriber(plane, accepted, captured, poll_seconds=30)
    control.publish(snapshot(1))
    assert await under_test.turn() == 0
    waiting = asyncio.create_task(under_test.turn())
    await control.wait_for("/snapshot", 2)
    assert not waiting.done()
    published_at = time.monotonic()
    control.publish(snapshot(2))
    assert await waiting == 0
    assert time.monotonic() - published_at < 0.5
    assert accepted.versions == [1, 2]
    first, second = control.asked("/snapshot")
    assert "if-none-match" not in first.headers
    assert second.headers["if-none-match"] == '"1"'
    assert second.path == "/snapshot?wait=30"


async def test_nothing_new_keeps_the_snapshot_and_asks_again_at_once(
    control: FakeControl, plane: ControlPlane, captured: CapturedLog
) -> None:
    accepted = Accepted()
    under_test = subscriber(plane, accepted, captured)
    control.publish(snapshot(1))
    await under_test.turn()
    assert await under_test.turn() == 0
    assert accepted.versions == [1]


async def test_polls_that_are_not_held_open_are_not_repeated_in_a_tight_loop(
    control: FakeControl, plane: ControlPlane, captured: CapturedLog
) -> None:
    under_test = subscriber(plane, Accepted(), captured, poll_seconds=5)
    control.publish(snapshot(1))
    await under_test.turn()
    control.script("/snapshot", Scripted(status=304))
    assert await under_test.turn() == 1.0


async def test_an_older_version_of_the_same_history_is_refused_once_told(
    control: FakeControl, plane: ControlPlane, captured: CapturedLog
) -> None:
    accepted = Accepted()
    under_test = subscriber(plane, accepted, captured)
    control.publish(snapshot(5))
    await under_test.turn()
    control.publish(snapshot(4))
    assert await under_test.turn() > 0
    assert await under_test.turn() > 0
    assert accepted.versions == [5]
    assert under_test.refused == {"older": 2}
    (told,) = captured.events("snapshot refused")
    assert told["cause"] == "older"
    # The next poll still names what is served, so that anything newer comes at once.
    assert control.asked("/snapshot")[-1].headers["if-none-match"] == '"5"'
    control.publish(snapshot(6))
    assert await under_test.turn() == 0
    assert accepted.versions == [5, 6]


async def test_a_restored_history_may_go_back(
    control: FakeControl, plane: ControlPlane, captured: CapturedLog
) -> None:
    accepted = Accepted()
    under_test = subscriber(plane, accepted, captured)
    control.publish(snapshot(5))
    await under_test.turn()
    control.publish(snapshot(3, history="restored"))
    assert await under_test.turn() == 0
    assert accepted.versions == [5, 3]


@pytest.mark.parametrize("body", [b"", b"\xc1", b"not msgpack", encode_snapshot(snapshot(9))[:-3], b"\x80"])
async def test_what_does_not_decode_leaves_the_old_one(
    control: FakeControl, plane: ControlPlane, captured: CapturedLog, body: bytes
) -> None:
    accepted = Accepted()
    under_test = subscriber(plane, accepted, captured)
    control.publish(snapshot(1))
    await under_test.turn()
    control.script("/snapshot", Scripted(body=body, headers={"etag": '"9"'}))
    assert await under_test.turn() > 0
    assert (accepted.versions, under_test.refused) == ([1], {"undecodable": 1})
    control.publish(snapshot(2))
    await under_test.turn()
    assert accepted.versions == [1, 2]


async def test_what_cannot_be_served_leaves_the_old_one(
    control: FakeControl, plane: ControlPlane, captured: CapturedLog
) -> None:
    accepted = Accepted()
    accepted.unusable = {2}
    under_test = subscriber(plane, accepted, captured)
    control.publish(snapshot(1))
    await under_test.turn()
    control.publish(snapshot(2))
    assert await under_test.turn() > 0
    assert (accepted.versions, under_test.refused) == ([1], {"unusable": 1})
    control.publish(snapshot(3))
    await under_test.turn()
    assert accepted.versions == [1, 3]


async def test_back_off_grows_to_the_poll_interval_and_ends_with_the_trouble(
    control: FakeControl, plane: ControlPlane, captured: CapturedLog
) -> None:
    under_test = subscriber(plane, Accepted(), captured, poll_seconds=2)
    control.script("/snapshot", *[Scripted(status=500)] * 8)
    pauses = [await under_test.turn() for _ in range(8)]
    assert pauses[0] <= 0.1
    assert all(pause <= 2 for pause in pauses)
    assert min(pauses[-2:]) >= 1
    control.publish(snapshot(1))
    assert await under_test.turn() == 0
    assert [entry["event"] for entry in captured.entries] == [
        "control plane gave no snapshot",
        "snapshot accepted",
        "control plane answers again",
    ]


async def test_a_token_that_is_not_accepted_is_named_once(
    control: FakeControl, plane: ControlPlane, captured: CapturedLog
) -> None:
    control.tokens = ("another",)
    under_test = subscriber(plane, Accepted(), captured)
    await under_test.turn()
    await under_test.turn()
    (told,) = captured.events("proxy token not accepted")
    assert TOKEN not in str(told)


async def test_a_poll_has_its_wait_and_ten_seconds(plane: ControlPlane, captured: CapturedLog) -> None:
    assert subscriber(plane, Accepted(), captured, poll_seconds=5).turn_seconds == 15 == 5 + MARGIN_SECONDS


async def test_the_age_counts_from_the_last_confirmation(
    control: FakeControl, plane: ControlPlane, captured: CapturedLog
) -> None:
    now = 100.0
    under_test = Subscriber(
        control=plane, accept=Accepted().accept, log=captured.log, poll_seconds=0.05, clock=lambda: now
    )
    assert under_test.age_seconds() is None
    control.publish(snapshot(1))
    await under_test.turn()
    now = 107.0
    assert under_test.age_seconds() == 7
    await under_test.turn()  # 304: what is served is current
    assert under_test.age_seconds() == 0
    now = 110.0
    control.script("/snapshot", Scripted(status=500))
    await under_test.turn()
    assert under_test.age_seconds() == 3
