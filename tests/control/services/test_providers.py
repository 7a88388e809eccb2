"""Providers beyond what the API shows: judgements without a database, and what is content."""

from __future__ import annotations

from typing import Any

import pytest

from fastllm_control.dial import DialResult, Endpoint
from fastllm_control.errors import Conflict, Invalid, NotFound
from fastllm_control.forms import NewProvider, ProviderPatch
from fastllm_control.secrets import Keyring, Undecryptable
from fastllm_control.services import principals, providers
from fastllm_control.transaction import Database
from fastllm_shared.addresses import AddressPolicy
from fastllm_shared.ids import uuid7
from tests.fakes.configuration import ACTOR, RING, Stock

POLICY = AddressPolicy()


def form(**changed: Any) -> NewProvider:
    return NewProvider(**{"name": "gpu-1", "api_base": "http://gpu-1:8000/v1", **changed})


async def patched(database: Database, **changed: Any) -> tuple[Any, int | None]:
    async with database.begin(ACTOR) as tx:
        row = await providers.change(tx, RING, "gpu-1", ProviderPatch(**changed))
    return row, tx.version


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"name": str(uuid7())}, "name"),
        ({"api_base": "http://169.254.169.254/"}, "api_base"),
        ({"ca": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}, "ca"),
        ({"extra_headers": {"AUTHORIZATION": "x"}}, "extra_headers.AUTHORIZATION"),
        ({"auth_header": "x-api-key", "extra_headers": {"X-Api-Key": "x"}}, "extra_headers.X-Api-Key"),
    ],
)
def test_what_can_be_judged_before_dialling(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        providers.check(form(**changed), POLICY)
    assert refused.value.field == field


def test_a_patch_is_judged_by_what_it_gives() -> None:
    providers.check(ProviderPatch(), POLICY)
    providers.check(ProviderPatch(ca=None, extra_headers=None), POLICY)
    with pytest.raises(Invalid):
        providers.check(ProviderPatch(api_base="http://0/"), POLICY)


def test_force_stores_the_silent_but_never_the_forbidden() -> None:
    silent = DialResult(False, reason="the connection is refused")
    with pytest.raises(Invalid) as refused:
        providers.refuse_unreachable(silent, force=False)
    assert refused.value.code == "provider_unreachable"
    providers.refuse_unreachable(silent, force=True)
    providers.refuse_unreachable(DialResult(True, 401), force=False)
    forbidden = DialResult(False, reason="the name resolves to …", forbidden=True)
    with pytest.raises(Invalid) as never:
        providers.refuse_unreachable(forbidden, force=True)
    assert (never.value.code, never.value.field) == ("address_refused", "api_base")


@pytest.mark.parametrize(
    ("result", "condition"),
    [
        (DialResult(True, 200), "ok"),
        (DialResult(True, 404), "ok"),
        (DialResult(True, 401), "needs_credential"),
        (DialResult(True, 403), "needs_credential"),
        (DialResult(False, 503), "unreachable"),
        (DialResult(False), "unreachable"),
    ],
)
def test_what_a_dial_says_of_the_condition(result: DialResult, condition: str) -> None:
    assert providers.condition_of(result) == condition


@pytest.mark.parametrize(
    ("api_base", "canonical"),
    [
        ("HTTP://GPU-1:80/v1/", "http://gpu-1:80/v1"),
        ("http://gpu-1/v1", "http://gpu-1:80/v1"),
        ("https://gpu-1.", "https://gpu-1:443"),
        ("http://[FD00::0001]:8000", "http://[fd00::1]:8000"),
    ],
)
def test_one_address_has_one_form(api_base: str, canonical: str) -> None:
    assert providers.canonical(api_base) == canonical


async def test_what_is_stored_is_what_is_dialled(database: Database) -> None:
    new = form(
        upstream_api_key="sk",
        extra_headers={"x-org": "1"},
        auth_header="x-api-key",
        auth_scheme="",
        protocol="both",
        server_name="engine.test",
    )
    async with database.begin(ACTOR) as tx:
        row = await providers.create(tx, RING, new, DialResult(True, 200))
    before, after = providers.endpoint_of(new), providers.stored_endpoint(row, RING)
    names = Endpoint.__struct_fields__
    assert [getattr(before, name) for name in names] == [getattr(after, name) for name in names]
    assert (row.address, providers.header_names(row, RING)) == ("http://gpu-1:8000/v1", ["x-org"])
    other = Keyring.parse("cd" * 32)
    with pytest.raises(Undecryptable):
        providers.stored_endpoint(row, other)
    assert providers.header_names(row, other) is None


async def test_owner_and_reason_are_no_content(database: Database, stock: Stock) -> None:
    await stock.provider("gpu-1")
    async with database.begin(ACTOR) as tx:
        await principals.create(tx, "fleet", "service_account")
    _, version = await patched(database, kind="dynamic")
    assert version is not None
    row, version = await patched(database, owner="fleet", state_reason="why")
    assert (row.state_reason, version) == ("why", None)
    assert row.owner_id is not None


async def test_taking_a_provider_back_clears_lease_owner_and_degradation(
    database: Database, stock: Stock
) -> None:
    await stock.provider("gpu-1")
    async with database.begin(ACTOR) as tx:
        await principals.create(tx, "fleet", "service_account")
    row, _ = await patched(database, kind="dynamic", owner="fleet")
    async with database.begin(ACTOR) as tx:
        row = await providers.require(tx.session, "gpu-1")
        row.condition, row.reason = "degraded", "lease lapsed"
        row.lease_ttl_seconds, row.agent_draining, row.failed_probes = 90, True, 2
    row, _ = await patched(database, kind="static")
    assert (row.condition, row.reason, row.owner_id, row.lease_ttl_seconds) == ("ok", None, None, None)
    assert (row.agent_draining, row.failed_probes) == (False, 0)


async def test_a_cloud_provider_stays_one(database: Database, stock: Stock) -> None:
    await stock.provider("gpu-1", kind="cloud")
    for kind in ("dynamic", "static"):
        with pytest.raises(Conflict) as refused:
            await patched(database, kind=kind)
        assert refused.value.field == "kind"


async def test_headers_do_not_follow_to_another_host_either(database: Database, stock: Stock) -> None:
    await stock.provider("gpu-1", upstream_api_key="sk", extra_headers={"x-key": "y"})
    elsewhere = "http://gpu-2:8000/v1"
    with pytest.raises(Invalid) as refused:
        await patched(database, api_base=elsewhere, upstream_api_key="other")
    assert refused.value.field == "extra_headers"
    row, _ = await patched(database, api_base=elsewhere, upstream_api_key=None, extra_headers=None)
    assert (row.address, row.credential, row.extra_headers) == (elsewhere, None, None)


async def test_a_dial_by_hand_leaves_a_leased_provider_to_the_sweep(database: Database, stock: Stock) -> None:
    identity = await stock.provider("gpu-1")
    for kind, condition in (("static", "unreachable"), ("dynamic", "unreachable")):
        async with database.begin(ACTOR) as tx:
            await providers.note_dial(tx.session, identity, DialResult(False, 503, "answers 503"))
        assert tx.version is None
        row, _ = await patched(database, kind="dynamic")
        assert (row.condition, row.reason) == (condition, "answers 503"), kind
    async with database.begin(ACTOR) as tx:
        await providers.note_dial(tx.session, identity, DialResult(True, 200))
        row = await providers.require(tx.session, "gpu-1")
        assert row.condition == "unreachable"
        await providers.note_dial(tx.session, uuid7(), DialResult(True, 200))  # gone meanwhile


async def test_what_is_not_there(database: Database) -> None:
    async with database.begin(ACTOR) as tx:
        for reference in ("nothing", str(uuid7())):
            with pytest.raises(NotFound):
                await providers.require(tx.session, reference)
            with pytest.raises(NotFound):
                await providers.delete(tx, reference, force=True)


def test_what_cannot_be_read_is_not_reachable() -> None:
    result = providers.unreadable(Undecryptable("sealed with key abc"))
    assert not result.reachable
    assert "sealed with key abc" in (result.reason or "")
