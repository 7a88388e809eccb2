"""What an engine may send instead of a response. A client gets the right status or sees a cut, never a wrong
byte; and the next client gets the answer to its own request."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.edge import eventually
from tests.fakes.engine import Answer, Fault
from tests.integration.http.engines import call, facing, failed

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"
SECOND = OK + b'content-length: 16\r\n\r\n{"stolen":"yes"}'
STALL = Fault("stall", at="idle")


def raw(data: bytes) -> Answer:
    """Bytes, after which the engine keeps the connection open."""
    return Answer(raw=data)


def with_head(line: bytes, body: bytes = b"{}") -> Answer:
    """An answer with one more line in its head."""
    return raw(OK + line + b"\r\ncontent-length: %d\r\n\r\n" % len(body) + body)


NOT_HTTP = {
    "another protocol": raw(b"SSH-2.0-OpenSSH_9.9\r\n"),
    "text as in HTTP/0.9": raw(b"<html>hello</html>\n"),
    "text that is closed": Answer(raw=b"hello", close=True),
    "the preface of HTTP/2": raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "frames of HTTP/2": raw(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64"),
    "a status line of HTTP/2": raw(b"HTTP/2.0 200 OK\r\ncontent-length: 2\r\n\r\n{}"),
    "HTTP/1.9": raw(b"HTTP/1.9 200 OK\r\ncontent-length: 2\r\n\r\n{}"),
    "RTSP": raw(b"RTSP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}"),
    "an alert of TLS": raw(b"\x15\x03\x03\x00\x02\x02\x50"),
    "a request": raw(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 0\r\n\r\n"),
    "a blank line first": raw(b"\r\n" + OK + b"content-length: 2\r\n\r\n{}"),
    "bare line feeds": raw(b"HTTP/1.1 200 OK\ncontent-length: 2\n\n{}"),
    "nothing": Answer(raw=b"", close=True),
}

STATUSES = {
    "switching protocols": raw(b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nhello"),
    "a flood of interim responses": Answer(interim=(103,) * 10_000),
    "one interim response too many": Answer(interim=(100,) * 17),
    "below 100": raw(b"HTTP/1.1 099 Low\r\ncontent-length: 0\r\n\r\n"),
    "above 599": raw(b"HTTP/1.1 600 High\r\ncontent-length: 0\r\n\r\n"),
    "two digits": raw(b"HTTP/1.1 20 OK\r\ncontent-length: 0\r\n\r\n"),
    "four digits": raw(b"HTTP/1.1 2000 OK\r\ncontent-length: 0\r\n\r\n"),
    "no digits": raw(b"HTTP/1.1 OK 200\r\ncontent-length: 0\r\n\r\n"),
    "not modified, with a body": raw(b"HTTP/1.1 304 Not Modified\r\ncontent-length: 2\r\n\r\n{}"),
}

HEADS = {
    "a header of 4 MiB": Answer(headers=(("x-large", "x" * 4_194_304),)),
    "20,000 headers": Answer(headers=tuple((f"x-{n}", "y") for n in range(20_000))),
    "129 headers": Answer(headers=tuple((f"x-{n}", "y") for n in range(129))),
    "a line without colon": with_head(b"nonsense"),
    "no name": with_head(b": value"),
    "a space in a name": with_head(b"bad name: value"),
    "a space before the colon": with_head(b"name : value"),
    "a folded line": with_head(b"name: value\r\n folded"),
    "CR in a value": with_head(b"name: a\rset-cookie: b"),
    "LF in a value": with_head(b"name: a\nset-cookie: b"),
    "NUL in a value": with_head(b"name: a\0b"),
    "a control character in a value": with_head(b"name: a\x01b"),
    "DEL in a value": with_head(b"name: a\x7fb"),
    "a control character in a name": with_head(b"na\x01me: value"),
    "CR in the reason": raw(b"HTTP/1.1 200 O\rset-cookie: b\r\ncontent-length: 2\r\n\r\n{}"),
}

LENGTHS = {
    "two lengths": with_head(b"content-length: 3"),
    "the same length twice": with_head(b"content-length: 2"),
    "a list of lengths": raw(OK + b"content-length: 2, 2\r\n\r\n{}"),
    "a signed length": raw(OK + b"content-length: +2\r\n\r\n{}"),
    "a negative length": raw(OK + b"content-length: -2\r\n\r\n{}"),
    "a hexadecimal length": raw(OK + b"content-length: 0x2\r\n\r\n{}"),
    "a length with a space": raw(OK + b"content-length: 2 2\r\n\r\n{}"),
    "an empty length": raw(OK + b"content-length:\r\n\r\n{}"),
    "a length beyond 64 bits": raw(OK + b"content-length: 99999999999999999999\r\n\r\n{}"),
    "a length and chunks": raw(OK + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}"),
    "chunks and a length": raw(OK + b"transfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n0\r\n\r\n"),
    "chunks in gzip": raw(OK + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    "chunks twice": raw(OK + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
    "an unknown coding": raw(OK + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n"),
    "the coding identity": raw(OK + b"transfer-encoding: identity\r\n\r\n{}"),
    "chunks in HTTP/1.0": raw(b"HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
    "a body that is shorter": Answer(body=b"{}", declared_length=3, close=True),
    "a body that is shorter, and reset": Answer(
        body=b"{}", declared_length=3, fault=Fault("reset", at="mid_body")
    ),
}

NONSENSE = NOT_HTTP | STATUSES | HEADS | LENGTHS

BAD_CHUNKS = {
    "negative": b"-5\r\nhello\r\n0\r\n\r\n",
    "signed": b"+5\r\nhello\r\n0\r\n\r\n",
    "prefixed": b"0x5\r\nhello\r\n0\r\n\r\n",
    "overflowing": b"fffffffffffffffff\r\nhello\r\n0\r\n\r\n",
    "overflowing to 5": b"10000000000000005\r\nhello\r\n0\r\n\r\n",
    "empty": b"\r\nhello\r\n0\r\n\r\n",
    "after a space": b" 5\r\nhello\r\n0\r\n\r\n",
    "with letters": b"5g\r\nhello\r\n0\r\n\r\n",
    "of a bare line feed": b"5\nhello\r\n0\r\n\r\n",
    "too small": b"3\r\nhello\r\n0\r\n\r\n",
    "with an endless extension": b"5;" + b"x" * 200_000 + b"\r\nhello\r\n0\r\n\r\n",
    "with NUL in its extension": b"5;a\0b\r\nhello\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("answer", NONSENSE.values(), ids=NONSENSE)
async def test_what_is_no_response_is_a_failed_attempt(tmp_path: Path, answer: Answer) -> None:
    async with facing(tmp_path, answer) as (proxy, engine):
        failed(await call(proxy))
        assert proxy.backend(1).pool.idle == 0
        await eventually(lambda: engine.open_connections == 0)
        assert proxy.log_text().count("attempt failed") == 1
        assert (await proxy.events.get()).status == 502
        assert (await call(proxy)).status == 200


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
async def test_a_redirect_is_a_failed_attempt_and_its_place_stays_here(tmp_path: Path, status: int) -> None:
    moved = Answer(status=status, headers=(("location", "http://169.254.169.254/latest"),))
    async with facing(tmp_path, moved) as (proxy, engine):
        answer = await call(proxy)
        failed(answer)
        assert b"169.254" not in answer.head + answer.body
        assert b"location" not in answer.head.lower()
        assert engine.hits("/chat/completions") == 1


@pytest.mark.parametrize("chunk", BAD_CHUNKS.values(), ids=BAD_CHUNKS)
async def test_a_malformed_chunk_first_is_a_failed_attempt(tmp_path: Path, chunk: bytes) -> None:
    async with facing(tmp_path, raw(CHUNKED + chunk)) as (proxy, engine):
        failed(await call(proxy))
        await eventually(lambda: engine.open_connections == 0)
        assert (await call(proxy)).status == 200


@pytest.mark.parametrize("chunk", BAD_CHUNKS.values(), ids=BAD_CHUNKS)
async def test_a_malformed_chunk_later_is_a_visible_cut(tmp_path: Path, chunk: bytes) -> None:
    async with facing(tmp_path, raw(CHUNKED + b"5\r\nfirst\r\n")) as (proxy, engine):
        client = await proxy.connect()
        client.send()
        assert (await client.head())[0] == 200
        assert await client.piece() == b"first"
        engine.connections[0].write(chunk)
        rest = await client.reader.read()
        assert rest in (b"", b"5\r\nhello\r\n", b"3\r\nhel\r\n")  # what was sound, and no last chunk
        client.close()
        await eventually(lambda: engine.open_connections == 0)
        assert (await proxy.events.get()).status == 502
        assert (await call(proxy)).status == 200


KEPT = {
    "two interim responses": (Answer(interim=(100, 103), body=b"{}"), b"{}"),
    "sixteen interim responses": (Answer(interim=(103,) * 16, body=b"{}"), b"{}"),
    "bytes beyond ASCII in a value": (with_head(b"name: gr\xfc\xdfe"), b"{}"),
    "a tab in a value": (with_head(b"name: a b"), b"{}"),
    "an empty value": (with_head(b"name:"), b"{}"),
    "HTTP/1.0 that keeps alive": (
        raw(b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\n{}"),
        b"{}",
    ),
    "a reason beyond ASCII": (raw(b"HTTP/1.1 200 Gr\xfc\xdfe\r\ncontent-length: 2\r\n\r\n{}"), b"{}"),
    "NUL in the reason, which nobody sees": (
        raw(b"HTTP/1.1 200 O\0K\r\ncontent-length: 2\r\n\r\n{}"),
        b"{}",
    ),
    "no reason": (raw(b"HTTP/1.1 200\r\ncontent-length: 2\r\n\r\n{}"), b"{}"),
    "no content": (raw(b"HTTP/1.1 204 No Content\r\n\r\n"), b""),
    "reset content": (raw(b"HTTP/1.1 205 Reset Content\r\ncontent-length: 0\r\n\r\n"), b""),
    "gzip that is none": (with_head(b"content-encoding: gzip", b"garbage"), b"garbage"),
    "gzip in chunks that is none": (
        raw(OK + b"content-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n7\r\ngarbage\r\n0\r\n\r\n"),
        b"garbage",
    ),
    "chunk extensions and trailers": (
        raw(CHUNKED + b"5;a=b\r\nhello\r\n0;last\r\nx-sum: 1\r\n\r\n"),
        b"hello",
    ),
    "zeros before a chunk size": (raw(CHUNKED + b"0005\r\nhello\r\n000\r\n\r\n"), b"hello"),
}

NOT_KEPT = {
    "no length, ended by closing": (Answer(body=b"hello", framing="eof"), b"hello"),
    "HTTP/1.0": (Answer(raw=b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}", close=True), b"{}"),
    "HTTP/1.0 that stays open": (raw(b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}"), b"{}"),
    "says close and stays open": (with_head(b"connection: close"), b"{}"),
    "says close and keep-alive": (with_head(b"connection: keep-alive, close"), b"{}"),
    "length 0 with a body": (raw(OK + b"content-length: 0\r\n\r\nhello"), b""),
    "longer than it says": (raw(OK + b"content-length: 2\r\n\r\n{}hello"), b"{}"),
    "no content, with a body": (raw(b"HTTP/1.1 204 No Content\r\n\r\nhello"), b""),
    "no content, with a length": (raw(b"HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\nhello"), b""),
    "no content, in chunks": (
        raw(b"HTTP/1.1 204 No Content\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
        b"",
    ),
    "reset content, with a body": (
        raw(b"HTTP/1.1 205 Reset Content\r\ncontent-length: 0\r\n\r\nhello"),
        b"",
    ),
    "garbage after it": (Answer(body=b"{}", trailing=b"garbage"), b"{}"),
    "a blank line after it": (Answer(body=b"{}", trailing=b"\r\n"), b"{}"),
    "a blank line after chunks": (raw(CHUNKED + b"2\r\n{}\r\n0\r\n\r\n\r\n"), b"{}"),
    "a second answer after it": (Answer(body=b"{}", trailing=SECOND), b"{}"),
    "a second answer after chunks": (raw(CHUNKED + b"2\r\n{}\r\n0\r\n\r\n" + SECOND), b"{}"),
    "half closed after it": (Answer(body=b"{}", fault=Fault("half_close", at="idle")), b"{}"),
    "reset after it": (Answer(body=b"{}", fault=Fault("reset", at="idle")), b"{}"),
}


@pytest.mark.parametrize(("answer", "body"), KEPT.values(), ids=KEPT)
async def test_what_is_odd_but_sound_passes(tmp_path: Path, answer: Answer, body: bytes) -> None:
    async with facing(tmp_path, answer) as (proxy, engine):
        got = await call(proxy)
        assert (got.status // 100, got.body, got.whole) == (2, body, True)
        assert proxy.backend(1).pool.idle == 1
        assert (await call(proxy)).status == 200
        assert len(engine.connections) == 1


@pytest.mark.parametrize(("answer", "body"), NOT_KEPT.values(), ids=NOT_KEPT)
async def test_after_what_is_not_to_be_trusted_the_connection_is_closed(
    tmp_path: Path, answer: Answer, body: bytes
) -> None:
    async with facing(tmp_path, answer) as (proxy, engine):
        got = await call(proxy)
        assert (got.status // 100, got.body, got.whole) == (2, body, True)
        await eventually(lambda: engine.open_connections == 0)
        assert proxy.backend(1).pool.idle == 0
        after = await call(proxy)
        assert (after.status, after.whole) == (200, True)
        assert b"stolen" not in after.body
