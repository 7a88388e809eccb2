"""What is running, as `/proc` shows it."""

from __future__ import annotations

import time
from pathlib import Path

_PROC = Path("/proc")


def is_running(pid: int) -> bool:
    """Whether the process exists and is more than an entry that its parent has yet to collect."""
    return _state(pid) not in ("", "Z", "X")


def wait_until_gone(pids: list[int], within_seconds: float = 10.0) -> list[int]:
    """Those of `pids` that still run after at most so long."""
    deadline = time.monotonic() + within_seconds
    while (left := [pid for pid in pids if is_running(pid)]) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


def uid_of(pid: int) -> int:
    return (_PROC / str(pid)).stat().st_uid


def command_line(pid: int) -> str:
    return (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode()


def environment(pid: int) -> dict[str, str]:
    """The variables that it was started with."""
    pairs = (_PROC / str(pid) / "environ").read_bytes().decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def family(pid: int) -> list[int]:
    """The process and all that descend from it."""
    parents = {int(one.name): _parent(int(one.name)) for one in _PROC.iterdir() if one.name.isdigit()}
    found = [pid]
    for member in found:
        found += [child for child, parent in parents.items() if parent == member]
    return found


def _state(pid: int) -> str:
    return _status(pid)[0]


def _parent(pid: int) -> int:
    return int(_status(pid)[1] or 0)


def _status(pid: int) -> tuple[str, str]:
    """State and parent; empty when there is no such process. The name before them may hold anything."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", ""
    return fields[0], fields[1]
