"""Who is calling: the digest of the presented key, looked up in the view. Reads headers only."""

from __future__ import annotations

from typing import Final

from fastllm_proxy.errors import Refused
from fastllm_proxy.view import Caller, View
from fastllm_proxy.wire import RawHeaders
from fastllm_shared.keys import digest_of

_CREDENTIAL_HEADERS: Final = frozenset((b"authorization", b"x-api-key", b"api-key"))
_CREDENTIAL_LENGTHS: Final = frozenset(map(len, _CREDENTIAL_HEADERS))
_BEARER: Final = b"bearer "


def authenticate(view: View, headers: RawHeaders, now_unix: float) -> Caller:
    """The caller whose key is in `Authorization: Bearer`, `x-api-key` or `api-key`; if several are sent, the
    first that is known. Raises `Refused` 401: absent, unknown, revoked and expired read alike."""
    callers = view.callers
    for name, value in headers:
        if len(name) in _CREDENTIAL_LENGTHS:
            key = credential(name, value)
            if key is not None:
                caller = callers.get(digest_of(key))
                if caller is not None and not _expired(caller, now_unix):
                    return caller
    raise Refused(
        401,
        "invalid_api_key",
        "no valid API key was given; send it as `Authorization: Bearer <key>`",
        headers=(("www-authenticate", "Bearer"),),
    )


def credential(name: bytes, value: bytes) -> bytes | None:
    """The key or token that a header carries, if it is a header for that."""
    lowered = name.lower()
    if lowered not in _CREDENTIAL_HEADERS:
        return None
    if lowered == b"authorization":
        return value[7:].strip() if value[:7].lower() == _BEARER else None
    return value


def _expired(caller: Caller, now_unix: float) -> bool:
    expires = caller.key.expires_at
    return expires is not None and now_unix >= expires
