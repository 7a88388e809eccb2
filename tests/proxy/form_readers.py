"""Other parsers of forms, and forms with something wrong: what is accepted must mean the same to all."""

from __future__ import annotations

import email.policy
import warnings
from email.parser import BytesParser
from typing import cast

from aiohttp import BodyPartReader, MultipartReader, StreamReader

from tests.fakes.forms import BOUNDARY, form_type

TOKENS = (
    b"\r\n",
    b"\n",
    b"\r",
    b"--",
    b"--" + BOUNDARY,
    b"--" + BOUNDARY + b"--",
    b"\r\n--" + BOUNDARY + b"\r\n",
    b'Content-Disposition: form-data; name="model"',
    b'; name="model"',
    b"; filename=x",
    b"Content-Transfer-Encoding: base64\r\n",
    b"Content-Type: text/plain; charset=utf-16\r\n",
    b"X: y\r\n",
    b"; ",
    b'"',
    b"\\",
    b"=",
    b"*",
    b" ",
    b"%6d",
    b"model",
    b"\0",
    b"",
)

Damage = tuple[int, int, int]
"""Where, how much is taken out, and which of `TOKENS` is put there."""


def damaged(form: bytes, damages: list[Damage]) -> bytes:
    for at, size, token in damages:
        start = at % (len(form) + 1)
        form = form[:start] + TOKENS[token] + form[start + size :]
    return form


def models_by_email(form: bytes) -> list[bytes]:
    """The values of all parts that Python's mail parser takes for `model`."""
    head = f"Content-Type: {form_type()}\r\n\r\n".encode()
    read = BytesParser(policy=email.policy.HTTP).parsebytes(head + form)
    return [
        cast(bytes, part.get_payload(decode=True))
        for part in read.iter_parts()
        if part.get_param("name", header="content-disposition") == "model"
    ]


class _Whole:
    """A body that is all there, as aiohttp reads it."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def at_eof(self) -> bool:
        return not self._data

    async def read(self, size: int) -> bytes:
        return self._take(size)

    async def readline(self, **_: object) -> bytes:
        found = self._data.find(b"\n")
        return self._take(len(self._data) if found < 0 else found + 1)

    def unread_data(self, data: bytes) -> None:
        self._data = data + self._data

    def _take(self, size: int) -> bytes:
        taken, self._data = self._data[:size], self._data[size:]
        return taken


async def models_by_aiohttp(form: bytes) -> list[bytes]:
    """As aiohttp's reader finds them, which warns of what it passes over. Raises what it raises."""
    reader = MultipartReader({"Content-Type": form_type()}, cast(StreamReader, _Whole(form)))
    found = []
    with warnings.catch_warnings(action="ignore"):
        while (part := await reader.next()) is not None:
            assert isinstance(part, BodyPartReader)
            value = bytes(await part.read(decode=True))
            if part.name == "model":
                found.append(value)
    return found
