"""Logging in and out, over the wire."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tests.fakes.control_plane import PASSWORD, Answer, ControlPlane

LOGIN = {"name": "root", "password": PASSWORD}


async def log_in(plane: ControlPlane, name: str = "root", password: str = PASSWORD) -> Answer:
    return await plane.call("POST", "/login", {"name": name, "password": password}, token=None)


async def test_the_cookie(plane: ControlPlane) -> None:
    answer = await log_in(plane)
    assert (answer.status, answer.json["name"]) == (200, "root")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("fastllm_session=")
    for part in ("HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"):
        assert part in cookie
    assert "Secure" not in cookie
    assert answer.cookies["fastllm_session"] not in answer.body.decode()


async def test_behind_a_trusted_proxy_with_tls_the_cookie_is_secure(database_url: str) -> None:
    async with ControlPlane.start(database_url, settings={"trusted_proxies": "127.0.0.0/8"}) as plane:
        forwarded = {"x-forwarded-proto": "https", "x-forwarded-for": "203.0.113.7"}
        answer = await plane.call("POST", "/login", LOGIN, token=None, headers=forwarded)
        assert "Secure" in answer.headers["set-cookie"]
        rows = (await plane.call("GET", "/admin/sessions")).rows
        assert [row["address"] for row in rows] == ["203.0.113.7"]


async def test_a_wrong_name_and_a_wrong_password_look_the_same(plane: ControlPlane) -> None:
    wrong_password, wrong_name = await log_in(plane, password="wrong one"), await log_in(plane, name="nobody")
    assert wrong_password.status == wrong_name.status == 401
    for answer in (wrong_password, wrong_name):
        assert "set-cookie" not in answer.headers
    assert {**wrong_password.error, "request_id": ""} == {**wrong_name.error, "request_id": ""}


async def test_a_session_ends_after_twelve_hours(plane: ControlPlane) -> None:
    cookie = await plane.log_in()
    plane.clock.advance(12 * 3600 - 60)
    assert (await plane.call("GET", "/admin/keys", cookie=cookie)).status == 200
    plane.clock.advance(120)
    expired = await plane.call("GET", "/admin/keys", cookie=cookie)
    assert (expired.status, expired.error["code"]) == (401, "session_expired")


async def test_logging_out_ends_it_on_the_server(plane: ControlPlane) -> None:
    cookie = await plane.log_in()
    out = await plane.call("POST", "/logout", cookie=cookie)
    assert out.status == 200
    assert "Max-Age=0" in out.headers["set-cookie"]
    assert (await plane.call("GET", "/admin/keys", cookie=cookie)).status == 401
    assert (await plane.call("POST", "/logout", cookie=cookie)).status == 200
    actions = [row["action"] for row in (await plane.call("GET", "/admin/audit?actor=root&limit=2")).rows]
    assert actions == ["session.end", "session.create"]


async def test_sessions_are_listed_and_revoked(plane: ControlPlane) -> None:
    mine, other = await plane.log_in(), await plane.log_in()
    rows = (await plane.call("GET", "/admin/sessions", cookie=mine)).rows
    assert sorted(row["current"] for row in rows) == [False, True]
    victim = next(row["id"] for row in rows if not row["current"])
    assert (await plane.call("DELETE", f"/admin/sessions/{victim}", cookie=mine)).json == {"revoked": True}
    assert (await plane.call("GET", "/admin/keys", cookie=other)).status == 401
    assert (await plane.call("GET", "/admin/keys", cookie=mine)).status == 200
    assert (await plane.call("DELETE", f"/admin/sessions/{uuid4()}", cookie=mine)).status == 404


async def test_who_am_i(plane: ControlPlane) -> None:
    cookie = await plane.log_in()
    me = (await plane.call("GET", "/admin/sessions/current", cookie=cookie)).json
    assert (me["name"], me["via"]) == ("root", "session")
    assert {"verb": "access:write", "resource": "*"} in me["permissions"]


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
async def test_pages_of_other_sites_cannot_write(plane: ControlPlane, headers: dict[str, str]) -> None:
    cookie = await plane.log_in()
    body = {"name": "by-evil"}
    refused = await plane.call("POST", "/admin/roles", body, cookie=cookie, headers=headers)
    assert (refused.status, refused.error["code"]) == (403, "cross_site")
    assert (await plane.call("POST", "/login", LOGIN, token=None, headers=headers)).status == 403
    assert (await plane.call("POST", "/logout", cookie=cookie, headers=headers)).status == 403
    assert (await plane.call("GET", "/admin/roles/by-evil", cookie=cookie, headers=headers)).status == 404
    # A key is not sent by a browser on its own.
    assert (await plane.call("POST", "/admin/roles", body, headers=headers)).status == 201


async def test_our_own_pages_can_write(plane: ControlPlane) -> None:
    cookie = await plane.log_in()
    own = {"origin": plane.url, "sec-fetch-site": "same-origin"}
    assert (await plane.call("POST", "/admin/roles", {"name": "a"}, cookie=cookie, headers=own)).status == 201
    assert (await plane.call("POST", "/admin/roles", {"name": "b"}, cookie=cookie)).status == 201


async def test_guessing_is_slowed_and_never_locks_the_owner_out(plane: ControlPlane) -> None:
    assert (await log_in(plane)).status == 200
    statuses = [(await log_in(plane, password=f"guess {n}")).status for n in range(7)]
    assert statuses == [401] * 5 + [429] * 2
    slowed = await log_in(plane)
    assert slowed.status == 429
    assert 1 <= int(slowed.headers["retry-after"]) <= 30
    plane.clock.advance(31)
    assert (await log_in(plane)).status == 200


async def test_passwords_appear_nowhere(plane: ControlPlane) -> None:
    canary = "canary-4711-password"
    await log_in(plane, password=canary)
    await plane.call("POST", "/login", {"name": "root", "password": canary, "canary": 1}, token=None)
    await plane.call("PUT", "/admin/principals/root/password", {"password": canary})
    cookie = (await log_in(plane, password=canary)).cookies["fastllm_session"]
    await plane.call("GET", "/admin/keys", cookie=cookie)
    seen = [str(plane.log.entries), (await plane.call("GET", "/admin/audit")).body.decode()]
    for secret in (canary, cookie, plane.admin_key):
        assert not [text for text in seen if secret in text]
