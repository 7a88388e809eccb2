from __future__ import annotations

import email.policy
import itertools
from email.parser import BytesParser

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fastllm_proxy.errors import Refused
from fastllm_proxy.multipart import (
    MAX_PARTS,
    PART_HEAD_BYTES,
    VALUE_BYTES,
    VALUES_BYTES,
    FormScanner,
    Part,
    boundary_of,
)
from tests.fakes.forms import BOUNDARY, Field, audio, encode_form

FORM = encode_form(
    Field("file", audio(3_000), "talk.wav", b"Content-Type: audio/wav\r\n"),
    Field("prompt", "élan — \r\n -- \r\n--".encode()),
    Field("empty", b""),
    Field("model", b"assistant"),
)


def scan(*pieces: bytes, boundary: bytes = BOUNDARY) -> list[Part]:
    scanner = FormScanner(boundary)
    for piece in pieces:
        scanner.feed(piece)
    scanner.finish()
    return scanner.parts


def message_of(*pieces: bytes, boundary: bytes = BOUNDARY) -> str:
    with pytest.raises(Refused) as refusal:
        scan(*pieces, boundary=boundary)
    assert (refusal.value.status, refusal.value.code) == (400, "invalid_multipart")
    return refusal.value.message.removeprefix("the form is not valid: ")


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(at for at in cuts if at < len(data))})
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def test_parts_are_found_at_their_offsets() -> None:
    parts = scan(FORM)
    assert [part.head.name for part in parts] == [b"file", b"prompt", b"empty", b"model"]
    assert FORM[parts[0].start : parts[0].end] == audio(3_000)
    assert parts[0].value is None
    assert [part.value for part in parts[1:]] == [FORM[part.start : part.end] for part in parts[1:]]
    assert parts[3].value == b"assistant"


def test_split_at_every_byte_it_is_the_same_form() -> None:
    small = encode_form(Field("file", b"\r\n--\r\n" * 9, "a"), Field("model", b"m"), Field("e", b""))
    expected = scan(small)
    for at in range(len(small) + 1):
        assert scan(small[:at], small[at:]) == expected
    assert scan(*(small[at : at + 1] for at in range(len(small)))) == expected


_NAMES = st.text(st.characters(codec="utf-8", exclude_characters='"\\\r\n', exclude_categories=("Cc", "Cs")))
_FIELDS = st.builds(
    Field,
    name=_NAMES.filter(lambda name: "=?" not in name and "%" not in name and "'" not in name),
    value=st.one_of(
        st.binary(max_size=60), st.lists(st.sampled_from([b"\r\n", b"--", b"b", b"\r"])).map(b"".join)
    ),
    filename=st.none() | _NAMES,
    headers=st.sampled_from([b"", b"Content-Type: text/plain; charset=utf-8\r\n", b"X-Other: \xc3\xa9\r\n"]),
)


@given(
    fields=st.lists(_FIELDS, max_size=6),
    boundary=st.from_regex(rb"[0-9A-Za-z'()+_,\-./:=?]{1,12}", fullmatch=True),
    cuts=st.lists(st.integers(0, 900), max_size=12),
)
def test_what_an_encoder_wrote_is_read_back_however_it_is_cut(
    fields: list[Field], boundary: bytes, cuts: list[int]
) -> None:
    assume(not any(b"--" + boundary in b"\r\n" + field.value + b"\r\n" for field in fields))
    body = encode_form(*fields, boundary=boundary)
    parts = scan(*cut(body, cuts), boundary=boundary)
    assert [(part.head.name, body[part.start : part.end], part.head.is_file) for part in parts] == [
        (field.name.encode(), field.value, field.filename is not None) for field in fields
    ]
    assert [part.value for part in parts] == [None if f.filename is not None else f.value for f in fields]


@given(
    values=st.lists(st.text("abc \n\r-=;:", max_size=30), min_size=1, max_size=5),
    mark=st.text("ab", min_size=1),
)
def test_another_reader_finds_the_same(values: list[str], mark: str) -> None:
    boundary = mark.encode() + b"0123456789"
    body = encode_form(*(Field(f"n{at}", v.encode()) for at, v in enumerate(values)), boundary=boundary)
    head = b"Content-Type: multipart/form-data; boundary=" + boundary + b"\r\n\r\n"
    read = BytesParser(policy=email.policy.HTTP).parsebytes(head + body)
    assert [part.value for part in scan(body, boundary=boundary)] == [
        part.get_payload(decode=True) for part in read.iter_parts()
    ]


@given(
    st.lists(
        st.one_of(st.binary(max_size=40), st.sampled_from(cut(FORM, [37, 39, 90, 140, 141, 3_200]))),
        max_size=8,
    )
)
def test_any_bytes_are_read_or_refused(pieces: list[bytes]) -> None:
    found: str | None = None
    try:
        scan(*pieces)
    except Refused as refused:
        found = refused.code
    assert found in (None, "invalid_multipart")


@pytest.mark.parametrize("start", [b"", b"\r\n"])
@pytest.mark.parametrize("end", [b"", b"\r\n", b"\r\n\r\n"])
def test_line_ends_around_a_form_do_no_harm(start: bytes, end: bytes) -> None:
    body = start + FORM.removesuffix(b"\r\n") + end
    parts = scan(body)
    assert body[parts[-1].start : parts[-1].end] == b"assistant"


D = b"--" + BOUNDARY
PART = b'\r\nContent-Disposition: form-data; name="model"\r\n\r\nm'
START = "it does not start with its boundary"
OPEN = "it has no closing boundary"
LONE = "a boundary stands after a line end that is not CRLF"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", OPEN),
        (b"\r\n", OPEN),
        (D, OPEN),
        (D + b"\r\n", OPEN),
        (D + PART, OPEN),
        (D + PART + b"\r\n" + D, OPEN),
        (D + PART + b"\r\n" + D + b"-", OPEN),
        (b"preamble\r\n" + FORM, START),
        (b"\r\n\r\n" + FORM, START),
        (b"\n" + FORM, START),
        (D + b"x\r\n" + FORM, "a boundary is followed by something other than a line end"),
        (D + PART + b"\r\n" + D + b"x" + FORM, "a boundary is followed by something other than a line end"),
        (
            D + PART + b"\r\n" + D + b" \r\n" + FORM,
            "a boundary is followed by something other than a line end",
        ),
        (D + b"\n" + FORM, "a boundary is followed by something other than a line end"),
        (D + PART + b"\n" + D + b"--", LONE),
        (D + PART + b"\r" + D + b"--", LONE),
        (D + PART + b"\n\n" + D + b"--", LONE),
        (D + PART[:-1] + b"\n" + D + b"--", LONE),
        (D + PART[:-1] + D + b"--", "a boundary follows a part's headers without a line end of its own"),
        (D + PART + b"\r\n" + D + b"--\r\n" + FORM, "something follows its closing boundary"),
        (D + PART + b"\r\n" + D + b"--epilogue", "something follows its closing boundary"),
        (D + b"\r\n\r\nvalue\r\n" + D + b"--", OPEN),
        (D + b"\r\n\r\nvalue\r\n\r\n" + D + b"--", "a part has a header that cannot be read"),
        (FORM.replace(b"\r\n", b"\n"), "a boundary is followed by something other than a line end"),
    ],
)
def test_what_two_readers_would_read_in_two_ways_is_refused(body: bytes, message: str) -> None:
    assert message_of(body) == message
    assert message_of(*(body[at : at + 1] for at in range(len(body)))) == message


def test_a_boundary_within_a_line_is_content() -> None:
    value = b"see " + D + b"--\r\n -" + D
    assert scan(encode_form(Field("prompt", value)))[0].value == value


def test_a_longer_boundary_that_begins_alike_is_not_taken_for_it() -> None:
    assert message_of(encode_form(Field("model", b"m"), boundary=b"bx"), boundary=b"b")
    assert (
        scan(encode_form(Field("a", b"\r\n--b\r\n"), boundary=b"bx"), boundary=b"bx")[0].value
        == b"\r\n--b\r\n"
    )


def test_parts_and_their_headers_are_bounded() -> None:
    many = [Field("x", b"")] * MAX_PARTS
    assert len(scan(encode_form(*many))) == MAX_PARTS
    assert message_of(encode_form(*many, Field("x", b""))) == "it has more than 1000 parts"
    padding = b"X: " + b"x" * PART_HEAD_BYTES + b"\r\n"
    assert message_of(encode_form(Field("x", b"", headers=padding))) == "a part's headers exceed 16 KiB"
    assert message_of(D + b"\r\n", b"x" * 9_000, b"x" * 9_000) == "a part's headers exceed 16 KiB"


def test_values_that_are_kept_are_bounded() -> None:
    largest, larger = Field("x", bytes(VALUE_BYTES)), Field("x", bytes(VALUE_BYTES + 1))
    parts = scan(*cut(encode_form(largest, larger), list(range(0, 2 * VALUE_BYTES, 7_000))))
    assert [part.value is None for part in parts] == [False, True]
    count = VALUES_BYTES // VALUE_BYTES
    assert sum(part.value is not None for part in scan(encode_form(*[largest] * (count + 3)))) == count


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        (b"multipart/form-data; boundary=abc", b"abc"),
        (b"Multipart/Form-Data;BOUNDARY=abc", b"abc"),
        (b'multipart/form-data; boundary="a b:c"', b"a b:c"),
        (b"multipart/form-data ; charset=utf-8; boundary=abc ; x=y;", b"abc"),
        (b"multipart/form-data; boundary=----=_Part_1_12.34", b"----=_Part_1_12.34"),
        (b"multipart/form-data; boundary=" + b"x" * 70, b"x" * 70),
        (b'multipart/form-data; x="a;b"; boundary=abc', b"abc"),
        (b"application/json", None),
        (b"application/json; boundary=abc", None),
        (b"multipart/mixed; boundary=abc", None),
        (b"", None),
    ],
)
def test_boundaries(content_type: bytes, boundary: bytes | None) -> None:
    assert boundary_of(content_type) == boundary


@pytest.mark.parametrize(
    "parameters",
    [
        b"",
        b";",
        b"; charset=utf-8",
        b"; boundary=",
        b'; boundary=""',
        b"; boundary=" + b"x" * 71,
        b"; boundary=a; boundary=b",
        b"; boundary=a; boundary*=b",
        b"; boundary*0=a; boundary*1=b",
        b"; boundary=a b",
        b'; x="a; boundary=b"; boundary=abc',
        b"; boundary=a, b",
        b'; boundary="a\\"b"',
        b'; boundary="a ',
        b'; boundary="a "',
        b'; boundary="a"b',
        b"; boundary=a\x80",
        b"; boundary=a\tb",
        b"; boundary",
        b"; =a",
    ],
)
def test_boundaries_that_cannot_be_relied_on_are_refused(parameters: bytes) -> None:
    with pytest.raises(Refused) as refusal:
        boundary_of(b"multipart/form-data" + parameters)
    assert refusal.value.code == "invalid_multipart"
