"""The proxies' channel, and what operators see of it.

A snapshot holds usable credentials: only the proxy token opens it, and over plain HTTP it leaves this machine
only where the operator said so.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession
from starlette.requests import Request
from starlette.responses import Response

from fastllm_control.api.audit import AuditRow, audit_row
from fastllm_control.errors import Forbidden, Unavailable
from fastllm_control.naming import missing
from fastllm_control.operations import Call, Operation
from fastllm_control.paging import Page, PageQuery, page_of
from fastllm_control.publisher import Published
from fastllm_control.repositories import audit, published_snapshots
from fastllm_control.repositories.published_snapshots import SnapshotRow
from fastllm_control.snapshot import Dropped
from fastllm_shared.snapshot import SNAPSHOT_CONTENT_TYPE

LONGEST_WAIT_SECONDS = 60.0
_VERSION = re.compile(r"[0-9]{1,18}")
_ETAG = re.compile(r'\s*(?:W/)?"([0-9]{1,19})"\s*')
_GZIP = re.compile(r"\s*(?:gzip|\*)\s*(?:;\s*q=(?!0(?:\.0*)?\s*$).*)?")


class SnapshotQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`wait` holds the answer back, seconds, until there is something newer than `If-None-Match` names."""

    wait: Annotated[float, msgspec.Meta(ge=0, le=LONGEST_WAIT_SECONDS)] = 0.0


class RebuildResult(msgspec.Struct, frozen=True):
    """What is published when the rebuild is asked for: the new version is in the header."""

    snapshot_version: int | None
    snapshot_rebuild_failures: int
    last_error: str | None
    dropped: tuple[Dropped, ...]


async def get_snapshot(call: Call) -> Response:
    """The newest snapshot, 304 if the caller has it, 503 while there is none."""
    publisher = call.services.publisher
    known = _known_version(call.request.headers.get("if-none-match"))
    newer = await publisher.newer_than(known, call.query.wait)
    published = newer or publisher.current
    if published is None:
        raise Unavailable("not_ready", "no snapshot has been built yet")
    _refuse_plaintext(call, published)
    headers = {"etag": published.etag, "cache-control": "no-store", "vary": "accept-encoding"}
    if newer is None:
        return Response(b"", 304, headers)
    body = published.wire
    if _takes_gzip(call.request.headers.get("accept-encoding", "")):
        headers["content-encoding"] = "gzip"
        body = published.packed
    return Response(body, 200, headers, SNAPSHOT_CONTENT_TYPE)


async def list_snapshots(call: Call) -> Page[SnapshotRow]:
    query: PageQuery = call.query
    async with call.services.database.read() as session:
        rows = await published_snapshots.page(session, query.limit + 1, query.after_number())
    return page_of(rows, query.limit, lambda row: row.version)


async def diff(call: Call) -> Page[AuditRow]:
    """What leads from one version to the other; which of the two is named first makes no difference."""
    query: PageQuery = call.query
    async with call.services.database.read() as session:
        one, other = [await _version(session, call.path[name]) for name in ("a", "b")]
        versions = (min(one, other), max(one, other))
        found = await audit.between(session, query.limit + 1, query.after_number(), versions)
    return page_of([audit_row(row) for row in found], query.limit, lambda row: row.id)


async def _version(session: AsyncSession, text: str) -> int:
    """Raises `NotFound` for what is, or was, no version."""
    if _VERSION.fullmatch(text) is None or not await published_snapshots.is_known(session, int(text)):
        raise missing("snapshot", text)
    return int(text)


async def rebuild(call: Call) -> RebuildResult:
    """Takes a new version though nothing changed: every control plane builds it, every proxy loads it."""
    call.tx.audit("snapshot.rebuild", "snapshot")
    call.tx.content_changed()
    publisher = call.services.publisher
    published = publisher.current
    return RebuildResult(
        snapshot_version=published.version if published else None,
        snapshot_rebuild_failures=publisher.failures,
        last_error=publisher.last_error,
        dropped=published.dropped if published else (),
    )


def _known_version(header: str | None) -> int:
    """The version that the caller has, 0 if none. A version that is newer than ours counts as held: behind a
    load balancer the next control plane may be a moment behind the last one."""
    match = _ETAG.fullmatch(header or "")
    return 0 if match is None else int(match[1])


def _takes_gzip(accepted: str) -> bool:
    return any(_GZIP.fullmatch(part) for part in accepted.split(","))


def _refuse_plaintext(call: Call, published: Published) -> None:
    settings = call.services.settings
    if not published.has_credentials or settings.allow_plaintext_snapshot:
        return
    if call.request.url.scheme != "https" and not _is_on_this_machine(call.request):
        raise Forbidden(
            "plaintext_refused",
            "the snapshot holds credentials and is not sent over plain HTTP to another machine: serve TLS"
            " (--tls-cert, --tls-key), or accept it with --allow-plaintext-snapshot",
        )


def _is_on_this_machine(request: Request) -> bool:
    """By the connection's own peer, whatever headers say of who is behind it."""
    if request.client is None:
        return True  # a socket in the file system
    try:
        peer = ipaddress.ip_address(request.client.host.partition("%")[0])
    except ValueError:
        return False
    mapped = peer.ipv4_mapped if isinstance(peer, ipaddress.IPv6Address) else None
    return (mapped or peer).is_loopback


ROUTES = (
    Operation(
        method="GET",
        path="/snapshot",
        requires="proxy",
        summary="What a proxy serves from, as msgpack; `If-None-Match` and `wait` make it a long poll",
        handler=get_snapshot,
        query=SnapshotQuery,
        media=(SNAPSHOT_CONTENT_TYPE,),
        request_headers={
            "If-None-Match": "The version that the caller has, as a former answer's `ETag` wrote it",
            "Accept-Encoding": "`gzip` is understood",
        },
        response_headers={"ETag": "The version, in quotes"},
        also={304: "There is nothing newer than what the caller has"},
        transaction=False,
    ),
    Operation(
        method="GET",
        path="/admin/snapshots",
        requires="config:read",
        summary="Published versions, newest first, with the audit events that made each",
        handler=list_snapshots,
        query=PageQuery,
        result=Page[SnapshotRow],
    ),
    Operation(
        method="GET",
        path="/admin/snapshots/{a}/diff/{b}",
        requires="config:read",
        summary="The audit events between two versions, in the order in which they happened",
        handler=diff,
        query=PageQuery,
        result=Page[AuditRow],
        errors=(404,),
    ),
    Operation(
        method="POST",
        path="/admin/snapshots/rebuild",
        requires="config:write",
        summary="Build and publish a new version although nothing changed",
        handler=rebuild,
        result=RebuildResult,
        errors=(503,),
    ),
)
