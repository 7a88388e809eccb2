from __future__ import annotations

import asyncio
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastllm_proxy.errors import Refused
from fastllm_proxy.spool import BLOCK_BYTES, Spool, Spools
from tests.fakes.edge import eventually
from tests.fakes.log import CapturedLog


@pytest.fixture
def captured() -> CapturedLog:
    return CapturedLog()


@pytest.fixture
def spools(captured: CapturedLog, tmp_path: Path) -> Iterator[Spools]:
    made = Spools(captured.log, str(tmp_path))
    yield made
    made.close()


def open_descriptors(folder: Path) -> int:
    """Descriptors of files in `folder`."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{number}").startswith(str(folder))
        except OSError:
            continue
    return found


async def everything(spool: Spool, step: int) -> bytes:
    pieces: list[bytes] = []
    while piece := await spool.read(sum(map(len, pieces)), step):
        pieces.append(piece)
    return b"".join(pieces)


async def test_what_is_written_is_read_back_at_any_offset(spools: Spools) -> None:
    spool = await spools.open()
    data = os.urandom(3 * BLOCK_BYTES + 17)
    for start in range(0, len(data), 50_001):
        await spool.write(data[start : start + 50_001])
    await spool.flush()
    assert await everything(spool, 100_000) == data
    assert await everything(spool, BLOCK_BYTES) == data
    assert await spool.read(5, 7) == data[5:12]
    assert await asyncio.gather(*(spool.read(at, 10) for at in range(20))) == [
        data[at : at + 10] for at in range(20)
    ]
    spool.close()


async def test_a_spool_has_no_name_and_ends_with_its_descriptor(spools: Spools, tmp_path: Path) -> None:
    spool = await spools.open()
    await spool.write(b"secret")
    await spool.flush()
    assert os.listdir(tmp_path) == []
    assert (spools.open_files, open_descriptors(tmp_path)) == (1, 1)
    spool.close()
    spool.close()
    assert (spools.open_files, open_descriptors(tmp_path)) == (0, 0)


async def test_a_descriptor_outlives_the_call_that_uses_it(spools: Spools, tmp_path: Path) -> None:
    spool = await spools.open()
    go_on, begun = threading.Event(), threading.Event()

    def slow_disk() -> None:
        begun.set()
        go_on.wait(10)

    task = asyncio.create_task(spool._in_thread(slow_disk))
    await asyncio.to_thread(begun.wait, 10)
    task.cancel()
    await asyncio.wait([task])
    spool.close()
    assert open_descriptors(tmp_path) == 1  # else its number could be a socket's by the time of the write
    go_on.set()
    await eventually(lambda: open_descriptors(tmp_path) == 0)


async def test_a_file_that_nobody_waits_for_any_more_is_closed(spools: Spools, tmp_path: Path) -> None:
    go_on = threading.Event()
    blocked = [spools.run(go_on.wait, 10) for _ in range(2)]
    for ends_early in (True, False):
        task = asyncio.create_task(spools.open())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        if ends_early:
            go_on.set()
            await asyncio.gather(*blocked)
    await spools.run(lambda: None)
    await eventually(lambda: open_descriptors(tmp_path) == 0)
    assert spools.open_files == 0


async def test_no_folder_is_said_to_the_client_and_once_to_the_log(
    captured: CapturedLog, tmp_path: Path
) -> None:
    folder = tmp_path / "absent"
    spools = Spools(captured.log, str(folder))
    for _ in range(3):
        with pytest.raises(Refused) as refusal:
            await spools.open()
        assert (refusal.value.status, refusal.value.code) == (503, "overloaded")
    assert [entry["event"] for entry in captured.entries] == ["uploads cannot be kept on disk"]
    folder.mkdir()
    (await spools.open()).close()
    folder.rmdir()
    with pytest.raises(Refused):
        await spools.open()
    assert len(captured.events("uploads cannot be kept on disk")) == 2
    spools.close()


async def test_a_full_disk_is_said_to_the_client(spools: Spools, captured: CapturedLog) -> None:
    spool = await spools.open()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (BLOCK_BYTES // 2, before[1]))
    try:
        with pytest.raises(Refused) as refusal:
            await spool.write(bytes(BLOCK_BYTES))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert refusal.value.status == 503
    spool.close()
    assert captured.events("uploads cannot be kept on disk")
