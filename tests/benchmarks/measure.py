"""What a process costs, read from /proc: its CPU time, its memory; what the rest of the machine does."""

from __future__ import annotations

import os
import re
import resource
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
    """CPU time of a process with all of its threads, not of its children, in nanosecond resolution; 0 once
    it has ended."""
    total = 0
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            total += int((thread / "schedstat").read_text().split()[0])
    except OSError:
        pass
    return total / 1e9


def busy_seconds() -> float:
    """CPU time that all cores of the machine have spent on anything since it started."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _, _, irq, softirq, steal = map(int, fields[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def children_seconds() -> float:
    """CPU time of this process's children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def rss_mib(pid: int) -> float:
    """Resident memory of a process in MiB."""
    match = _RSS.search(Path(f"/proc/{pid}/status").read_text())
    return round(int(match.group(1)) / 1024, 1) if match else 0.0


def pin(pid: int, core: int) -> None:
    """Keep a process with all of its threads on one core."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})
