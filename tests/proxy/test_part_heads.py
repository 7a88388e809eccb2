from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastllm_proxy.errors import Refused
from fastllm_proxy.part_heads import PartHead, read_part_head


def head(disposition: bytes, *more: bytes) -> PartHead:
    return read_part_head(b"\r\n".join((b"Content-Disposition: form-data" + disposition, *more)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'; name="model"', PartHead(b"model", False, True, True)),
        (b";name=model", PartHead(b"model", False, True, True)),
        (b' ; NAME="a;b=c" ; ', PartHead(b"a;b=c", False, True, True)),
        ('; name="modèle"'.encode(), PartHead("modèle".encode(), False, True, True)),
        (b'; name="timestamp_granularities[]"', PartHead(b"timestamp_granularities[]", False, True, True)),
        (b'; name="file"; filename="a.wav"', PartHead(b"file", True, False, True)),
        (b'; name="file"; filename=""', PartHead(b"file", True, False, True)),
        (b"; name=\"file\"; filename*=utf-8''a%20b", PartHead(b"file", True, False, True)),
        (b'; filename="C:\\talks\\one.wav"; name="file"', PartHead(b"file", True, False, True)),
        (b'; name="file"; filename="say \\"hi\\".wav"', PartHead(b"file", True, False, True)),
        (b'; name="100%"', PartHead(b"100%", False, True, True)),
    ],
)
def test_names(text: bytes, expected: PartHead) -> None:
    assert head(text) == expected


@pytest.mark.parametrize(
    ("line", "is_text", "is_plain"),
    [
        (b"Content-Type: text/plain", True, True),
        (b"content-type: text/plain;charset=UTF-8", True, True),
        (b'Content-Type: text/plain; charset="utf-8"', True, True),
        (b"Content-Type: text/plain; charset=utf-16", True, False),
        (b"Content-Type: text/plain; charset=utf-7", True, False),
        (b"Content-Type: application/json", True, True),
        (b"Content-Type: image/png", False, True),
        (b"Content-Transfer-Encoding: binary", True, True),
        (b"Content-Transfer-Encoding: 8BIT", True, True),
        (b"Content-Transfer-Encoding: base64", True, False),
        (b"Content-Transfer-Encoding: quoted-printable", True, False),
        (b"X-Whatever:", True, True),
    ],
)
def test_what_a_value_is(line: bytes, is_text: bool, is_plain: bool) -> None:
    assert head(b'; name="x"', line) == PartHead(b"x", False, is_text, is_plain)


UNREADABLE = "a part has a header that cannot be read"
UNREADABLE_NAME = "a part's Content-Disposition cannot be read"
ENCODED = "a part's name is encoded"
TWICE = "a part's Content-Disposition names it in more than one way"
UNTOLD = "a part's Content-Disposition does not tell its name"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", UNTOLD),
        (b"; filename=x", UNTOLD),
        (b"; name=a; name=b", TWICE),
        (b"; name=a; Name=b", TWICE),
        (b"; name=a; filename=b; filename=c", TWICE),
        (b"; name=a; name*=utf-8''b", TWICE),
        (b"; name*=utf-8''model", TWICE),
        (b"; name*0=mod; name*1=el", TWICE),
        (b'; name="model', UNREADABLE_NAME),
        (b'; name="a"b', UNREADABLE_NAME),
        (b"; name = model", UNREADABLE_NAME),
        (b"; name=a b", UNREADABLE_NAME),
        (b"; name", UNREADABLE_NAME),
        (b'; name="mod\\el"', ENCODED),
        (b'; name="x"; y="; name=model"', UNTOLD),
        (b'; y="; NAME=model"; name="x"', UNTOLD),
        (b'; name="%6dodel"', ENCODED),
        (b'; name=" model"', ENCODED),
        (b"; name='model'", ENCODED),
        (b'; name="=?utf-8?q?model?="', ENCODED),
        (b'; filename="\\"; name="model"', UNREADABLE_NAME),
        (b'; name="x"; filename="a\\"; name="model"; y="', UNREADABLE_NAME),
        (b'; name="x"; filename="a\\"; name=\\"model"', UNTOLD),
        (
            b'; name="x"\r\nContent-Disposition: form-data; name="model"',
            "a part has two headers content-disposition",
        ),
        (b'; name="x"\r\nContent-Type: a/b\r\ncontent-type: a/c', "a part has two headers content-type"),
        (b'; name="x"\r\nContent-Type: multipart/mixed; boundary=b', "a part is a form of its own"),
        (b';\r\n name="model"', UNREADABLE),
        (b'; name="x"\nContent-Disposition: form-data; name="model"', UNREADABLE),
        (b'; name="x\ry"', UNREADABLE),
        (b'; name="x\0"', UNREADABLE),
        (b'; name="x"\r\nbroken', UNREADABLE),
        (b'; name="x"\r\nContent-Type : text/plain', UNREADABLE),
    ],
)
def test_what_is_ambiguous_is_refused(text: bytes, message: str) -> None:
    with pytest.raises(Refused) as refusal:
        head(text)
    assert refusal.value.message == f"the form is not valid: {message}"


@pytest.mark.parametrize(
    "text", [b"", b"Content-Type: text/plain", b"Content-Disposition: attachment; name=x"]
)
def test_a_part_without_a_disposition_is_refused(text: bytes) -> None:
    with pytest.raises(Refused):
        read_part_head(text)


@given(
    st.one_of(
        st.binary(),
        st.text('; name="model"\\*=').map(lambda t: b"Content-Disposition: form-data" + t.encode()),
    )
)
def test_any_bytes_are_read_or_refused(text: bytes) -> None:
    found: str | None = None
    try:
        read_part_head(text)
    except Refused as refused:
        found = refused.code
    assert found in (None, "invalid_multipart")
