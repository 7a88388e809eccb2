"""What a handler is given."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest
from starlette.requests import Request

from fastllm_control.access import Actor
from fastllm_control.app import Services
from fastllm_control.operations import VERSION_HEADER, Call, Operation
from fastllm_control.transaction import Database


def make_call() -> Call:
    services = cast(Services, None)
    request = Request({"type": "http", "headers": []})
    return Call(services, Actor("x", "job"), request, {"id": "a"}, None, None, None, "public")


def test_an_operation_without_a_transaction_cannot_reach_for_one() -> None:
    with pytest.raises(RuntimeError, match="without a transaction"):
        _ = make_call().tx


async def test_the_version_of_a_transaction_of_ones_own(database: Database) -> None:
    call = make_call()
    async with database.begin(call.actor) as unchanged:
        pass
    call.report_version(unchanged)
    assert call.response_headers == {}
    async with database.begin(call.actor) as changed:
        changed.content_changed()
    call.report_version(changed)
    assert call.response_headers == {VERSION_HEADER: str(changed.version)}


def test_operations_are_constants() -> None:
    async def handler(_: Call) -> None:
        return None

    operation = Operation(method="GET", path="/x", requires="public", summary="x", handler=handler)
    assert (operation.status, operation.transaction, operation.max_body_bytes) == (200, True, 1 << 20)
    with pytest.raises(AttributeError):
        operation.path = "/y"  # type: ignore[misc]
    assert msgspec.structs.replace(operation, path="/y").path == "/y"
