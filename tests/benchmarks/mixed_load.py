"""A closed-loop load of everything at once: small and large bodies, streams, and clients that leave.

    python -m tests.benchmarks.mixed_load --port P --key K --seconds 60 [--connections 64] [--aborted 0.1]

Every connection sends one request after another; an aborted one closes its connection at a random moment of
the request. Prints one JSON line: requests done by kind, aborted ones, failures by kind.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter

import uvloop

KINDS = (("small", 1024, 0.5), ("large", 65_536, 0.2), ("stream", 0, 0.3))
"""Name, bytes of the body, share."""

EVENTS, DELAY_MS = 50, 5
TAKES_SECONDS = {"small": 0.004, "large": 0.008, "stream": EVENTS * DELAY_MS / 1000}
PATIENCE_SECONDS = 30.0


def requests(key: str) -> dict[str, bytes]:
    """One request of each kind, as wire bytes."""
    made = {}
    for kind, size, _ in KINDS:
        content = f"mock:{EVENTS}:{DELAY_MS}" if kind == "stream" else "a" * size
        messages = [{"role": "user", "content": content}]
        whole = {"model": "mock-model", "stream": kind == "stream", "messages": messages}
        body = json.dumps(whole, separators=(",", ":"))
        made[kind] = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {key}\r\ncontent-length: {len(body)}\r\n\r\n{body}"
        ).encode()
    return made


class Load:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._requests = requests(options.key)
        self._random = random.Random(options.seed)
        self._until = time.monotonic() + options.seconds
        self.done: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.aborted = 0

    async def run(self) -> dict[str, object]:
        await asyncio.gather(*(self._connection() for _ in range(self._options.connections)))
        return {"done": dict(self.done), "aborted": self.aborted, "failures": dict(self.failures)}

    async def _connection(self) -> None:
        while time.monotonic() < self._until:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._options.port)
            try:
                while time.monotonic() < self._until and await self._request(reader, writer):
                    pass
            except (OSError, asyncio.IncompleteReadError) as error:
                self.failures[type(error).__name__] += 1
            except TimeoutError:
                self.failures["hung"] += 1
            finally:
                writer.transport.abort()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection goes on."""
        names = [kind for kind, _, _ in KINDS]
        (kind,) = self._random.choices(names, [share for _, _, share in KINDS])
        writer.write(self._requests[kind])
        if self._random.random() < self._options.aborted:
            await asyncio.sleep(self._random.random() * TAKES_SECONDS[kind])
            self.aborted += 1
            return False
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._answer(reader, kind)
        self.done[kind] += 1
        return True

    async def _answer(self, reader: asyncio.StreamReader, kind: str) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            self.failures["status"] += 1
        if kind == "stream":
            await reader.readuntil(b"0\r\n\r\n")
        else:
            length = head.split(b"content-length: ")[1].split(b"\r\n")[0]
            await reader.readexactly(int(length))


async def _run(options: argparse.Namespace) -> dict[str, object]:
    return await Load(options).run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--key", default="none")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--aborted", type=float, default=0.1, help="share of requests, 0 to 1")
    parser.add_argument("--seed", type=int, default=1)
    result = uvloop.run(_run(parser.parse_args()))
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
