"""Attempts to come to more than one holds, each over the socket, each refused, each without a trace."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Iterable
from urllib.parse import urlsplit

import pytest

from fastllm_control.access import VERBS
from tests.fakes.control_plane import PASSWORD, Answer, ControlPlane
from tests.fakes.edge import eventually
from tests.fakes.engine import Answer as EngineAnswer
from tests.fakes.engine import FakeEngine

OPERATOR = VERBS - {"access:write", "model:invoke"}
CLERK = ("access:write", "key:create", "key:revoke", "config:read")


@pytest.fixture
async def plane(database_url: str) -> AsyncIterator[ControlPlane]:
    async with ControlPlane.start(database_url) as started:
        yield started


async def somebody(plane: ControlPlane, name: str, verbs: Iterable[str]) -> str:
    """A person who holds a role of the same name with those permissions; returns an admin key."""
    await plane.role(name, *((verb, "model/*" if verb == "model:invoke" else "*") for verb in verbs))
    await plane.principal(name, name)
    return await plane.key_of(name)


@pytest.fixture
async def clerk(plane: ControlPlane) -> str:
    """The admin key of one who looks after people and keys, and may not touch models."""
    return await somebody(plane, "clerk", CLERK)


async def trace(plane: ControlPlane) -> tuple[object, ...]:
    """What a write would change: the newest audit event, and the version."""
    async with plane.services.database.engine.connect() as connection:
        event = (await connection.exec_driver_sql("SELECT max(id) FROM audit_events")).scalar()
        return event, (await connection.exec_driver_sql("SELECT version FROM config")).scalar()


async def refused(
    plane: ControlPlane,
    method: str,
    path: str,
    body: object = None,
    *,
    token: str = "",
    code: str = "more_than_held",
    status: int = 403,
) -> Answer:
    """Send it; it must be refused with `code` and leave nothing."""
    before = await trace(plane)
    answer = await plane.call(method, path, body, token=token)
    assert (answer.status, answer.error["code"]) == (status, code), answer.body
    assert await trace(plane) == before
    return answer


async def test_minting_an_admin_key_of_one_who_holds_more(plane: ControlPlane, clerk: str) -> None:
    operator = await somebody(plane, "op", OPERATOR)
    await plane.principal("nightly", "admin", kind="service_account")
    for token in (clerk, operator):
        for name in ("root", "nightly"):
            body = {"principal_id": name, "name": "mine", "scope": "admin"}
            await refused(plane, "POST", "/admin/keys", body, token=token)
    # What an operator is for: a key with which a team calls models.
    body = {"principal_id": "root", "name": "models only", "scope": "invoke"}
    made = await plane.call("POST", "/admin/keys", body, token=operator)
    assert made.status == 201
    assert (await plane.call("GET", "/admin/keys", token=made.json["key"])).status == 403


async def test_rotating_an_admin_key_of_one_who_holds_more(plane: ControlPlane, clerk: str) -> None:
    (key,) = [row for row in (await plane.call("GET", "/admin/keys")).rows if row["principal"] == "root"]
    await refused(plane, "POST", f"/admin/keys/{key['id']}/rotate", {"grace_seconds": 9}, token=clerk)
    await refused(plane, "POST", f"/admin/keys/{key['id']}/rotate", {}, token=clerk)


async def test_rotating_does_not_turn_an_invoke_key_into_an_admin_key(plane: ControlPlane) -> None:
    operator = await somebody(plane, "op", OPERATOR)
    body = {"principal_id": "root", "name": "k"}
    made = await plane.call("POST", "/admin/keys", body, token=operator)
    path = f"/admin/keys/{made.json['id']}/rotate"
    await refused(plane, "POST", path, {"scope": "admin"}, token=operator, code="unknown_field", status=400)
    successor = await plane.call("POST", path, {}, token=operator)
    assert successor.json["scope"] == "invoke"
    assert (await plane.call("GET", "/admin/keys", token=successor.json["key"])).status == 403


async def test_giving_a_role_that_holds_what_one_lacks(plane: ControlPlane, clerk: str) -> None:
    await plane.principal("friend")
    for role in ("admin", "operator", "inference"):
        for name in ("clerk", "friend"):
            await refused(plane, "POST", f"/admin/principals/{name}/roles", {"role": role}, token=clerk)


async def test_adding_to_a_role_what_one_lacks(plane: ControlPlane, clerk: str) -> None:
    """Above all to the role that one holds oneself."""
    await plane.role("empty")
    for role in ("clerk", "empty"):
        for verb, resource in (
            ("config:write", "*"),
            ("usage:read", "*"),
            ("model:invoke", "model/*"),
            ("model:invoke", "model/assistant"),
        ):
            body = {"verb": verb, "resource": resource}
            await refused(plane, "POST", f"/admin/roles/{role}/permissions", body, token=clerk)


async def test_a_grant_takes_holding_that_very_model(plane: ControlPlane) -> None:
    await plane.role("lead", ("access:write", "*"), ("model:invoke", "model/a"))
    await plane.principal("lead", "lead")
    key = await plane.key_of("lead")
    await plane.role("team")
    path = "/admin/roles/team/permissions"
    for resource in ("model/*", "model/b", "model/A", "model/a/b", "model/a%2Fb", "model/a "):
        await refused(plane, "POST", path, {"verb": "model:invoke", "resource": resource}, token=key)
    body = {"verb": "model:invoke", "resource": "model/a"}
    assert (await plane.call("POST", path, body, token=key)).status == 201


async def test_the_built_in_roles_cannot_be_changed_even_by_who_may_everything(plane: ControlPlane) -> None:
    for role in ("admin", "operator", "inference", "viewer"):
        body = {"verb": "config:write"}
        for method, path, sent in (
            ("POST", f"/admin/roles/{role}/permissions", body),
            ("DELETE", f"/admin/roles/{role}/permissions", body),
            ("PATCH", f"/admin/roles/{role}", {"name": "mine"}),
            ("DELETE", f"/admin/roles/{role}", None),
        ):
            await refused(plane, method, path, sent, code="built_in_role", status=409)


async def test_taking_the_name_of_a_role(plane: ControlPlane, clerk: str) -> None:
    """By making one, or by renaming one over it."""
    await plane.role("mine", ("access:write", "*"))
    for name in ("admin", "operator", "clerk"):
        for method, path in (("POST", "/admin/roles"), ("PATCH", "/admin/roles/mine")):
            taken = await refused(
                plane, method, path, {"name": name}, token=clerk, code="already_exists", status=409
            )
            assert taken.error["field"] == "name"


async def test_taking_the_name_of_a_principal(plane: ControlPlane, clerk: str) -> None:
    await plane.principal("second", "admin")
    for method, path in (("POST", "/admin/principals"), ("PATCH", "/admin/principals/clerk")):
        for name in ("root", "second"):
            await refused(plane, method, path, {"name": name}, token=clerk, code="already_exists", status=409)


async def test_setting_the_password_of_one_who_holds_more(plane: ControlPlane, clerk: str) -> None:
    await plane.principal("invoker", "inference")
    for name in ("root", "invoker"):
        body = {"password": "mine from now on"}
        await refused(plane, "PUT", f"/admin/principals/{name}/password", body, token=clerk)
    assert await plane.log_in("root", PASSWORD)


async def test_removing_or_renaming_one_who_holds_more(plane: ControlPlane, clerk: str) -> None:
    """Others are left who administer, so that this is not what refuses."""
    await plane.principal("second", "admin")
    await plane.key_of("second")
    for method, path, body in (
        ("DELETE", "/admin/principals/root", None),
        ("PATCH", "/admin/principals/root", {"name": "gone"}),
        ("DELETE", "/admin/principals/root/roles", {"role": "admin"}),
    ):
        await refused(plane, method, path, body, token=clerk)


async def test_emptying_a_role_that_holds_more(plane: ControlPlane, clerk: str) -> None:
    await plane.role("strong", ("config:write", "*"))
    for method, path, body in (
        ("DELETE", "/admin/roles/strong", None),
        ("DELETE", "/admin/roles/strong/permissions", {"verb": "config:write"}),
        ("PATCH", "/admin/roles/strong", {"name": "weak"}),
    ):
        await refused(plane, method, path, body, token=clerk)


async def test_a_leak_can_be_stopped_by_whoever_may_revoke(plane: ControlPlane) -> None:
    """Revoking takes nothing that the one who revokes could keep."""
    revoker = await somebody(plane, "guard", {"key:revoke", "access:write", "config:read"})
    await plane.principal("second", "admin")
    leaked = await plane.key_of("second")
    (row,) = (await plane.call("GET", "/admin/keys?principal=second")).rows
    assert (await plane.call("DELETE", f"/admin/keys/{row['id']}", token=revoker)).status == 200
    assert (await plane.call("GET", "/admin/keys", token=leaked)).status == 401
    cookie = await plane.log_in()
    (session,) = (await plane.call("GET", "/admin/sessions")).rows
    assert (await plane.call("DELETE", f"/admin/sessions/{session['id']}", token=revoker)).status == 200
    assert (await plane.call("GET", "/admin/sessions/current", cookie=cookie)).status == 401


async def test_an_administrators_invoke_key_opens_no_route_of_the_admin_api(plane: ControlPlane) -> None:
    key = await plane.key_of("root", "invoke")
    for method, path, body in (
        ("GET", "/admin/principals", None),
        ("POST", "/admin/principals", {"name": "x"}),
        ("POST", "/admin/keys", {"principal_id": "root", "name": "x", "scope": "admin"}),
        ("GET", "/admin/sessions/current", None),
        ("GET", "/admin/audit", None),
    ):
        await refused(plane, method, path, body, token=key, code="forbidden")


async def test_keys_that_are_revoked_or_have_expired(plane: ControlPlane) -> None:
    body = {"principal_id": "root", "name": "short", "scope": "admin"}
    now = plane.clock.now()
    past = await plane.call("POST", "/admin/keys", {**body, "expires_at": now.isoformat()})
    assert (past.status, past.error["field"]) == (400, "expires_at")
    revoked = await plane.call("POST", "/admin/keys", body)
    assert (await plane.call("DELETE", f"/admin/keys/{revoked.json['id']}")).status == 200
    until = (now + datetime.timedelta(hours=1)).isoformat()
    short = await plane.call("POST", "/admin/keys", {**body, "expires_at": until})
    assert (await plane.call("GET", "/admin/roles", token=short.json["key"])).status == 200
    plane.clock.advance(3601)
    for key in (revoked.json["key"], short.json["key"]):
        await refused(
            plane, "POST", "/admin/roles", {"name": "x"}, token=key, code="invalid_token", status=401
        )


async def test_what_is_taken_away_is_gone_for_sessions_and_keys_that_are_open(plane: ControlPlane) -> None:
    await plane.principal("ada", "admin")
    await plane.call("PUT", "/admin/principals/ada/password", {"password": PASSWORD})
    cookie, key = await plane.log_in("ada"), await plane.key_of("ada")
    assert (await plane.call("POST", "/admin/roles", {"name": "a"}, cookie=cookie)).status == 201
    gone = await plane.call("DELETE", "/admin/principals/ada/roles", {"role": "admin"})
    assert gone.status == 200
    proofs = ((None, cookie), (key, None))
    for token, session in proofs:
        answer = await plane.call("POST", "/admin/roles", {"name": "b"}, token=token, cookie=session)
        assert (answer.status, answer.error["code"]) == (403, "forbidden")
    assert (await plane.call("DELETE", "/admin/principals/ada")).status == 200
    for token, session in proofs:
        answer = await plane.call("GET", "/admin/sessions/current", token=token, cookie=session)
        assert answer.status == 401


async def test_a_new_password_ends_the_sessions_of_the_old_one(plane: ControlPlane) -> None:
    stolen = await plane.log_in()
    mine = await plane.log_in()
    body = {"password": "another one by now"}
    assert (await plane.call("PUT", "/admin/principals/root/password", body, cookie=mine)).status == 200
    assert (await plane.call("GET", "/admin/sessions/current", cookie=stolen)).status == 401
    assert (await plane.call("GET", "/admin/sessions/current", cookie=mine)).status == 200


async def test_a_body_that_is_long_on_its_way_does_not_keep_what_was_taken_meanwhile(
    plane: ControlPlane,
) -> None:
    """Let in at its head, and sent on only after the role was taken."""
    await plane.principal("ada", "admin")
    key = await plane.key_of("ada")
    address = urlsplit(plane.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    body = b'{"name": "late"}'
    head = (
        "POST /admin/roles HTTP/1.1\r\nHost: test\r\nConnection: close\r\n"
        f"Authorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body[:1])
    await writer.drain()
    for path in ("/admin/sessions/current", "/admin/roles"):  # the half-sent one is let in before these end
        assert (await plane.call("GET", path, token=key)).status == 200
    assert (await plane.call("DELETE", "/admin/principals/ada/roles", {"role": "admin"})).status == 200
    writer.write(body[1:])
    answer = await reader.read()
    writer.close()
    assert b" 403 " in answer.split(b"\r\n")[0]
    assert (await plane.call("GET", "/admin/roles/late")).status == 404


async def test_a_dial_that_takes_long_does_not_keep_what_was_taken_meanwhile(plane: ControlPlane) -> None:
    await plane.principal("ada", "admin")
    key = await plane.key_of("ada")
    async with FakeEngine.start() as engine:
        engine.script("/models", EngineAnswer(delay_to_head=0.5))
        body = {"name": "late", "api_base": engine.url}
        adding = asyncio.create_task(plane.call("POST", "/admin/providers", body, token=key))
        await eventually(lambda: bool(engine.requests))
        gone = await plane.call("DELETE", "/admin/principals/ada/roles", {"role": "admin"})
        assert gone.status == 200
        assert (await adding).status == 403
    assert (await plane.call("GET", "/admin/providers/late")).status == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://127.0.0.1:1"},
    ],
    ids=str,
)
async def test_another_sites_page_writes_nothing_with_my_session(
    plane: ControlPlane, headers: dict[str, str]
) -> None:
    cookie = await plane.log_in()
    before = await trace(plane)
    writes = (
        ("POST", "/admin/roles", {"name": "x"}),
        ("PUT", "/admin/principals/root/password", {"password": "theirs, not mine"}),
        ("DELETE", "/admin/principals/root", None),
        ("POST", "/logout", None),
        ("POST", "/login", {"name": "root", "password": PASSWORD}),
    )
    for method, path, body in writes:
        answer = await plane.call(method, path, body, cookie=cookie, headers=headers)
        assert (answer.status, answer.error["code"]) == (403, "cross_site"), path
    assert await trace(plane) == before
    own = {"origin": plane.url, "sec-fetch-site": "same-origin"}
    assert (await plane.call("POST", "/admin/roles", {"name": "x"}, cookie=cookie, headers=own)).status == 201
    # A key is sent by no browser on its own: whoever has it needs no other site's page.
    assert (await plane.call("POST", "/admin/roles", {"name": "y"}, headers=headers)).status == 201


async def test_a_token_that_proves_nothing_spoils_a_good_cookie(plane: ControlPlane) -> None:
    cookie = await plane.log_in()
    answer = await plane.call(
        "GET", "/admin/roles", cookie=cookie, headers={"authorization": "Bearer sk-false"}
    )
    assert answer.status == 401


async def test_an_owner_is_set_by_config_write_alone(plane: ControlPlane, clerk: str) -> None:
    """Whose hosts may speak for a provider decides where prompts go."""
    body = {"name": "gpu", "api_base": "http://127.0.0.1:9/v1"}
    assert (await plane.call("POST", "/admin/providers?force=true", body)).status == 201
    assert (await plane.call("PATCH", "/admin/providers/gpu", {"kind": "dynamic"})).status == 200
    invoke = await plane.key_of("clerk", "invoke")
    for token in (clerk, invoke):
        await refused(
            plane, "PATCH", "/admin/providers/gpu", {"owner": "clerk"}, token=token, code="forbidden"
        )
    assert (await plane.call("PATCH", "/admin/providers/gpu", {"owner": "clerk"})).status == 200


async def test_a_credential_does_not_follow_a_provider_to_another_host(plane: ControlPlane) -> None:
    operator = await somebody(plane, "op", OPERATOR)
    body = {"name": "gpu", "api_base": "http://127.0.0.1:9/v1", "upstream_api_key": "theirs"}
    assert (await plane.call("POST", "/admin/providers?force=true", body)).status == 201
    moved = {"api_base": "http://127.0.0.2:9/v1"}
    await refused(
        plane,
        "PATCH",
        "/admin/providers/gpu",
        moved,
        token=operator,
        code="credential_for_another_host",
        status=400,
    )


async def test_adding_a_target_extends_what_callers_reach_and_is_meant_to(plane: ControlPlane) -> None:
    """Documented in operations/access.md: who writes routes decides what a grant is worth."""
    operator = await somebody(plane, "op", OPERATOR)
    made = await plane.call("POST", "/admin/frontend-models", {"name": "a"}, token=operator)
    assert made.status == 201
    body = {"targets": [{"target": "the large one"}]}
    changed = await plane.call("PUT", "/admin/frontend-models/a/targets", body, token=operator)
    assert changed.status == 200
    grant = {"verb": "model:invoke", "resource": "model/a"}
    await plane.role("team")
    await refused(plane, "POST", "/admin/roles/team/permissions", grant, token=operator, code="forbidden")
