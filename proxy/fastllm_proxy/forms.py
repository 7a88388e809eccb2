"""Reads a form: its fields, as far as they matter, and the whole of it into memory or onto disk, so that it
can be sent to one backend after another."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import msgspec

from fastllm_proxy import refusals
from fastllm_proxy.errors import Refused
from fastllm_proxy.multipart import FormScanner, Part, boundary_of
from fastllm_proxy.peek import Peek

if TYPE_CHECKING:
    from fastllm_proxy.body import RequestBody
    from fastllm_proxy.exchange import Exchange
    from fastllm_proxy.spool import Spool, Spools

IN_MEMORY_BYTES: Final = 1024 * 1024
"""A larger form goes to disk."""


class Form(msgspec.Struct, frozen=True):
    """A multipart body of `size` bytes: on disk, or all in `Exchange.body` when `spool` is `None`.
    `text_bytes`: how much of it is text."""

    size: int
    text_bytes: int
    spool: Spool | None

    def close(self) -> None:
        """Gives the disk's room back. Idempotent."""
        if self.spool is not None:
            self.spool.close()


def form_boundary(headers: tuple[tuple[bytes, bytes], ...]) -> bytes | None:
    """The boundary of a form, by the request's headers; `None` when the body is none. Raises `Refused`."""
    types = [value for name, value in headers if name.lower() == b"content-type"]
    if len(types) > 1:
        raise refusals.invalid_form("Content-Type is given more than once")
    return boundary_of(types[0]) if types else None


async def read_form(
    exchange: Exchange, body: RequestBody, boundary: bytes, max_bytes: int, spools: Spools
) -> None:
    """Fills `form`, `peek` and, if it is small, `body`. Raises `Refused`: what `RequestBody.pieces` does, 400
    for what is no form or lacks a field, 503 when the disk has no room."""
    scanner = FormScanner(boundary)
    kept = bytearray()
    size = 0
    spool: Spool | None = None
    try:
        async with aclosing(body.pieces(max_bytes)) as pieces:
            async for piece in pieces:
                scanner.feed(piece)
                size += len(piece)
                if size <= IN_MEMORY_BYTES:
                    body.hold(len(piece))
                    kept += piece
                    continue
                if spool is None:
                    spool = await spools.open()
                    await spool.write(bytes(kept))
                    kept.clear()
                    body.release()
                await spool.write(piece)
        scanner.finish()
        exchange.peek = peek_of(scanner.parts)
        if spool is not None:
            await spool.flush()
    except BaseException:  # cancellation included: the file must not outlive the request
        if spool is not None:
            spool.close()
        raise
    exchange.form = Form(size, _text_bytes(scanner.parts), spool)
    exchange.body = kept


def peek_of(parts: list[Part]) -> Peek:
    """The fields as far as routing looks at them; `model_span` is where the model's name stands. Raises
    `Refused` 400."""
    model, stream = _field(parts, b"model"), _field(parts, b"stream")
    charset = _field(parts, b"_charset_")
    if charset is not None and (charset.value or b"").lower() != b"utf-8":
        raise refusals.invalid_form("its fields must be UTF-8")
    if model is None:
        raise _missing_model()
    try:
        name = str(model.value, "utf-8")  # type: ignore[arg-type]  # `_field` makes sure of it
    except UnicodeDecodeError:
        raise _missing_model() from None
    return Peek(
        model=name,
        model_span=(model.start, model.end),
        stream=stream is not None and (stream.value or b"").lower() == b"true",
        options_span=None,
        first_member=0,
        members={
            part.head.name.decode("utf-8", "replace"): msgspec.Raw(part.value)
            for part in parts
            if part.value is not None and part.head.is_text
        },
    )


def _field(parts: list[Part], name: bytes) -> Part | None:
    """The one field of that name, with its value."""
    found = [part for part in parts if part.head.name == name]
    if not found:
        return None
    shown = name.decode()
    if len(found) > 1:
        raise Refused(400, "ambiguous_parameter", f"{shown} is given more than once", param=shown)
    part = found[0]
    if part.head.is_file or not part.head.is_plain or part.value is None:
        raise refusals.invalid_form(f"{shown} must be a plain field")
    return part


def _text_bytes(parts: list[Part]) -> int:
    return sum(part.end - part.start for part in parts if part.head.is_text)


def _missing_model() -> Refused:
    message = "you must provide a model parameter in the form"
    return Refused(400, "missing_required_parameter", message, param="model")
