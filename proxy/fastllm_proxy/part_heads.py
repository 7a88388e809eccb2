"""The headers of one part of a form: its name, and whether it is a file."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

import msgspec

from fastllm_proxy.refusals import invalid_form

NAMES_THAT_COUNT: Final = frozenset((b"model", b"stream", b"_charset_"))
"""Fields that this gateway decides upon."""

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_LINE: Final = re.compile(rb"(" + _TOKEN + rb"):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)").fullmatch
_PARAMETER: Final = re.compile(
    rb"[ \t]*;[ \t]*(" + _TOKEN + rb')=(?:"((?:[^"\\]|\\.)*+)"|(' + _TOKEN + rb"))", re.DOTALL
)
_NAMES_SOMETHING: Final = re.compile(rb"name[*0-9]*[ \t]*=", re.IGNORECASE).search
_SAYS_NAME: Final = re.compile(rb";[ \t]*name", re.IGNORECASE).findall
_CHARSET: Final = re.compile(rb";[ \t]*charset[ \t]*=[ \t]*\"?([^;\" \t]*)", re.IGNORECASE).search
_READABLE_CHARSETS: Final = frozenset((b"utf-8", b"utf8", b"us-ascii", b"ascii"))
_UNCHANGED: Final = frozenset((b"7bit", b"8bit", b"binary"))
_SINGLE: Final = frozenset((b"content-disposition", b"content-type", b"content-transfer-encoding"))


class PartHead(msgspec.Struct, frozen=True):
    """`name` as it stands there. `is_file`: it has a file name. `is_text`: by its type, the value can be
    looked at. `is_plain`: the value means what its bytes say, in UTF-8."""

    name: bytes
    is_file: bool
    is_text: bool
    is_plain: bool


def read_part_head(text: bytes) -> PartHead:
    """`text` without the blank line that ends it. Raises `Refused` 400."""
    fields: dict[bytes, bytes] = {}
    for line in text.split(b"\r\n"):
        found = _LINE(line)
        if found is None:
            raise invalid_form("a part has a header that cannot be read")
        name = found[1].lower()
        if name in fields and name in _SINGLE:
            raise invalid_form(f"a part has two headers {name.decode()}")
        fields[name] = found[2].strip(b" \t")
    parameters = _disposition(fields.get(b"content-disposition", b""))
    is_file = not parameters.keys().isdisjoint((b"filename", b"filename*"))
    kind = fields.get(b"content-type", b"text/plain")
    media = kind.partition(b";")[0].strip(b" \t").lower()
    if media.startswith(b"multipart/"):
        raise invalid_form("a part is a form of its own")
    charset = _CHARSET(kind)
    return PartHead(
        _plain_name(parameters[b"name"]),
        is_file,
        not is_file and (media.startswith(b"text/") or media == b"application/json"),
        fields.get(b"content-transfer-encoding", b"8bit").lower() in _UNCHANGED
        and (charset is None or charset[1].lower() in _READABLE_CHARSETS),
    )


def _disposition(value: bytes) -> dict[bytes, bytes]:
    """The parameters of a `Content-Disposition: form-data`, the name among them."""
    kind, _, _ = value.partition(b";")
    if kind.strip(b" \t").lower() != b"form-data":
        raise invalid_form("a part has no Content-Disposition: form-data")
    value = value.rstrip(b" \t;")
    parameters: dict[bytes, bytes] = {}
    position = len(kind.rstrip(b" \t"))
    while position < len(value):
        found = _PARAMETER.match(value, position)
        if found is None:
            raise invalid_form("a part's Content-Disposition cannot be read")
        name = found[1].lower()
        if name in parameters or (name != b"name" and name.startswith(b"name")):
            raise invalid_form("a part's Content-Disposition names it in more than one way")
        parameters[name] = found[2] if found[3] is None else found[3]
        position = found.end()
    # Some readers end a quoted string at a quote behind a backslash, or know no quotes at all: they must find
    # no other name either.
    _, escaped, rest = value.partition(b'\\"')
    if len(_SAYS_NAME(value)) != 1 or (escaped and _NAMES_SOMETHING(rest)):
        raise invalid_form("a part's Content-Disposition does not tell its name")
    return parameters


def _plain_name(name: bytes) -> bytes:
    """The name, unless it is one that another reader may take for a field that counts."""
    if b"\\" in name or b"=?" in name:
        raise invalid_form("a part's name is encoded")
    if name not in NAMES_THAT_COUNT and unquote_to_bytes(name).strip(b" \t'\"") in NAMES_THAT_COUNT:
        raise invalid_form("a part's name is encoded")
    return name
