"""Multipart forms as clients write them."""

from __future__ import annotations

import msgspec

BOUNDARY = b"----WebKitFormBoundary7MA4YWxkTrZu0gW"


class Field(msgspec.Struct, frozen=True):
    """One part. `headers` are further lines, each with its CRLF."""

    name: str
    value: bytes
    filename: str | None = None
    headers: bytes = b""


def encode_form(*fields: Field, boundary: bytes = BOUNDARY) -> bytes:
    """The body of a form."""
    pieces = []
    for field in fields:
        disposition = f'form-data; name="{field.name}"'
        if field.filename is not None:
            disposition += f'; filename="{field.filename}"'
        pieces += [b"--", boundary, b"\r\nContent-Disposition: ", disposition.encode(), b"\r\n"]
        pieces += [field.headers, b"\r\n", field.value, b"\r\n"]
    return b"".join((*pieces, b"--", boundary, b"--\r\n"))


def form_type(boundary: bytes = BOUNDARY) -> str:
    """The `Content-Type` of a form."""
    return f"multipart/form-data; boundary={boundary.decode()}"


def audio(size: int) -> bytes:
    """Bytes that look like no text: every value, line ends and dashes among them."""
    unit = bytes(range(256)) + b"\r\n--\r\n--x\r\n\r\n" + bytes(range(255, -1, -1))
    return (unit * (size // len(unit) + 1))[:size]
