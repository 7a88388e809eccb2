"""What a worker's memory does: a thousand slow streams at once, and minutes of mixed load with aborts.

    python -m tests.benchmarks.memory [--soak MINUTES] [--json FILE]

The streams are part of `make bench`; the soak (`make soak`, 20 minutes) is a run of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks import measure
from tests.benchmarks.targets import LOAD_CORE, Target, all_targets

Row = dict[str, Any]

STREAMS = 1000
EVENTS, DELAY_MS = 60, 250
"""A stream takes a quarter of a minute, so that all of them are open at the same time."""

SETTLED_SECONDS = 12.0
"""After the load: idle connections to engines are closed after 4 s, usage has left after a few more."""

SAMPLE_SECONDS = 0.25
WARM_SHARE = 0.2
"""The beginning of a soak, in which pools and allocators fill, does not count for the slope."""


class Watch:
    """Resident memory of one process, sampled by a thread: `(seconds, MiB)` in `samples`."""

    def __init__(self, pid: int) -> None:
        self.samples: list[tuple[float, float]] = []
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        begun = time.monotonic()
        while not self._stop.wait(SAMPLE_SECONDS):
            self.samples.append((time.monotonic() - begun, measure.rss_mib(self._pid)))

    @property
    def peak(self) -> float:
        return max((mib for _, mib in self.samples), default=0.0)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def slope(samples: list[tuple[float, float]]) -> float:
    """MiB per minute: the least-squares line through `(seconds, MiB)`."""
    count = len(samples)
    if count < 2:
        return 0.0
    mean_at = sum(at for at, _ in samples) / count
    mean_mib = sum(mib for _, mib in samples) / count
    spread = sum((at - mean_at) ** 2 for at, _ in samples)
    together = sum((at - mean_at) * (mib - mean_mib) for at, mib in samples)
    return together / spread * 60 if spread else 0.0


@contextmanager
def awake(target: Target) -> Iterator[int]:
    """The target's process, running meanwhile."""
    assert target.pid is not None
    target.resume()
    try:
        yield target.pid
    finally:
        target.pause()


def slow_streams(target: Target) -> Row:
    """A thousand streams at once: failures, and resident memory in MiB before, at most and afterwards."""
    with awake(target) as pid:
        time.sleep(SETTLED_SECONDS)
        before = measure.rss_mib(pid)
        with Watch(pid) as watch:
            load = _load("stream_load", target, "--streams", str(STREAMS), "--stagger", "4")
        time.sleep(SETTLED_SECONDS)
        after = measure.rss_mib(pid)
    return {
        "done": load["done"],
        "failures": str(load["failures"] or ""),
        "before_mib": before,
        "peak_mib": watch.peak,
        "after_mib": after,
    }


def soak(target: Target, minutes: float) -> Row:
    """Mixed load with a tenth of all requests aborted: what was done, and the slope of resident memory."""
    with awake(target) as pid, Watch(pid) as watch:
        command = [sys.executable, "-m", "tests.benchmarks.mixed_load"]
        command += ["--port", str(target.port), "--key", target.key, "--seconds", f"{minutes * 60:g}"]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    load: Row = json.loads(text)
    counted = watch.samples[int(len(watch.samples) * WARM_SHARE) :]
    return {
        **load,
        "minutes": minutes,
        "first_mib": counted[0][1] if counted else 0.0,
        "last_mib": counted[-1][1] if counted else 0.0,
        "peak_mib": watch.peak,
        "slope_mib_per_minute": round(slope(counted), 3),
    }


def _load(module: str, target: Target, *arguments: str) -> Row:
    command = ["taskset", "-c", str(LOAD_CORE), sys.executable, "-m", f"tests.benchmarks.{module}"]
    command += ["--port", str(target.port), "--key", target.key, "--connections", str(STREAMS)]
    command += ["--events", str(EVENTS), "--delay-ms", str(DELAY_MS), "--seconds", "600", *arguments]
    result: Row = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--soak", type=float, metavar="MINUTES")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fastllm-bench-") as folder:
        Path(folder).chmod(0o755)
        with all_targets(Path(folder)) as targets:
            target = next(one for one in targets if one.name == "fastllm")
            row = slow_streams(target) if options.soak is None else soak(target, options.soak)
    line = json.dumps(row)
    sys.stdout.write(line + "\n")
    if options.json:
        options.json.write_text(line)


if __name__ == "__main__":
    main()
