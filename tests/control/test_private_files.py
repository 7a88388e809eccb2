from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fastllm_control.private_files import FolderInUse, FolderLock, read_or_make, write_private

_HOLDER = """
import sys
from pathlib import Path
from fastllm_control.private_files import FolderLock
lock = FolderLock(Path(sys.argv[1]))
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


def test_what_is_written_is_the_owners_alone_whatever_the_mask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_private(tmp_path / "secret", "abc")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    assert (tmp_path / "secret").read_text() == "abc"


def test_an_open_file_that_is_replaced_becomes_private(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("old")
    (tmp_path / "secret").chmod(0o644)
    write_private(tmp_path / "secret", "new")
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_a_write_that_fails_leaves_the_old_text_and_no_remains(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        write_private(tmp_path / "taken", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_made_once_and_read_ever_after(tmp_path: Path) -> None:
    numbers = iter(["first", "second"])
    assert read_or_make(tmp_path / "key", lambda: next(numbers)) == "first"
    assert read_or_make(tmp_path / "key", lambda: next(numbers)) == "first"
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_one_holder_at_a_time_and_the_refusal_names_it(tmp_path: Path) -> None:
    first, second = FolderLock(tmp_path / "lock"), FolderLock(tmp_path / "lock")
    first.acquire()
    first.acquire()
    with pytest.raises(FolderInUse, match=rf"{tmp_path} is in use by another FastLLM \(pid {os.getpid()}\)"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()
    second.release()


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(tmp_path / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        lock = FolderLock(tmp_path / "lock")
        with pytest.raises(FolderInUse, match=str(holder.pid)):
            lock.acquire()
        holder.kill()
        holder.wait(10)
        lock.acquire()
        lock.release()
