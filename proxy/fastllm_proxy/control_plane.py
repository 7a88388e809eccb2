"""The proxy's side of its channel to the control plane: one session, the proxy token, one deadline a call.

ControlPlaneError
├── Unreachable       no answer in time, or no connection
├── TokenRefused      401 or 403: none of our tokens is accepted
└── AnswerTooLarge    more bytes than the caller takes
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType

import aiohttp
import msgspec

from fastllm_proxy.tls import client_context

MAX_ANSWER_BYTES = 1024 * 1024
EXCERPT_BYTES = 500
PIECE_BYTES = 32 * 1024
"""Sent at a time: writing a whole batch of usage at once would hold up every request for milliseconds."""
_WINDOW = 32 + zlib.MAX_WBITS  # zlib recognises gzip and zlib framing by itself


class ControlPlaneError(Exception):
    """A call that brought no answer to work with."""


class Unreachable(ControlPlaneError):
    pass


class TokenRefused(ControlPlaneError):
    pass


class AnswerTooLarge(ControlPlaneError):
    pass


class Answer(msgspec.Struct, frozen=True):
    """A whole answer, decompressed. `etag` is as sent, with its quotes."""

    status: int
    etag: str | None
    body: bytes

    @property
    def excerpt(self) -> str:
        """The beginning of the body, for a log."""
        return self.body[:EXCERPT_BYTES].decode("utf-8", "replace")


class ControlPlane:
    """Calls the control plane at `base_url`. Build it inside the running loop; `close` it. Raises
    `ValueError` when `ca_bundle` cannot be read."""

    def __init__(
        self, base_url: str, tokens: Sequence[str], user_agent: str, ca_bundle: str | None = None
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._tokens = tuple(tokens)
        self._preferred = 0
        tls = client_context(ca_bundle)
        # No cookies, no proxies from the environment, no redirects: a token goes where it was told to go.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls, limit=8, keepalive_timeout=15, ttl_dns_cache=5),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"user-agent": user_agent},
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None),
        )

    async def __aenter__(self) -> ControlPlane:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._session.close()

    async def get(
        self,
        path: str,
        *,
        deadline_seconds: float,
        headers: Mapping[str, str] | None = None,
        max_bytes: int = MAX_ANSWER_BYTES,
    ) -> Answer:
        """`path` with its query. Raises `ControlPlaneError`; any status but 401 and 403 is an answer."""
        return await self._call("GET", path, None, deadline_seconds, headers or {}, max_bytes)

    async def post(self, path: str, body: bytes, *, deadline_seconds: float) -> Answer:
        """Posts JSON. Raises `ControlPlaneError`; any status but 401 and 403 is an answer."""
        headers = {"content-type": "application/json"}
        return await self._call("POST", path, body, deadline_seconds, headers, MAX_ANSWER_BYTES)

    async def _call(
        self,
        method: str,
        path: str,
        body: bytes | None,
        deadline_seconds: float,
        headers: Mapping[str, str],
        max_bytes: int,
    ) -> Answer:
        try:
            async with asyncio.timeout(deadline_seconds):
                for index in self._order():
                    answer = await self._once(method, path, body, headers, self._tokens[index], max_bytes)
                    if answer.status not in (401, 403):
                        self._preferred = index
                        return answer
        except TimeoutError:
            raise Unreachable(f"no answer within {deadline_seconds:g} s") from None
        except (aiohttp.ClientError, OSError, zlib.error) as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error
        raise TokenRefused(f"{method} {path.partition('?')[0]} answered {answer.status}")

    def _order(self) -> list[int]:
        """Which token to try first: the one that was last accepted."""
        others = [index for index in range(len(self._tokens)) if index != self._preferred]
        return [self._preferred, *others]

    async def _once(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        token: str,
        max_bytes: int,
    ) -> Answer:
        async with self._session.request(
            method,
            self._base_url + path,
            data=None if body is None else body if len(body) <= PIECE_BYTES else _in_pieces(body),
            headers={**headers, "authorization": f"Bearer {token}", "accept-encoding": "gzip, deflate"},
            allow_redirects=False,
        ) as response:
            received = bytearray()
            async for piece in response.content.iter_any():
                received += piece
                if len(received) > max_bytes:
                    raise AnswerTooLarge(f"more than {max_bytes} bytes")
            encoding = response.headers.get("content-encoding", "identity").lower()
            if encoding == "identity":
                plain = bytes(received)
            elif encoding in ("gzip", "deflate"):
                # In a thread: a snapshot of a large installation would hold up every stream for its length.
                plain = await asyncio.to_thread(_inflate, received, max_bytes)
            else:
                raise aiohttp.ClientPayloadError(f"content-encoding {encoding!r} was not asked for")
            return Answer(status=response.status, etag=response.headers.get("etag"), body=plain)


def _inflate(data: bytearray, max_bytes: int) -> bytes:
    inflater = zlib.decompressobj(_WINDOW)
    plain = inflater.decompress(data, max_bytes)
    if inflater.unconsumed_tail:
        raise AnswerTooLarge(f"more than {max_bytes} bytes once decompressed")
    if not inflater.eof:
        raise zlib.error("compressed body ends early")
    return plain


async def _in_pieces(body: bytes) -> AsyncIterator[bytes]:
    """The body for sending; other requests get their turn between two pieces."""
    for start in range(0, len(body), PIECE_BYTES):
        yield body[start : start + PIECE_BYTES]
        await asyncio.sleep(0)
