"""Reading and splicing bodies: what comes out differs from what went in only where it must."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastllm_proxy.errors import Refused
from fastllm_proxy.peek import ask_for_usage, peek, rename, splice

ASKED = {"include_usage": True}


def spliced(body: bytes, name: str | None = None, *, ask: bool = False) -> bytes:
    seen = peek(body)
    edits = [] if name is None else [rename(seen, name)]
    if ask and (edit := ask_for_usage(seen, body)) is not None:
        edits.append(edit)
    return b"".join(bytes(piece) for piece in splice(body, edits))


def refusal(body: bytes) -> Refused:
    with pytest.raises(Refused) as caught:
        peek(body)
    assert caught.value.status == 400
    return caught.value


# Bodies as they may come: names and values of any kind, white space anywhere, names escaped or not.

_SPACE = st.text(" \t\r\n", max_size=2)
_PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4) | st.just("model"), inner, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def texts(draw: st.DrawFn, value: Any) -> str:
    """One JSON text of `value`: spaced and escaped at will."""

    def string(text: str) -> str:
        if draw(st.booleans()):
            return json.dumps(text, ensure_ascii=draw(st.booleans()))
        return (
            '"' + "".join(f"\\u{ord(c):04x}" if ord(c) < 65536 else json.dumps(c)[1:-1] for c in text) + '"'
        )

    def write(part: Any) -> str:
        if isinstance(part, str):
            text = string(part)
        elif isinstance(part, dict):
            text = "{" + ",".join(
                f"{draw(_SPACE)}{string(k)}{draw(_SPACE)}:{write(v)}" for k, v in part.items()
            )
            text += draw(_SPACE) + "}"
        elif isinstance(part, list):
            text = "[" + ",".join(map(write, part)) + draw(_SPACE) + "]"
        else:
            text = json.dumps(part)
        return draw(_SPACE) + text + draw(_SPACE)

    return write(value)


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, dict[str, Any]]:
    members: dict[str, Any] = dict(draw(st.dictionaries(st.text(max_size=4), _PLAIN, max_size=4)))
    members.pop("model", None)
    members["model"] = draw(st.text(max_size=6))
    if draw(st.booleans()):
        members["stream"] = draw(st.booleans() | st.none())
    if draw(st.booleans()):
        options = draw(st.none() | st.dictionaries(st.text(max_size=3), _PLAIN, max_size=2))
        if options is not None and draw(st.booleans()):
            options["include_usage"] = draw(st.booleans() | st.none())
        members["stream_options"] = options
    shuffled = draw(st.permutations(list(members.items())))
    text = draw(texts(dict(shuffled)))
    return text.encode("utf-8", "surrogatepass"), members


@given(bodies(), st.text(max_size=6).filter(lambda s: s.isprintable()))
def test_a_splice_changes_what_it_is_for_and_not_a_byte_more(
    given_body: tuple[bytes, dict[str, Any]], name: str
) -> None:
    body, members = given_body
    seen = peek(body)
    assert seen.model == members["model"]
    assert seen.stream is (members.get("stream") is True)

    renamed = spliced(body, name)
    start, end = seen.model_span
    assert json.loads(body[start:end]) == members["model"]
    assert renamed == body[:start] + json.dumps(name, ensure_ascii=False).encode() + body[end:]
    assert json.loads(renamed) == {**members, "model": name}

    options = members.get("stream_options")
    expected = {**(options or {}), **ASKED}
    both = json.loads(spliced(body, name, ask=True))
    assert both == {**members, "model": name, "stream_options": expected}


@given(bodies(), st.sampled_from(["model", "stream", "stream_options"]), st.data())
def test_a_repeated_member_is_refused_wherever_it_stands(
    given_body: tuple[bytes, dict[str, Any]], name: str, data: st.DataObject
) -> None:
    body, members = given_body
    again = "".join(data.draw(st.sampled_from([c, f"\\u{ord(c):04x}"])) for c in name)
    value = {"model": '"other"', "stream": "true", "stream_options": "null"}[name]
    start = body.index(b"{")
    end = body.rindex(b"}")
    front = body[: start + 1] + f'"{again}":{value},'.encode() + body[start + 1 :]
    back = body[:end] + f',"{again}":{value}'.encode() + body[end:]
    for doubled in (front, back):
        if name in members:
            refused = refusal(doubled)
            assert (refused.code, refused.param) == ("ambiguous_parameter", name)
        else:
            peek(doubled)


_NAMES = st.sampled_from(["a", "b", "model", ","])
_SMALL = st.sampled_from(
    ["1", "22", '""', '","', '"x,"', "[]", '{"b":1,"model":"inner","a":22}', '[",",":1,"]']
)


@given(
    st.lists(st.tuples(_NAMES, _SMALL), max_size=6),
    st.integers(0, 6),
    st.sampled_from([("", ""), (" ", ""), ("", " "), (" ", " ")]),
)
def test_repeated_members_beside_the_model_lead_nobody_astray(
    pairs: list[tuple[str, str]], at: int, spaces: tuple[str, str]
) -> None:
    """The decoder keeps only the last of them, and its length put at the first one's place would end
    somewhere else, possibly where the text looks like members."""
    others = [pair for pair in pairs if pair[0] != "model"]
    others.insert(at, ("model", '"dear"'))
    text = "{" + ("," + spaces[0]).join(f'"{name}":{spaces[1]}{value}' for name, value in others) + "}"
    assert spliced(text.encode(), "new").decode() == text.replace('"dear"', '"new"')
    asked = json.loads(spliced(text.encode(), ask=True))
    assert asked == {**json.loads(text), "stream_options": ASKED}


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","temperature":123456789012345678901234567890.5}',
        b'{"model":"m","n":' + b"9" * 5000 + b"}",
        b'{"model":"m","messages":[{"model":"inner","content":"\\ud800"}]}',
        b'{"model":"m","\\ud800":1}',
        b' \r\n\t{ "model" :\n"m" , "tools":[{"model":{"model":1}}]}\n',
        b'{"mod\\u0065l":"m","x":1e400,"y":-0.0}',
        b'{"x":"\\"model\\":\\"trap\\"","model":"m"}',
        b'\xef\xbb\xbf{"model":"m"}',
        '{"ключ":"значение","model":"m","\U0001f600":"\\ud83d"}'.encode(),
        b'{"a":1,"a":2,"model":"m"}',
        b'{"model":"m","messages":' + b"[" * 200 + b"]" * 200 + b"}",
    ],
)
def test_odd_but_valid_bodies_pass_and_keep_every_byte(body: bytes) -> None:
    seen = peek(body)
    assert seen.model == "m"
    start, end = seen.model_span
    assert body[start:end] == b'"m"'
    assert spliced(body) == body
    assert spliced(body, "other") == body[:start] + b'"other"' + body[end:]


def test_a_lone_surrogate_before_the_member_does_not_shift_it() -> None:
    body = '{"é":"ü\\ud800","model":"m","stream":true}'.encode()
    assert spliced(body, "other") == body.replace(b'"m"', b'"other"')
    assert spliced(body, ask=True).startswith(b'{"stream_options":{"include_usage":true},')


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"{",
        b'{"model":"m"',
        b'{"model":"m"} x',
        b'{"model":"m",}',
        b'{"model":NaN}',
        b'{"model":"m","x":Infinity}',
        b'{"model":"m","x":01}',
        b'{"model":"m","x":"\xff","y":"\\ud800"}',
        b'{"model":"m","x":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'\xef\xbb\xbf{"model":"m","x":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b"{'model':'m'}",
        b'{"model":"m"}'.decode().encode("utf-16"),
    ],
    ids=lambda body: repr(body[:20]),
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    assert refusal(body).code == "invalid_json"


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"x":1}',
        b'{"model":1}',
        b'{"model":null}',
        b'{"model":["m"]}',
        b'{"model":"\\ud800"}',
        b" { } ",
    ],
)
def test_a_body_without_a_model_name_is_refused(body: bytes) -> None:
    refused = refusal(body)
    assert (refused.code, refused.param) == ("missing_required_parameter", "model")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("null", '{"include_usage":true}'),
        ("{}", '{"include_usage":true}'),
        ("{ }", '{"include_usage":true }'),
        ('{"x":[{}]}', '{"include_usage":true,"x":[{}]}'),
        ('{"include_usage":false}', '{"include_usage":true}'),
        ('{ "x":1, "includ\\u0065_usage" : null }', '{ "x":1, "includ\\u0065_usage" : true }'),
        ('{"include_usage":false,"include_usage":false}', '{"include_usage":false,"include_usage":true}'),
    ],
)
def test_usage_is_asked_for_in_place(options: str, expected: str) -> None:
    body = f'{{"stream":true,"stream_options":{options},"model":"m"}}'
    assert spliced(body.encode(), ask=True).decode() == body.replace(options, expected)


@pytest.mark.parametrize("options", ['{"include_usage":true}', '{"include_usage":1}', "5", '"x"', "[]"])
def test_usage_is_not_asked_for_twice_nor_where_the_engine_should_judge(options: str) -> None:
    body = f'{{"stream":true,"stream_options":{options},"model":"m"}}'.encode()
    assert ask_for_usage(peek(body), body) is None


def test_bodies_are_sent_as_views_of_the_original() -> None:
    body = json.dumps({"messages": "x" * 100_000, "model": "m", "stream": True}).encode()
    seen = peek(body)
    edit = ask_for_usage(seen, body)
    assert edit is not None
    pieces = splice(body, [rename(seen, "other"), edit])
    views = [piece for piece in pieces if isinstance(piece, memoryview)]
    assert sum(map(len, views)) == len(body) - len(b'"m"')
    assert all(view.obj is body for view in views)
    whole = json.loads(b"".join(pieces))
    assert (whole["model"], whole["stream_options"]) == ("other", ASKED)


def test_a_bytearray_serves_as_well() -> None:
    body = bytearray(b'{"model":"m", "x":1}')
    assert spliced(body, "other") == b'{"model":"other", "x":1}'  # type: ignore[arg-type]


def test_a_name_is_written_as_json() -> None:
    assert json.loads(spliced(b'{"model":"m"}', 'a"b\\cé')) == {"model": 'a"b\\cé'}
