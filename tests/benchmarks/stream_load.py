"""A closed-loop load of event streams: each of `--connections` runs one stream after another.

    python -m tests.benchmarks.stream_load --port P --key K --connections 64 --seconds 5 \
        --events 100 --delay-ms 5 [--streams N] [--stagger SECONDS]

Prints one JSON line: streams done, streams/s, milliseconds to the first event (p50, p99), failures by kind.
A stream is complete when all events, `[DONE]` and the last chunk have been seen.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from typing import cast

import uvloop

PATH = "/v1/chat/completions"


class Load:
    """What all connections share: the request, the deadline, and what came of it."""

    def __init__(self, options: argparse.Namespace) -> None:
        content = f"mock:{options.events}:{options.delay_ms:g}"
        body = json.dumps(
            {"model": options.model, "stream": True, "messages": [{"role": "user", "content": content}]},
            separators=(",", ":"),
        )
        self.request = (
            f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {options.key}\r\ncontent-length: {len(body)}\r\n\r\n{body}"
        ).encode()
        self.options = options
        self.started = self.done = 0
        self.first_event_seconds: list[float] = []
        self.failures: Counter[str] = Counter()
        self.open = 0
        self.finished = asyncio.get_running_loop().create_future()
        self.begun = time.perf_counter()
        self.last = self.begun

    def may_start(self) -> bool:
        if self.options.streams and self.started >= self.options.streams:
            return False
        seconds: float = self.options.seconds
        return time.perf_counter() < self.begun + seconds

    def leave(self) -> None:
        self.open -= 1
        if self.open == 0 and not self.finished.done():
            self.finished.set_result(None)

    async def run(self) -> dict[str, object]:
        loop = asyncio.get_running_loop()
        connections = self.options.connections
        self.open = connections
        for _ in range(connections):
            await loop.create_connection(lambda: Stream(self), "127.0.0.1", self.options.port)
            await asyncio.sleep(self.options.stagger / connections)
        try:
            await asyncio.wait_for(self.finished, self.options.seconds + 60)
        except TimeoutError:
            self.failures["hung"] = self.open
        seconds = max(self.last - self.begun, 1e-9)
        return {
            "done": self.done,
            "rate": round(self.done / seconds, 1),
            "p50_ms": percentile(self.first_event_seconds, 0.5),
            "p99_ms": percentile(self.first_event_seconds, 0.99),
            "failures": dict(self.failures),
        }


class Stream(asyncio.Protocol):
    def __init__(self, load: Load) -> None:
        self._load = load
        self._idle = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._next()

    def _next(self) -> None:
        if not self._load.may_start():
            self._stop()
            return
        self._load.started += 1
        self._idle = False
        self._first = 0.0
        self._events = 0
        self._tail = b""
        self._status = b""
        self._sent = time.perf_counter()
        self._transport.write(self._load.request)

    def data_received(self, data: bytes) -> None:
        if self._idle:
            return
        self._status = self._status or data[9:12]
        if not self._first and b"data:" in data:
            self._first = time.perf_counter()
        joined = self._tail + data
        self._events += joined.count(b"data: ") - self._tail.count(b"data: ")
        self._tail = joined[-32:]
        if self._status != b"200":
            self._fail("status " + self._status.decode("latin-1"))
        elif self._tail.endswith(b"0\r\n\r\n"):
            self._complete(joined)

    def _complete(self, end: bytes) -> None:
        load = self._load
        if b"[DONE]" not in end[-64:] or self._events < load.options.events:
            self._fail("short")
            return
        load.done += 1
        load.last = time.perf_counter()
        load.first_event_seconds.append(self._first - self._sent)
        self._next()

    def _fail(self, why: str) -> None:
        self._load.failures[why] += 1
        self._stop()

    def _stop(self) -> None:
        self._idle = True
        self._transport.close()
        self._load.leave()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._idle:
            self._idle = True
            self._load.failures["closed"] += 1
            self._load.leave()


def percentile(values: list[float], share: float) -> float | None:
    """The value in milliseconds below which `share` of `values` (seconds) lie."""
    if not values:
        return None
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000, 3)


async def _run(options: argparse.Namespace) -> dict[str, object]:
    return await Load(options).run()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--key", default="none")
    parser.add_argument("--model", default="mock-model")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--streams", type=int, default=0)
    parser.add_argument("--events", type=int, default=100)
    parser.add_argument("--delay-ms", type=float, default=0)
    parser.add_argument("--stagger", type=float, default=0)
    result = uvloop.run(_run(parser.parse_args()))
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
