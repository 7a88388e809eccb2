from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fastllm_control.children import PostgresChild, Process, Restarts, Supervisor
from fastllm_control.observe import make_log
from fastllm_control.postgres import EmbeddedPostgres
from tests.fakes.process_table import is_running

OBEDIENT = "import time; print('up', flush=True); time.sleep(60)"
NOTING = """
import signal, sys, time
def note(*_):
    open(sys.argv[1], "a").write(sys.argv[2])
    sys.exit()
signal.signal(signal.SIGTERM, note)
print("up", flush=True)
time.sleep(60)
"""
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


def program(tmp_path: Path, code: str = OBEDIENT, name: str = "one", grace_seconds: float = 5.0) -> Process:
    return Process(
        name, [sys.executable, "-c", code], dict(os.environ), tmp_path / f"{name}.log", grace_seconds
    )


def until(true: Callable[[], bool], within_seconds: float = 10.0) -> None:
    deadline = time.monotonic() + within_seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def pid_of(child: Process | PostgresChild) -> int | None:
    """Asked anew each time: a type checker would take a property for constant."""
    return child.pid


async def begun(child: Process) -> int:
    """Wait until the program runs its own code; its pid."""
    while "up" not in child.log.last_words():
        assert child.pid is not None
        await asyncio.sleep(0.01)
    assert child.pid is not None
    return child.pid


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Stage:
    """A supervisor whose time stands still, with what it logged and how often pids changed."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.lines = io.StringIO()
        self.changes = 0
        self.supervisor = Supervisor(make_log(self.lines), self._count, self.clock)

    def _count(self) -> None:
        self.changes += 1


async def test_a_process_is_asked_to_end_and_its_output_is_kept(tmp_path: Path) -> None:
    child = program(tmp_path)
    assert child.pid is None
    child.start()
    pid = await begun(child)
    await child.stop()
    await child.stop()
    assert child.pid is None
    assert not is_running(pid)
    assert child.log.last_words() == "up"


async def test_a_process_that_does_not_listen_is_killed_after_its_grace(tmp_path: Path) -> None:
    child = program(tmp_path, STUBBORN, grace_seconds=0.2)
    child.start()
    pid = await begun(child)
    began = time.monotonic()
    await child.stop()
    assert 0.2 <= time.monotonic() - began < 3
    assert not is_running(pid)


async def test_the_terminals_signals_do_not_reach_a_child(tmp_path: Path) -> None:
    child = program(tmp_path)
    child.start()
    assert os.getsid(child.pid or 0) != os.getsid(0)
    child.kill()
    assert child.pid is None


def test_restarts_come_later_and_later_until_a_good_life() -> None:
    restarts = Restarts(first_seconds=0.1, longest_seconds=1.0, good_life_seconds=30.0)
    assert [restarts.delay(1.0) for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert restarts.delay(30.0) == 0.1
    assert restarts.delay(1.0) == 0.2


async def test_a_child_that_died_is_started_again_when_it_is_due(tmp_path: Path) -> None:
    stage, child = Stage(), program(tmp_path)
    stage.supervisor.add(child)
    first = await begun(child)
    os.kill(first, signal.SIGKILL)
    until(lambda: pid_of(child) is None)
    stage.supervisor.turn()
    stage.clock.now += 0.05
    stage.supervisor.turn()
    assert pid_of(child) is None
    assert stage.changes == 0
    stage.clock.now += 0.06
    stage.supervisor.turn()
    assert pid_of(child) not in (None, first)
    assert stage.changes == 1
    assert "a process died" in stage.lines.getvalue()
    child.kill()


async def test_a_child_that_cannot_be_started_is_tried_again_and_harms_nobody(tmp_path: Path) -> None:
    stage = Stage()
    broken = Process("broken", [str(tmp_path / "nothing")], {}, tmp_path / "broken.log", 1.0)
    other = program(tmp_path, name="other")
    stage.supervisor.watch(broken)
    stage.supervisor.add(other)
    for _ in range(4):
        stage.supervisor.turn()
        stage.clock.now += 1.0
    assert stage.lines.getvalue().count("a process cannot be started") == 2
    assert other.pid is not None
    await stage.supervisor.stop()
    assert other.pid is None


async def test_the_last_started_are_ended_first_and_equals_together(tmp_path: Path) -> None:
    stage = Stage()
    order = tmp_path / "order"
    children = [
        Process(
            name, [sys.executable, "-c", NOTING, str(order), f"{name} "], {}, tmp_path / f"{name}.log", 5.0
        )
        for name in ("base", "middle", "proxy-1", "proxy-2")
    ]
    for child in children:
        stage.supervisor.add(child)
    for child in children:
        await begun(child)
    await stage.supervisor.stop()
    ended = order.read_text().split()
    assert sorted(ended[:2]) == ["proxy-1", "proxy-2"]
    assert ended[2:] == ["middle", "base"]


async def test_a_kill_cuts_an_orderly_stop_short(tmp_path: Path) -> None:
    stage, child = Stage(), program(tmp_path, STUBBORN, grace_seconds=60.0)
    stage.supervisor.add(child)
    pid = await begun(child)
    stopping = asyncio.create_task(stage.supervisor.stop())
    await asyncio.sleep(0.05)
    assert is_running(pid)
    stage.supervisor.kill()
    await asyncio.wait_for(stopping, 5)
    assert not is_running(pid)


async def test_a_running_supervisor_restarts_by_itself(tmp_path: Path) -> None:
    changed = asyncio.Event()
    supervisor = Supervisor(make_log(io.StringIO()), changed.set)
    child = program(tmp_path)
    supervisor.add(child)
    first = await begun(child)
    watching = asyncio.create_task(supervisor.run())
    os.kill(first, signal.SIGKILL)
    await asyncio.wait_for(changed.wait(), 5)
    assert pid_of(child) not in (None, first)
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching
    await supervisor.stop()


async def test_postgres_is_a_child_like_the_others(tmp_path: Path) -> None:
    stage = Stage()
    child = PostgresChild(EmbeddedPostgres(tmp_path, durable=False))
    stage.supervisor.watch(child)
    url = await child.first_start()
    assert url.startswith("postgresql+asyncpg://")
    first = child.pid
    os.kill(first or 0, signal.SIGKILL)
    until(lambda: pid_of(child) is None)
    stage.supervisor.turn()
    stage.clock.now += 1.0
    stage.supervisor.turn()
    assert pid_of(child) not in (None, first)
    await stage.supervisor.stop()
    assert pid_of(child) is None
    assert "database system is ready to accept connections" in child.log.path.read_text()


async def test_postgres_can_be_ended_at_once(tmp_path: Path) -> None:
    child = PostgresChild(EmbeddedPostgres(tmp_path, durable=False))
    await child.first_start()
    child.kill()
    assert child.pid is None


async def test_postgres_that_does_not_stop_can_be_ended_meanwhile(tmp_path: Path) -> None:
    child = PostgresChild(EmbeddedPostgres(tmp_path, durable=False))
    await child.first_start()
    os.kill(child.pid or 0, signal.SIGSTOP)
    stopping = asyncio.create_task(child.stop())
    await asyncio.sleep(0.1)
    child.kill()
    assert not stopping.done()
    await asyncio.wait_for(stopping, 10)
    again = EmbeddedPostgres(tmp_path, durable=False)
    again.start()
    again.stop()
