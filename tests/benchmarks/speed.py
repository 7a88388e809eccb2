"""The project's speed, beside nginx in the same run: `make bench`.

    python -m tests.benchmarks.speed [--rounds 5] [--seconds 2] [--json FILE]

Prints a table of medians and the bars that they are held against, then one JSON line. CPU per request or
stream is the figure to look at: rates and latencies move with whatever else the machine does (`foreign`:
how many cores others kept busy; a disturbed measurement is made again). Nothing here
fails because it is slow; the exit code is 0 unless the run itself broke.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec

from tests.benchmarks import measure, memory
from tests.benchmarks.targets import LOAD_CORE, Target, all_targets

Row = dict[str, Any]

QUIET_CORES = 0.15
"""Up to so many cores of foreign work a measurement counts as undisturbed."""

NOISY_TRIES = 3
SETTLE_SECONDS = 0.8
"""What a gateway has put off while it was stopped, usage on its way above all, is done by then."""


class Cell(msgspec.Struct, frozen=True):
    """One kind of load. `kind` is `body` (JSON of `size` bytes) or `stream` (100 events 5 ms apart)."""

    name: str
    kind: str
    connections: int
    size: int = 0
    stagger: float = 0.0


CELLS = (
    Cell("1 KiB, 16 connections", "body", 16, 1024),
    Cell("64 KiB, 16 connections", "body", 16, 65536),
    Cell("1 KiB, 1 connection", "body", 1, 1024),
    Cell("64 paced streams", "stream", 64, stagger=0.5),
)


class Bar(msgspec.Struct, frozen=True):
    """A figure to reach: how it is called, what was measured, the most that it may be."""

    name: str
    value: float
    limit: float
    unit: str

    @property
    def met(self) -> bool:
        return self.value <= self.limit


def quiet_cell(cell: Cell, targets: list[Target], target: Target, seconds: float) -> Row:
    """One measurement, made again while others keep the machine busy; the quietest one counts."""
    best = run_cell(cell, targets, target, seconds)
    for _ in range(NOISY_TRIES - 1):
        if best["foreign"] <= QUIET_CORES:
            break
        time.sleep(0.5)
        best = min(best, run_cell(cell, targets, target, seconds), key=lambda row: float(row["foreign"]))
    return best


def run_cell(cell: Cell, targets: list[Target], target: Target, seconds: float) -> Row:
    """One measurement of one target, alone on its core. `foreign`: cores that strangers kept busy."""
    target.resume()
    time.sleep(SETTLE_SECONDS)
    began, busy, own = time.monotonic(), measure.busy_seconds(), _own_seconds(targets)
    before = measure.cpu_seconds(target.pid) if target.pid else 0.0
    with target.undisturbed() if cell.connections == 1 else nullcontext():
        row = _bodies(cell, target, seconds) if cell.kind == "body" else _streams(cell, target, seconds)
    foreign = measure.busy_seconds() - busy - (_own_seconds(targets) - own)
    row["foreign"] = max(0.0, foreign / (time.monotonic() - began))
    if target.pid:
        row["cpu_us"] = (measure.cpu_seconds(target.pid) - before) / max(row["done"], 1) * 1e6
        row["rss_mib"] = measure.rss_mib(target.pid)
    target.pause()
    return row


def _own_seconds(targets: list[Target]) -> float:
    """CPU time of everything that belongs to the run: engine, gateways, load, this process."""
    own = sum(measure.cpu_seconds(pid) for target in targets for pid in target.family())
    return own + measure.children_seconds() + time.process_time()


def _bodies(cell: Cell, target: Target, seconds: float) -> Row:
    script = str(Path(__file__).parent / "post.lua")
    url = f"http://127.0.0.1:{target.port}/v1/chat/completions"
    command = ["taskset", "-c", str(LOAD_CORE), "wrk", "-t1", f"-c{cell.connections}", f"-d{seconds:g}s"]
    command += ["--latency", "--timeout", "10s", "-s", script, url, "--", str(cell.size), target.key]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    failed = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    broken = re.search(r"Socket errors: (.*)", text)
    return {
        "done": int(_found(r"(\d+) requests in", text)),
        "rate": float(_found(r"Requests/sec:\s+([\d.]+)", text)),
        "p50_ms": _milliseconds(_found(r"\n\s+50%\s+(\S+)", text)),
        "p99_ms": _milliseconds(_found(r"\n\s+99%\s+(\S+)", text)),
        "failures": " ".join(match.group(0) for match in (failed, broken) if match),
    }


def _streams(cell: Cell, target: Target, seconds: float) -> Row:
    command = ["taskset", "-c", str(LOAD_CORE), sys.executable, "-m", "tests.benchmarks.stream_load"]
    command += ["--port", str(target.port), "--key", target.key, "--connections", str(cell.connections)]
    # A stream takes half a second: the connections that each run opens must not weigh in.
    command += ["--seconds", f"{seconds * 2.5:g}", "--delay-ms", "5", "--stagger", f"{cell.stagger:g}"]
    result: Row = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    result["failures"] = str(result["failures"] or "")
    return result


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise SystemExit(f"wrk printed no {pattern!r}:\n{text}")
    return match.group(1)


def _milliseconds(text: str) -> float:
    match = re.fullmatch(r"([\d.]+)(us|ms|s|m)", text)
    if match is None:
        raise SystemExit(f"not a duration: {text}")
    return float(match.group(1)) * {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4}[match.group(2)]


def medians(rows: list[Row]) -> Row:
    """The median of every figure over the rounds, and all failures."""
    figures = {key for row in rows for key, value in row.items() if isinstance(value, int | float)}
    result: Row = {key: statistics.median(row[key] for row in rows if key in row) for key in figures}
    result["failures"] = " ".join(row["failures"] for row in rows if row["failures"])
    return result


def bars(table: dict[str, dict[str, Row]], streams: Row) -> list[Bar]:
    """The bars of the speed section, from the medians by cell and target, and the thousand streams."""

    def ratio(cell: str) -> float:
        return float(table[cell]["fastllm"]["cpu_us"] / table[cell]["nginx"]["cpu_us"])

    def added(cell: str, figure: str) -> float:
        return float(table[cell]["fastllm"][figure] - table[cell]["direct"][figure])

    return [
        Bar("1a CPU per request, 1 KiB, beside nginx", ratio(CELLS[0].name), 5.0, "x"),
        Bar("1b CPU per request, 64 KiB, beside nginx", ratio(CELLS[1].name), 2.5, "x"),
        Bar("2a CPU per paced stream beside nginx", ratio(CELLS[3].name), 1.8, "x"),
        Bar("2b p99 to first event, added to direct", added(CELLS[3].name, "p99_ms"), 3.0, "ms"),
        Bar("3a one connection, p50 added to direct", added(CELLS[2].name, "p50_ms"), 0.25, "ms"),
        Bar("3b one connection, p99 added to direct", added(CELLS[2].name, "p99_ms"), 1.0, "ms"),
        Bar("4a 1,000 slow streams: how many failed", memory.STREAMS - streams["done"], 0.0, ""),
        Bar("4b resident memory meanwhile", streams["peak_mib"], 150.0, "MiB"),
        Bar("4c and what of it stayed", streams["after_mib"] - streams["before_mib"], 20.0, "MiB"),
    ]


def report(table: dict[str, dict[str, Row]], streams: Row, found: list[Bar]) -> str:
    lines = []
    for cell, targets in table.items():
        lines.append(
            f"\n{cell}\n  {'':8} {'rate/s':>9} {'p50 ms':>8} {'p99 ms':>8} {'CPU us':>8}"
            f" {'RSS MiB':>8} {'foreign':>8}"
        )
        for name, row in targets.items():
            cpu, rss = row.get("cpu_us"), row.get("rss_mib")
            lines.append(
                f"  {name:8} {row['rate']:9.0f} {row['p50_ms']:8.3f} {row['p99_ms']:8.3f}"
                f" {'' if cpu is None else format(cpu, '.1f'):>8} {'' if rss is None else rss:>8}"
                f" {row['foreign']:8.2f}  {row['failures']}"
            )
    lines.append(f"\n{memory.STREAMS} slow streams\n  {streams}")
    lines.append("\nBars")
    for bar in found:
        verdict = "met" if bar.met else "NOT met"
        lines.append(f"  {bar.name:44} {bar.value:8.3f} {bar.unit:2}  at most {bar.limit:g}  {verdict}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: dict[str, dict[str, list[Row]]] = {}
    with tempfile.TemporaryDirectory(prefix="fastllm-bench-") as folder:
        Path(folder).chmod(0o755)
        with all_targets(Path(folder)) as targets:
            for target in targets:
                for cell in CELLS:
                    run_cell(cell, targets, target, 1)
            for turn in range(options.rounds):
                for cell in CELLS:
                    for target in targets if turn % 2 == 0 else reversed(targets):
                        row = quiet_cell(cell, targets, target, options.seconds)
                        rows.setdefault(cell.name, {}).setdefault(target.name, []).append(row)
            streams = memory.slow_streams(next(one for one in targets if one.name == "fastllm"))
    table = {
        cell: {name: medians(found) for name, found in sorted(by_target.items())}
        for cell, by_target in rows.items()
    }
    found = bars(table, streams)
    sys.stdout.write(report(table, streams, found) + "\n")
    summary = {
        "table": table,
        "streams": streams,
        "bars": [msgspec.structs.asdict(bar) | {"met": bar.met} for bar in found],
    }
    line = json.dumps(summary)
    sys.stdout.write(line + "\n")
    if options.json:
        options.json.write_text(line)


if __name__ == "__main__":
    main()
