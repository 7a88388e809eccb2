"""The client's body as one backend is to see it: the same bytes, but for the model's name and the wish for a
usage event, spliced in place. A form on disk leaves from there, in blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastllm_proxy.peek import Edit, Peek, ask_for_usage, rename, splice
from fastllm_proxy.spool import BLOCK_BYTES

if TYPE_CHECKING:
    from fastllm_proxy.backends import Backend
    from fastllm_proxy.exchange import Exchange
    from fastllm_proxy.spool import Spool


Body = list[bytes | bytearray | memoryview]


def body_for(exchange: Exchange, backend: Backend) -> Body:
    """The pieces that one attempt sends; none of a form that is on disk. Fills `injected_usage`."""
    seen, body = exchange.peek, exchange.body
    assert seen is not None
    if exchange.form is not None:
        exchange.injected_usage = False
        return [] if exchange.form.spool is not None else splice(body, [_form_edit(seen, backend)])
    edits: list[Edit] = []
    if seen.model != backend.entry.upstream_model:
        edits.append(rename(seen, backend.entry.upstream_model))
    exchange.injected_usage = False
    if seen.stream and exchange.endpoint.splices_usage and backend.provider.stream_usage != "never":
        edit = ask_for_usage(seen, body)
        if edit is not None:
            edits.append(edit)
            exchange.injected_usage = True
    return splice(body, edits)


class Upload:
    """A form on disk, piece by piece, from its start; `size` is what all pieces come to, in bytes."""

    __slots__ = ("_begin", "_end", "_left", "_position", "_replaced", "_replacement", "_spool", "size")

    def __init__(self, spool: Spool, spooled_bytes: int, edit: Edit) -> None:
        self._spool = spool
        self._end = spooled_bytes
        self._begin, self._left, self._replacement = edit
        self._position = 0
        self._replaced = False
        self.size = spooled_bytes - (self._left - self._begin) + len(self._replacement)

    async def next_piece(self) -> bytes:
        """Empty at the end. Raises `Refused` 503 when the disk fails."""
        if self._position == self._begin and not self._replaced:
            self._position = self._left
            self._replaced = True
            if self._replacement:
                return self._replacement
        until = self._end if self._replaced else self._begin
        piece = await self._spool.read(self._position, min(BLOCK_BYTES, until - self._position))
        self._position += len(piece)
        return piece


def upload_for(exchange: Exchange, backend: Backend) -> Upload | None:
    """What one attempt sends of a form that is on disk; `None` for one in memory."""
    form, seen = exchange.form, exchange.peek
    assert form is not None
    assert seen is not None
    return None if form.spool is None else Upload(form.spool, form.size, _form_edit(seen, backend))


def _form_edit(seen: Peek, backend: Backend) -> Edit:
    return (*seen.model_span, backend.entry.upstream_model.encode())
