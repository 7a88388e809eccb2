"""Every operation, whatever its domain, against callers without right and input without sense.

The cases come from the operations themselves: a route that is added is covered by being added.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import NamedTuple
from uuid import uuid4

import msgspec
import pytest
import pytest_asyncio

from fastllm_control.access import VERBS
from fastllm_control.api.everything import OPERATIONS
from fastllm_control.openapi import PERMISSION, document
from fastllm_control.operations import Operation
from tests.contract.bad_input import CANARY, Case, field_bodies, queries, sample_body, whole_bodies
from tests.fakes.control_plane import PASSWORD, PROXY_TOKEN, Answer, ControlPlane
from tests.fakes.database import TestDatabases

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Stage(NamedTuple):
    """One control plane for all cases, and callers who may too little."""

    plane: ControlPlane
    nobody: str
    nobody_session: str
    invoke_only: str

    def right_token(self, operation: Operation) -> str | None:
        """What opens the operation."""
        return {"proxy": PROXY_TOKEN, "public": None}.get(operation.requires, self.plane.admin_key)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def stage(databases: TestDatabases, migrated_template: str) -> AsyncIterator[Stage]:
    name = databases.create(template=migrated_template)
    async with _stage(databases.url(name)) as made:
        yield made
    databases.drop(name)


@asynccontextmanager
async def _stage(url: str) -> AsyncIterator[Stage]:
    async with ControlPlane.start(url) as plane:
        await plane.principal("nobody")
        await plane.call("PUT", "/admin/principals/nobody/password", {"password": PASSWORD})
        key = await plane.key_of("nobody")
        yield Stage(plane, key, await plane.log_in("nobody"), await plane.key_of("root", "invoke"))


def _name(operation: Operation) -> str:
    return f"{operation.method} {operation.path}"


def _path(operation: Operation, identity: str) -> str:
    path = operation.path
    for part in path.split("/"):
        if part.startswith("{"):
            path = path.replace(part, identity)
    return path


def _faults(answer: Answer, case: Case, plane: ControlPlane) -> Iterable[str]:
    """What is wrong with the answer to a case."""
    if answer.status >= 500:
        yield f"{answer.status}: {answer.body[:300]!r}"
        return
    if answer.status < 400:
        if case.sure:
            yield f"accepted: {answer.body[:300]!r}"
        return
    yield from _shape_faults(answer)
    if case.sure and answer.status != 400:
        yield f"status {answer.status}, not 400: {answer.body[:300]!r}"
    field = answer.error["field"]
    named = case.field is None or (field is not None and field.startswith(case.field))
    if answer.status == 400 and case.sure and not named:
        yield f"names {field!r}, not {case.field!r}: {answer.error['message']}"
    if CANARY in answer.body.decode() or CANARY in str(plane.log.entries):
        yield f"what was sent comes back: {answer.body[:300]!r}"


def _shape_faults(answer: Answer) -> Iterable[str]:
    error = answer.error
    if set(error) != {"code", "message", "field", "request_id"} or not error["code"] or not error["message"]:
        yield f"not the shape of errors: {error}"
    if error["request_id"] != answer.headers["x-request-id"]:
        yield "another request id than in the header"
    if len(answer.body) > 2000:
        yield f"an error of {len(answer.body)} bytes"


async def _send(stage: Stage, operation: Operation, case: Case, *, query: bool = False) -> list[str]:
    path = _path(operation, str(uuid4()))
    if query:
        path += "?" + case.sent.decode("latin-1")
    raw = sample_body(operation) if query else case.sent
    answer = await stage.plane.call(
        operation.method,
        path,
        token=stage.right_token(operation),
        raw=raw if operation.method != "GET" else None,
    )
    return [f"{case.why}: {fault}" for fault in _faults(answer, case, stage.plane)]


every_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=_name)
every_write = pytest.mark.parametrize("operation", [op for op in OPERATIONS if op.method != "GET"], ids=_name)
guarded = pytest.mark.parametrize(
    "operation", [op for op in OPERATIONS if op.requires != "public"], ids=_name
)
permitted = pytest.mark.parametrize("operation", [op for op in OPERATIONS if op.requires in VERBS], ids=_name)
placed = pytest.mark.parametrize("operation", [op for op in OPERATIONS if "{" in op.path], ids=_name)


@every_operation
async def test_every_route_names_who_may_call_it(operation: Operation) -> None:
    assert operation.requires in VERBS | {"public", "any_principal", "session", "proxy"}
    described = document(OPERATIONS)["paths"][operation.path][operation.method.lower()]
    assert described[PERMISSION] == operation.requires
    if operation.path.startswith("/admin"):
        assert operation.requires not in ("public", "proxy")


@guarded
async def test_without_proof_it_is_401(stage: Stage, operation: Operation) -> None:
    path, body = _path(operation, str(uuid4())), sample_body(operation) or None
    raw = body if operation.method != "GET" else None
    for headers in (
        {},
        {"authorization": "Bearer sk-unknown"},
        {"authorization": "Basic eDp5"},
        {"authorization": "Bearer"},
        {"cookie": "fastllm_session=unknown"},
        {"authorization": "Bearer " + "\udcff".encode("utf-8", "surrogateescape").decode("latin-1")},
    ):
        answer = await stage.plane.call(operation.method, path, token=None, headers=headers, raw=raw)
        assert answer.status == 401, (headers, answer.body)
        assert not list(_shape_faults(answer))


@permitted
async def test_without_the_permission_it_is_403(stage: Stage, operation: Operation) -> None:
    path = _path(operation, str(uuid4()))
    raw = sample_body(operation) or None if operation.method != "GET" else None
    for token in (stage.nobody, stage.invoke_only, PROXY_TOKEN):
        answer = await stage.plane.call(operation.method, path, token=token, raw=raw)
        assert (answer.status, answer.error["code"]) == (403, "forbidden")
    answer = await stage.plane.call(operation.method, path, cookie=stage.nobody_session, raw=raw)
    assert (answer.status, answer.error["code"]) == (403, "forbidden")
    assert not list(_shape_faults(answer))


@pytest.mark.parametrize("operation", [op for op in OPERATIONS if op.requires == "proxy"], ids=_name)
async def test_the_proxies_channel_is_the_proxies(stage: Stage, operation: Operation) -> None:
    raw = sample_body(operation) or None if operation.method != "GET" else None
    for token in (stage.plane.admin_key, stage.invoke_only):
        answer = await stage.plane.call(operation.method, operation.path, token=token, raw=raw)
        assert answer.status == 403


@every_write
async def test_bodies_that_are_wrong_as_a_whole(stage: Stage, operation: Operation) -> None:
    faults = [fault for case in whole_bodies(operation) for fault in await _send(stage, operation, case)]
    assert not faults


@every_write
async def test_fields_that_are_wrong(stage: Stage, operation: Operation) -> None:
    faults = [fault for case in field_bodies(operation) for fault in await _send(stage, operation, case)]
    assert not faults


@every_write
async def test_bodies_that_are_too_large(stage: Stage, operation: Operation) -> None:
    huge = b" " * (operation.max_body_bytes + 1)
    path = _path(operation, str(uuid4()))
    answer = await stage.plane.call(operation.method, path, token=stage.right_token(operation), raw=huge)
    assert (answer.status, answer.error["code"]) == (413, "body_too_large")


@every_operation
async def test_queries_that_are_wrong(stage: Stage, operation: Operation) -> None:
    faults = [
        fault for case in queries(operation) for fault in await _send(stage, operation, case, query=True)
    ]
    assert not faults


@placed
async def test_ids_that_are_wrong(stage: Stage, operation: Operation) -> None:
    raw = sample_body(operation) or None if operation.method != "GET" else None
    for identity, statuses in (
        (str(uuid4()), (400, 404)),
        ("no-such-name", (400, 404)),
        ("a%2Fb%3F%23", (400, 404)),
        ("a/b//c", (400, 404)),
        ("0" * 5000, (400, 404)),
        ("x" * 9000, (404,)),
        ("%F0%9F%A6%99", (400, 404)),
        ("a%00b", (400,)),
        ("%ff", (400,)),
    ):
        answer = await stage.plane.call(
            operation.method, _path(operation, identity), token=stage.right_token(operation), raw=raw
        )
        assert answer.status in statuses, (identity[:20], answer.status, answer.body[:300])
        assert not list(_shape_faults(answer))


@pytest.mark.parametrize("path", sorted({op.path for op in OPERATIONS}))
async def test_other_methods_are_405_and_name_those_that_are_allowed(stage: Stage, path: str) -> None:
    allowed: set[str] = {op.method for op in OPERATIONS if op.path == path}
    concrete = path.replace("{id}", str(uuid4()))
    if "GET" in allowed:
        allowed.add("HEAD")
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"} - allowed:
        answer = await stage.plane.call(method, concrete)
        assert answer.status == 405, method
        assert set(answer.headers["allow"].split(", ")) == allowed
        assert not list(_shape_faults(answer))


async def test_bodies_refuse_unknown_fields_by_declaration() -> None:
    for operation in OPERATIONS:
        for kind in (operation.body, operation.query):
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                assert kind.__struct_config__.forbid_unknown_fields, _name(operation)


async def test_nothing_was_a_defect(stage: Stage) -> None:
    assert not stage.plane.log.events("request failed")
