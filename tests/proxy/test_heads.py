from __future__ import annotations

import asyncio

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpProcessingError
from aiohttp.http_parser import RawRequestMessage

from fastllm_proxy.heads import ConnectionLimits, new_parser, objection, refusal_of

LIMITS = ConnectionLimits(head_bytes=1_000, head_fields=10)
START = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\n"


async def _parse(head: bytes) -> RawRequestMessage:
    loop = asyncio.get_running_loop()
    parser = new_parser(BaseProtocol(loop), loop, LIMITS)
    messages, _, _ = parser.feed_data(head)
    ((message, _),) = messages
    return message


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (START + b"\r\n", None),
        (START + b"Transfer-Encoding: Chunked\r\n\r\n", None),
        (START + b"A: " + b"b" * 900 + b"\r\n\r\n", None),
        (START + (b"A: " + b"b" * 500 + b"\r\n") * 2 + b"\r\n", 431),
        (b"POST /" + b"a" * 995 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
        (START + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.0\r\nContent-Length: 3\r\n\r\n", None),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    ],
)
async def test_objections(head: bytes, status: int | None) -> None:
    refused = objection(await _parse(head), LIMITS)
    assert (refused and refused.status) == status


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (START + b"A: " + b"b" * 1_001 + b"\r\n\r\n", 431),
        (START + b"A: b\r\n" * 10 + b"\r\n", 431),
        (b"POST /" + b"a" * 1_001 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
        (START + b"Authorization : Bearer sk-secret\r\n\r\n", 400),
    ],
)
async def test_what_the_parser_refuses_is_not_repeated(head: bytes, status: int) -> None:
    with pytest.raises(HttpProcessingError) as error:
        await _parse(head)
    refused = refusal_of(error.value, LIMITS)
    assert refused.status == status
    assert "sk-secret" not in refused.message
