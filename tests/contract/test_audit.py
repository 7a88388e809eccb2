"""Every write has exactly one audit event, which says who did what to what; what is refused has none; and no
output whatever shows a secret.

An operation that is added fails here until a module `writes_*` has a scenario of it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import msgspec
import pytest
import pytest_asyncio

from fastllm_control.access import VERBS
from fastllm_control.api.everything import OPERATIONS
from fastllm_control.operations import Operation
from fastllm_control.transaction import SECRET_SET
from tests.contract import writes_access, writes_configuration, writes_declared, writes_pools, writes_routing
from tests.contract.audited import Scenario, Stage, Write, leaks
from tests.fakes.control_plane import Answer
from tests.fakes.database import TestDatabases

pytestmark = pytest.mark.asyncio(loop_scope="module")

WRITES: dict[str, Scenario] = {
    **writes_access.WRITES,
    **writes_configuration.WRITES,
    **writes_declared.WRITES,
    **writes_pools.WRITES,
    **writes_routing.WRITES,
}
OPERATION_OF = {f"{one.method} {one.path}": one for one in OPERATIONS if one.method != "GET"}
every_write = pytest.mark.parametrize("name", OPERATION_OF)
STABLE_VERB = re.compile(r"[a-z_]+\.[a-z_]+")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def stage(databases: TestDatabases, migrated_template: str) -> AsyncIterator[Stage]:
    name = databases.create(template=migrated_template)
    async with Stage.start(databases.url(name)) as made:
        yield made
    databases.drop(name)


async def _prepared(stage: Stage, name: str) -> Write:
    assert name in WRITES, f"{name} has no scenario: add one to tests/contract/writes_….py"
    return await WRITES[name](stage)


async def test_there_is_no_scenario_of_nothing() -> None:
    assert set(WRITES) <= set(OPERATION_OF)


@every_write
async def test_a_write_leaves_exactly_one_event(stage: Stage, name: str) -> None:
    write = await _prepared(stage, name)
    before = await stage.trace()
    request_id = f"req-{uuid4()}"
    answer = await stage.send(OPERATION_OF[name].method, write, {"x-request-id": request_id})
    assert answer.status == OPERATION_OF[name].status, answer.body
    assert answer.headers["x-request-id"] == request_id
    after = await stage.trace()
    if write.action is None:
        assert (after, answer.version) == (before, None)
        return
    assert after.events == before.events + 1
    (event,) = await stage.events_of(request_id)
    told = (event.actor, event.via, event.action, event.target_kind, event.target_name, event.address)
    assert told == (write.actor, write.via, write.action, write.kind, write.name, "127.0.0.1")
    assert STABLE_VERB.fullmatch(event.action)
    assert event.actor_id is not None
    assert event.target_id == (write.target_id or _id_of(answer, event.target_id))
    assert set(event.changes) == write.fields
    for change in event.changes.values():
        assert set(change) == {"before", "after"}
        assert change["before"] != change["after"] or change["after"] == SECRET_SET
    assert event.version == answer.version
    assert (after.version > before.version) == write.content == (answer.version is not None)
    if write.content:
        assert answer.version == after.version


def _id_of(answer: Answer, otherwise: str | None) -> str | None:
    """What was made says its id; of a login and a rebuild nothing was made that has one."""
    found: str | None = answer.json.get("id", otherwise) if isinstance(answer.json, dict) else otherwise
    return found


@every_write
async def test_the_same_write_again_leaves_one_more_only_if_it_changed_something(
    stage: Stage, name: str
) -> None:
    write, method = await _prepared(stage, name), OPERATION_OF[name].method
    assert (await stage.send(method, write)).status < 300
    before = await stage.trace()
    answer = await stage.send(method, write)
    after = await stage.trace()
    if write.again == "another":
        assert (answer.status, after.events) == (OPERATION_OF[name].status, before.events + 1)
        return
    assert answer.status in ((404, 409) if write.again == "refused" else (200, 201)), answer.body
    assert (after, answer.version) == (before, None)


@every_write
async def test_the_same_write_many_times_at_once(stage: Stage, name: str) -> None:
    """Exactly one of them does it, unless each is another change; none meets a defect."""
    write, operation = await _prepared(stage, name), OPERATION_OF[name]
    before = await stage.trace()
    answers = await asyncio.gather(*(stage.send(operation.method, write) for _ in range(5)))
    after = await stage.trace()
    passed = [answer for answer in answers if answer.status == operation.status]
    refused = {answer.status for answer in answers if answer.status >= 400}
    assert refused <= {404, 409}, [answer.body for answer in answers]
    versions = [answer.version for answer in passed if answer.version is not None]
    if write.action is None:
        assert (after, versions, refused) == (before, [], set())
        return
    made = len(passed) if write.again == "another" else 1
    assert after.events == before.events + made
    assert len(set(versions)) == len(versions) == (made if write.content else 0)
    assert len(passed) == 1 if write.again == "refused" else passed


@every_write
async def test_a_refused_write_leaves_nothing(stage: Stage, name: str) -> None:
    write, operation = await _prepared(stage, name), OPERATION_OF[name]
    before = await stage.trace()
    for status, refused in _refusals(stage, write, operation):
        answer = await stage.send(operation.method, refused)
        assert answer.status == status, (status, refused.path, answer.body)
        assert (await stage.trace(), answer.version) == (before, None), answer.body
    if write.action is not None:
        # The write itself still passes: nothing of the refused ones stands in its way.
        assert (await stage.send(operation.method, write)).status == operation.status


def _refusals(stage: Stage, write: Write, operation: Operation) -> list[tuple[int, Write]]:
    change = msgspec.structs.replace
    found = []
    if operation.requires != "public":
        found.append((401, change(write, token=None, cookie=None)))
        found.append((401, change(write, token="sk-unknown")))
    if operation.requires in VERBS and operation.requires not in ("config:read", "usage:read"):
        found.append((403, change(write, token=stage.viewer)))
    if operation.requires == "proxy":
        found.append((403, change(write, token="")))
    if operation.method in ("POST", "PUT", "PATCH"):
        found.append((400, change(write, body=None, raw=b'{"no_such_field": 1')))
        found.append((413, change(write, body=None, raw=b" " * (operation.max_body_bytes + 1))))
    if "{id}" in operation.path:
        found.append((404, change(write, path=operation.path.replace("{id}", str(uuid4())))))
    return found


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def played(databases: TestDatabases, migrated_template: str) -> AsyncIterator[Stage]:
    """Everything that is written with a secret in it was written here, rightly, again, and wrongly."""
    name = databases.create(template=migrated_template)
    async with Stage.start(databases.url(name)) as stage:
        for operation, scenario in WRITES.items():
            write = await scenario(stage)
            await stage.send(OPERATION_OF[operation].method, write)
            await stage.send(OPERATION_OF[operation].method, write)
            await _send_wrongly(stage, OPERATION_OF[operation].method, write)
        for query in (
            "SELECT encode(digest, 'hex') FROM api_keys UNION SELECT encode(digest, 'hex') FROM sessions",
            "SELECT password_hash FROM principals WHERE password_hash <> ''",
            "SELECT credential FROM providers WHERE credential <> ''",
            "SELECT extra_headers FROM providers WHERE extra_headers <> ''",
        ):
            found = {secret for (secret,) in await stage.rows(query)}
            assert found
            stage.secrets |= found
        yield stage
    databases.drop(name)


async def test_no_answer_to_a_write_and_no_log_line_shows_a_secret(played: Stage) -> None:
    assert len(played.answers) > 150
    found = [leak for body in played.answers for leak in leaks(played, "answer", body.decode())]
    found += [leak for entry in played.plane.log.entries for leak in leaks(played, "log", repr(entry))]
    assert not found


async def test_no_row_that_tells_of_changes_shows_a_secret(played: Stage) -> None:
    for table in ("audit_events", "published_snapshots"):
        rows = await played.rows(f"SELECT row_to_json(t)::text FROM {table} t")
        assert rows
        assert not [leak for (row,) in rows for leak in leaks(played, table, row)]


async def test_nothing_that_can_be_read_shows_a_secret(played: Stage) -> None:
    read = 0
    found: list[str] = []
    async for path, answer in _everything_to_read(played):
        read += answer.status == 200
        found += leaks(played, path, answer.body.decode() + str(answer.headers))
    assert read > 40
    assert not found


async def _send_wrongly(stage: Stage, method: str, write: Write) -> None:
    """Errors must not repeat what was sent."""
    if isinstance(write.body, dict):
        for field in write.body:
            wrong = {**write.body, field: {"nested": write.body[field]}}
            await stage.send(method, msgspec.structs.replace(write, body=wrong))
        await stage.send(method, msgspec.structs.replace(write, body={**write.body, "no_such": 1}))


async def _everything_to_read(stage: Stage) -> AsyncIterator[tuple[str, Answer]]:
    """Every GET, at two things of each collection. `/snapshot` is meant to hold credentials."""
    for operation in OPERATIONS:
        if operation.method != "GET" or operation.path == "/snapshot":
            continue
        collection = operation.path.partition("/{")[0]
        for path in await _paths(stage, operation.path, collection):
            yield path, await stage.plane.call("GET", path)


async def _paths(stage: Stage, template: str, collection: str) -> list[str]:
    if "{" not in template:
        return [template, f"{template}?limit=200"]
    listed = await stage.plane.call("GET", f"{collection}?limit=200")
    rows: list[dict[str, Any]] = listed.json["rows"] if listed.status == 200 else []
    if collection == "/admin/backends":
        models = (await stage.plane.call("GET", "/admin/provider-models?limit=200")).rows
        rows = [backend for model in models for backend in model["backends"]]
    elif collection == "/admin/rules":
        rows = await _rules(stage)
    elif collection == "/admin/snapshots":
        versions = [row["version"] for row in rows]
        return [re.sub(r"\{\w+\}", "%s", template) % (versions[-1], versions[0])]
    assert rows, f"nothing is listed at {collection}: say here where to find an id for {template}"
    return [template.replace("{id}", row["id"]) for row in rows[-2:]]


async def _rules(stage: Stage) -> list[dict[str, Any]]:
    models = (await stage.plane.call("GET", "/admin/frontend-models?limit=200")).rows
    found = []
    for model in models:
        listed = await stage.plane.call("GET", f"/admin/frontend-models/{model['id']}/rules")
        found += listed.json["rows"]
    return found


async def test_nothing_was_a_defect(stage: Stage) -> None:
    assert not stage.plane.log.events("request failed")
