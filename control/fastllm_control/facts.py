"""What is known of a request before anybody looks at what it asks: its id, who sent it, over what.

`X-Forwarded-*` counts only when the peer is one of the trusted proxies, read from the right up to the
first address that is not.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

import msgspec
from starlette.datastructures import Headers
from starlette.types import Scope

from fastllm_control.errors import Forbidden
from fastllm_shared.ids import uuid7_text

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


class Facts(msgspec.Struct, frozen=True):
    """`host` is what the client wrote as its `Host`; `secure` whether it came over TLS."""

    request_id: str
    address: str
    host: str
    secure: bool


def facts_of(scope: Scope, trusted: Sequence[Network]) -> Facts:
    """The facts of an ASGI `http` scope."""
    headers = Headers(scope=scope)
    given = headers.get("x-request-id", "")
    request_id = given if _REQUEST_ID.fullmatch(given) else uuid7_text()
    peer = _plain((scope.get("client") or ("", 0))[0])
    secure = scope.get("scheme") == "https"
    host = headers.get("host", "")
    if not _is_trusted(peer, trusted):
        return Facts(request_id, peer, host, secure)
    forwarded = headers.get("x-forwarded-proto")
    return Facts(
        request_id,
        _client_behind(peer, headers.getlist("x-forwarded-for"), trusted),
        headers.get("x-forwarded-host", host),
        forwarded == "https" if forwarded else secure,
    )


def refuse_other_sites(headers: Headers, facts: Facts) -> None:
    """Raise `Forbidden` when a browser says that the request was made by another site's page.

    A client that sends neither header is no browser (or a very old one, which SameSite=Strict guards).
    """
    fetched_by = headers.get("sec-fetch-site")
    origin = headers.get("origin")
    if fetched_by not in (None, "same-origin", "none") or (origin is not None and not _is_own(origin, facts)):
        raise Forbidden(
            "cross_site", "this was sent by a page of another site; use the operator UI's own pages"
        )


def _is_own(origin: str, facts: Facts) -> bool:
    # The schemes are not compared: TLS may have ended at a proxy that says nothing of it.
    scheme, _, authority = origin.partition("://")
    default = _DEFAULT_PORTS.get(scheme.lower(), "")
    return bool(authority) and authority.lower().removesuffix(default) == facts.host.lower().removesuffix(
        default
    )


def _is_trusted(address: str, trusted: Sequence[Network]) -> bool:
    if not trusted:
        return False
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(parsed in network for network in trusted)


def _plain(address: str) -> str:
    """One form of an address: a socket that takes both families has IPv4 peers as `::ffff:10.0.0.1`, which
    lie in no IPv4 network. What is no address stays as it is."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


def _client_behind(peer: str, forwarded: Sequence[str], trusted: Sequence[Network]) -> str:
    hops = [hop.strip() for line in forwarded for hop in line.split(",")]
    client = peer
    for hop in reversed(hops):
        try:
            ipaddress.ip_address(hop)
        except ValueError:
            return client
        client = _plain(hop)
        if not _is_trusted(client, trusted):
            return client
    return client
