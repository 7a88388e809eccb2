"""One line a request. A record is encoded into a buffer, which leaves by size or once a second.

A record has no field for a key, a prompt, an answer, a query string or a credential: what cannot be
written cannot leak. Its strings are encoded as JSON in both formats, so that no name breaks a line.
"""

from __future__ import annotations

import time
from typing import Literal

import msgspec

from fastllm_proxy.sink import LineSink

FLUSH_BYTES = 64 * 1024
KEPT_PARTIES = 4096
PARTIES = ("principal", "key_prefix", "model", "provider_model", "backend")


class AccessRecord(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What is logged of one request. `at` is Unix seconds at accept; `None` is unknown or absent.

    `id` is the request id, in safe characters; `endpoint` is its label. `model` is the frontend model as
    asked for if it is configured, else absent: a name that is not configured is the client's text. `backend`
    is the id of the last one tried. `code` is the error code of an answer of our own.
    """

    at: float
    id: str
    endpoint: str
    status: int
    duration_ms: float
    ttft_ms: float | None = None
    stream: bool = False
    attempts: int = 0
    principal: str | None = None
    key_prefix: str | None = None
    model: str | None = None
    provider_model: str | None = None
    backend: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    code: str | None = None


class AccessLog:
    """Collects records; `flush` (called at least once a second by a loop) hands them to the sink."""

    __slots__ = ("_append", "_buffer", "_count", "_encode", "_sink", "_text", "unwritable")

    def __init__(self, sink: LineSink, log_format: Literal["text", "json"]) -> None:
        self.unwritable = 0
        self._sink = sink
        self._buffer = bytearray()
        self._count = 0
        self._encode = msgspec.json.Encoder(decimal_format="number").encode_into
        self._text = TextLines()
        self._append = self._append_json if log_format == "json" else self._append_text

    def write(self, record: AccessRecord) -> None:
        try:
            self._append(record)
        except UnicodeEncodeError:  # a lone surrogate has no UTF-8: a line lost, never a request
            self.unwritable += 1
            return
        self._count += 1
        if len(self._buffer) >= FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._count:
            self._sink.write(bytes(self._buffer), self._count)
            self._buffer.clear()
            self._count = 0

    def _append_json(self, record: AccessRecord) -> None:
        buffer = self._buffer
        end = len(buffer)
        try:
            self._encode(record, buffer, end)
        except UnicodeEncodeError:
            del buffer[end:]
            raise
        buffer += b"\n"

    def _append_text(self, record: AccessRecord) -> None:
        self._buffer += self._text.line(record)


class TextLines:
    """`2026-11-30T12:00:00.123Z 200 /chat/completions 12.3ms id=… model=…`, absent fields left out.

    What repeats is kept ready: the second, and who asked whom for what. A line costs 2 µs so, 6 otherwise.
    """

    __slots__ = ("_parties", "_second", "_stamp")

    def __init__(self) -> None:
        self._second = 0
        self._stamp = ""
        self._parties: dict[tuple[str | None, ...], str] = {}

    def line(self, record: AccessRecord) -> bytes:
        second = int(record.at)
        if second != self._second:
            self._second = second
            self._stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        parties = (
            record.principal,
            record.key_prefix,
            record.model,
            record.provider_model,
            record.backend,
        )
        text = self._parties.get(parties)
        if text is None:
            text = self._name(parties)
        ttft = "" if record.ttft_ms is None else f" ttft={record.ttft_ms:.1f}ms"
        stream = " stream" if record.stream else ""
        prompt = "" if record.prompt_tokens is None else f" prompt_tokens={record.prompt_tokens}"
        completion = (
            "" if record.completion_tokens is None else f" completion_tokens={record.completion_tokens}"
        )
        code = "" if record.code is None else f" code={_word(record.code)}"
        return (
            f"{self._stamp}.{int((record.at - second) * 1000):03d}Z {record.status} {record.endpoint}"
            f" {record.duration_ms:.1f}ms id={record.id}{ttft}{stream}{text}"
            f" attempts={record.attempts}{prompt}{completion}{code}\n"
        ).encode()

    def _name(self, parties: tuple[str | None, ...]) -> str:
        if len(self._parties) >= KEPT_PARTIES:
            self._parties.clear()
        named = zip(PARTIES, parties, strict=True)
        text = "".join([f" {name}={_word(value)}" for name, value in named if value is not None])
        self._parties[parties] = text
        return text


def _word(text: str) -> str:
    """The text itself if it is one plain word, else as a JSON string."""
    if text.isascii() and text.isprintable() and not (" " in text or '"' in text):
        return text
    return msgspec.json.encode(text).decode()
