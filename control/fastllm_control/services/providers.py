"""Providers: where requests can be sent, and with what credential.

Dialling comes before the transaction, since it may take seconds: `check`, then `Dialer.dial`, then `create`.
"""

from __future__ import annotations

import datetime
import ssl
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from fastllm_control.dial import DialResult, Endpoint
from fastllm_control.errors import Conflict, Invalid
from fastllm_control.forms import NewProvider, ProviderPatch
from fastllm_control.naming import missing, refuse_uuid
from fastllm_control.provider_secrets import open_credential, open_headers, seal_credential, seal_headers
from fastllm_control.repositories import principals, providers
from fastllm_control.secrets import Keyring, Undecryptable
from fastllm_control.services.changes import apply, change_state, created, given
from fastllm_control.tables.configuration import Provider
from fastllm_control.transaction import SECRET_CLEARED, SECRET_SET, Change, Transaction
from fastllm_shared.addresses import AddressPolicy, parse_url
from fastllm_shared.ids import uuid7

_AUDITED = (
    "kind",
    "api_base",
    "protocol",
    "auth_header",
    "auth_scheme",
    "stream_usage",
    "ca",
    "server_name",
    "condition",
)
_PLAIN = ("protocol", "auth_header", "auth_scheme", "stream_usage", "ca", "server_name")
_NOT_CONTENT = frozenset({"owner", "state_reason"})


def check(form: NewProvider | ProviderPatch, addresses: AddressPolicy) -> None:
    """Everything that can be judged without the database. Raises `Invalid` naming the field."""
    values = given(form)
    if "name" in values:
        refuse_uuid(values["name"])
    if "api_base" in values and (problem := addresses.check_url(values["api_base"])) is not None:
        raise Invalid("address_refused", f"the address {problem}", "api_base")
    if values.get("ca") is not None:
        _check_certificates(values["ca"])
    header = str(values.get("auth_header", "")).lower()
    for name in values.get("extra_headers") or {}:
        if name.lower() == header:
            raise Invalid("invalid_value", "that header carries the credential", f"extra_headers.{name}")


def refuse_unreachable(result: DialResult, *, force: bool) -> None:
    """Raises `Invalid` for a provider that did not answer; `force` lets all pass but forbidden addresses."""
    if result.forbidden:
        raise Invalid("address_refused", result.reason or "the address may not be dialled", "api_base")
    if not result.reachable and not force:
        message = f"the provider does not answer: {result.reason}; `?force=true` stores it all the same"
        raise Invalid("provider_unreachable", message, "api_base")


def endpoint_of(form: NewProvider) -> Endpoint:
    """What to dial for a provider that is not stored yet."""
    return Endpoint(
        api_base=form.api_base,
        protocol=form.protocol,
        credential=form.upstream_api_key,
        auth_header=form.auth_header,
        auth_scheme=form.auth_scheme,
        extra_headers=form.extra_headers,
        ca=form.ca,
        server_name=form.server_name,
    )


def stored_endpoint(row: Provider, ring: Keyring) -> Endpoint:
    """What to dial for a stored provider; raises `Undecryptable`."""
    form = {name: getattr(row, name) for name in ("api_base", *_PLAIN) if name != "stream_usage"}
    secret = {
        "credential": open_credential(ring.open, row.id, row.credential),
        "extra_headers": open_headers(ring.open, row.id, row.extra_headers),
    }
    return msgspec.convert({**form, **secret}, Endpoint)


def condition_of(result: DialResult) -> str:
    """The condition that a dial finds a provider in."""
    if not result.reachable:
        return "unreachable"
    return "needs_credential" if result.needs_credential else "ok"


async def require(session: AsyncSession, reference: str, *, lock: bool = False) -> Provider:
    """By id or name; raises `NotFound`."""
    row = await providers.find(session, reference, lock=lock)
    if row is None:
        raise missing("provider", reference)
    return row


async def create(tx: Transaction, ring: Keyring, form: NewProvider, result: DialResult) -> Provider:
    """Store a provider that was checked and dialled."""
    await _refuse_taken(tx, form.name)
    identity = uuid7()
    api_base = form.api_base.rstrip("/")
    row = Provider(
        id=identity,
        name=form.name,
        kind=form.kind,
        api_base=api_base,
        address=canonical(api_base),
        credential=seal_credential(ring, identity, form.upstream_api_key),
        extra_headers=seal_headers(ring, identity, form.extra_headers),
        condition=condition_of(result),
        reason=result.reason,
        last_probe_at=datetime.datetime.now(datetime.UTC),
        state="active",
        **{name: getattr(form, name) for name in _PLAIN},
    )
    tx.session.add(row)
    state = change_state(tx.actor, row, {"state": form.state, "state_reason": form.state_reason})
    changes = created(row, _AUDITED) | state
    if row.credential is not None:
        changes["upstream_api_key"] = Change(None, SECRET_SET)
    if row.extra_headers is not None:
        changes["extra_headers"] = Change(None, sorted(form.extra_headers))
    tx.audit("provider.create", "provider", row.id, row.name, changes)
    tx.content_changed()
    await tx.session.flush()
    await tx.session.refresh(row)
    return row


async def change(tx: Transaction, ring: Keyring, reference: str, patch: ProviderPatch) -> Provider:
    """Change what `patch` gives."""
    row = await require(tx.session, reference, lock=True)
    values = given(patch)
    changes: dict[str, Change] = {}
    if "kind" in values:
        changes |= _change_kind(row, values["kind"])
    if "name" in values and values["name"] != row.name:
        await _refuse_rename(tx, row, values["name"])
        changes |= apply(row, {"name": values["name"]})
    if "api_base" in values:
        changes |= _move(row, values)
    if "owner" in values:
        changes |= await _change_owner(tx, row, values["owner"])
    changes |= apply(row, {name: values[name] for name in _PLAIN if name in values})
    changes |= _change_secrets(ring, row, values)
    changes |= change_state(tx.actor, row, values)
    if changes:
        row.updated_at = datetime.datetime.now(datetime.UTC)
        tx.audit("provider.update", "provider", row.id, row.name, changes)
    if changes.keys() - _NOT_CONTENT:
        tx.content_changed()
    return row


async def delete(tx: Transaction, reference: str, *, force: bool) -> Provider:
    """Remove a provider and its backends; provider models, targets, grants and usage stay."""
    row = await require(tx.session, reference, lock=True)
    served = await providers.models_served(tx.session, row.id)
    if served and not force:
        message = f"it still serves {', '.join(served)}; `?force=true` deletes it with its backends"
        raise Conflict("provider_in_use", message)
    changes: dict[str, Change] = {"api_base": Change(row.api_base, None)}
    if row.credential is not None:
        changes["upstream_api_key"] = Change(SECRET_SET, SECRET_CLEARED)
    if served:
        changes["provider_models"] = Change(list(served), None)
    tx.audit("provider.delete", "provider", row.id, row.name, changes)
    tx.content_changed()
    await tx.session.delete(row)
    return row


async def note_dial(session: AsyncSession, provider_id: UUID, result: DialResult) -> None:
    """Keep what a dial by hand found. A leased provider's condition belongs to the sweep, and decides what is
    served; of the others it only tells people, and is no content."""
    row = await session.get(Provider, provider_id, with_for_update=True)
    if row is None:
        return
    now = datetime.datetime.now(datetime.UTC)
    row.last_probe_at = now
    if row.kind == "dynamic":
        return
    if apply(row, {"condition": condition_of(result), "reason": result.reason}):
        row.condition_at = now


def header_names(row: Provider, ring: Keyring) -> list[str] | None:
    """The names of the extra headers, `None` if they cannot be read."""
    try:
        return sorted(open_headers(ring.open, row.id, row.extra_headers))
    except Undecryptable:
        return None


def unreadable(error: Undecryptable) -> DialResult:
    """The result for a provider whose credential does not open: it is not dialled."""
    return DialResult(False, reason=f"its credential cannot be read: {error}; set it again")


def canonical(api_base: str) -> str:
    """An address in the one form by which providers are compared."""
    url = parse_url(api_base)
    host = f"[{url.host}]" if ":" in url.host else url.host
    return f"{url.scheme}://{host}:{url.port}{url.path}"


def same_origin(one: str, other: str) -> bool:
    """Whether two addresses are of one host, port and scheme: what was given for one may go to the other."""
    a, b = parse_url(one), parse_url(other)
    return (a.scheme, a.host, a.port) == (b.scheme, b.host, b.port)


def _check_certificates(pem: str) -> None:
    try:
        ssl.create_default_context(cadata=pem)
    except (ssl.SSLError, ValueError, TypeError):  # TypeError: not ASCII
        raise Invalid("invalid_value", "must be one or more certificates as PEM", "ca") from None


async def _refuse_taken(tx: Transaction, name: str) -> None:
    if await providers.name_taken(tx.session, name):
        raise Conflict("already_exists", f"there is a provider {name!r} already", "name")


async def _refuse_rename(tx: Transaction, row: Provider, name: str) -> None:
    if row.kind == "dynamic":
        raise Conflict(
            "named_by_agent", "its agent names it with every beat: use the agent's --provider-name", "name"
        )
    await _refuse_taken(tx, name)


def _change_kind(row: Provider, kind: str) -> dict[str, Change]:
    if kind == row.kind:
        return {}
    if "cloud" in (kind, row.kind):
        raise Conflict("kind_fixed", f"a {row.kind} provider cannot become {kind}", "kind")
    # Handed over: the first principal to beat will own it. Taken back: lease and findings are void.
    void = ("owner_id", "lease_expires_at", "lease_ttl_seconds", "last_beat_at", "absent_since")
    apply(row, dict.fromkeys(void) | {"agent_draining": False, "failed_probes": 0})
    if row.condition == "degraded":
        apply(row, {"condition": "ok", "reason": None})
    return apply(row, {"kind": kind})


def _move(row: Provider, values: dict[str, Any]) -> dict[str, Change]:
    """Another address. A credential was given for the old one: it is not carried to another host silently."""
    api_base = values["api_base"].rstrip("/")
    if row.kind == "dynamic" and api_base != row.api_base:
        raise Conflict("address_by_agent", "its agent registers its address", "api_base")
    kept = (row.credential is not None and "upstream_api_key" not in values) or (
        row.extra_headers is not None and "extra_headers" not in values
    )
    if not same_origin(row.api_base, api_base) and kept:
        message = "what is stored was given for another host: send it again with the new address, or null"
        field = "extra_headers" if "upstream_api_key" in values else "upstream_api_key"
        raise Invalid("credential_for_another_host", message, field)
    row.address = canonical(api_base)
    return apply(row, {"api_base": api_base})


async def _change_owner(tx: Transaction, row: Provider, reference: str) -> dict[str, Change]:
    if row.kind != "dynamic":
        raise Conflict("not_leased", f"a {row.kind} provider has no owner", "owner")
    owner = await principals.find(tx.session, reference)
    if owner is None:
        raise Invalid("unknown_principal", f"there is no principal {reference!r}", "owner")
    before = await providers.owner_names(tx.session, [row])
    changed = apply(row, {"owner_id": owner.id})
    return {"owner": Change(next(iter(before.values()), None), owner.name)} if changed else {}


def _change_secrets(ring: Keyring, row: Provider, values: dict[str, Any]) -> dict[str, Change]:
    changes: dict[str, Change] = {}
    if "upstream_api_key" in values:
        wanted = values["upstream_api_key"]
        if not _holds(lambda: open_credential(ring.open, row.id, row.credential), wanted):
            changes["upstream_api_key"] = Change(
                None if row.credential is None else SECRET_SET,
                SECRET_CLEARED if wanted is None else SECRET_SET,
            )
            row.credential = seal_credential(ring, row.id, wanted)
    if "extra_headers" in values:
        headers = values["extra_headers"] or {}
        if not _holds(lambda: open_headers(ring.open, row.id, row.extra_headers), headers):
            before = None if row.extra_headers is None else SECRET_SET
            changes["extra_headers"] = Change(before, sorted(headers) or SECRET_CLEARED)
            row.extra_headers = seal_headers(ring, row.id, headers)
    return changes


def _holds(read: Any, wanted: object) -> bool:
    try:
        return bool(read() == wanted)
    except Undecryptable:
        return False
