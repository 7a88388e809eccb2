"""Who is calling: the digest of the presented key, looked up in the view. Reads headers only."""

from __future__ import annotations

from fastllm_proxy.client_headers import ClientHeaders
from fastllm_proxy.errors import Refused
from fastllm_proxy.view import Caller, View


def authenticate(view: View, headers: ClientHeaders, now_unix: float) -> Caller:
    """The caller whose key is in `Authorization: Bearer`, `x-api-key` or `api-key`; if several are sent, the
    first that is known. Raises `Refused` 401: absent, unknown, revoked and expired read alike."""
    callers = view.callers
    for digest in headers.digests:
        caller = callers.get(digest)
        if caller is not None and not _expired(caller, now_unix):
            return caller
    raise Refused(
        401,
        "invalid_api_key",
        "no valid API key was given; send it as `Authorization: Bearer <key>`",
        headers=(("www-authenticate", "Bearer"),),
    )


def _expired(caller: Caller, now_unix: float) -> bool:
    expires = caller.key.expires_at
    return expires is not None and now_unix >= expires
