"""What a process costs, read from /proc: its CPU time, its memory, how long it waited for a core."""

from __future__ import annotations

import os
import re
from pathlib import Path

_RSS = re.compile(r"VmRSS:\s+(\d+)")


def family(pid: int) -> list[int]:
    """The process and all of its descendants, as far as they can be read."""
    found = [pid]
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found += family(int(child))
    except OSError:
        pass
    return found


def cpu_seconds(pid: int) -> float:
    """CPU time of a process with all of its threads, not of its children, in nanosecond resolution."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((thread / "schedstat").read_text().split()[0])
        except OSError:
            continue
    return total / 1e9


def waited_seconds(pid: int) -> float:
    """How long the process was ready to run but had no core: the noise that CPU figures do not show."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def rss_mib(pid: int) -> float:
    """Resident memory of a process in MiB."""
    match = _RSS.search(Path(f"/proc/{pid}/status").read_text())
    return round(int(match.group(1)) / 1024, 1) if match else 0.0


def pin(pid: int, core: int) -> None:
    """Keep a process with all of its threads on one core."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})
