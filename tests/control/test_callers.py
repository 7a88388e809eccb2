"""Who may call what, by which proof."""

from __future__ import annotations

import pytest

from fastllm_control.access import Requirement
from fastllm_control.api.everything import OPERATIONS
from fastllm_control.operations import Call, Operation
from tests.fakes.control_plane import PASSWORD, PROXY_TOKEN, ControlPlane


async def nothing(_: Call) -> None:
    return None


def guarded(requires: Requirement) -> Operation:
    path = f"/guarded/{requires}"
    return Operation(method="GET", path=path, requires=requires, summary=path, handler=nothing)


GUARDED = tuple(
    guarded(requires) for requires in ("public", "any_principal", "session", "proxy", "config:read")
)

TABLE = {
    # proof            public  any_principal  session  proxy  config:read
    "nobody": (200, 401, 401, 401, 401),
    "wrong token": (200, 401, 401, 401, 401),
    "invoke key": (200, 200, 403, 403, 403),
    "powerless key": (200, 200, 200, 403, 403),
    "viewer's key": (200, 200, 200, 403, 200),
    "viewer's session": (200, 200, 200, 403, 200),
    "proxy token": (200, 403, 403, 200, 403),
}


async def test_proofs_and_requirements(database_url: str) -> None:
    async with ControlPlane.start(database_url, operations=(*OPERATIONS, *GUARDED)) as plane:
        await plane.principal("viewer", "viewer")
        await plane.call("PUT", "/admin/principals/viewer/password", {"password": PASSWORD})
        await plane.principal("powerless")
        tokens = {
            "wrong token": "sk-wrong",
            "invoke key": await plane.key_of("viewer", "invoke"),
            "powerless key": await plane.key_of("powerless"),
            "viewer's key": await plane.key_of("viewer"),
            "proxy token": PROXY_TOKEN,
        }
        session = await plane.log_in("viewer")
        for proof, expected in TABLE.items():
            cookie = session if proof == "viewer's session" else None
            found = tuple(
                [
                    (await plane.call("GET", op.path, token=tokens.get(proof), cookie=cookie)).status
                    for op in GUARDED
                ]
            )
            assert found == expected, proof


async def test_a_wrong_token_is_refused_even_beside_a_session(plane: ControlPlane) -> None:
    cookie = await plane.log_in()
    answer = await plane.call(
        "GET", "/admin/keys", cookie=cookie, headers={"authorization": "Bearer sk-wrong"}
    )
    assert (answer.status, answer.error["code"]) == (401, "invalid_token")


@pytest.mark.parametrize("scheme", ["bearer", "BEARER", "Bearer  "])
async def test_the_scheme_is_read_as_http_has_it(plane: ControlPlane, scheme: str) -> None:
    header = {"authorization": f"{scheme} {plane.admin_key}"}
    assert (await plane.call("GET", "/admin/keys", token=None, headers=header)).status == 200


async def test_two_proxy_tokens_are_valid_while_rotating(database_url: str) -> None:
    settings = {"proxy_token": "the-new-proxy-token, the-old-proxy-token"}
    async with ControlPlane.start(database_url, settings=settings) as plane:
        for token, status in (
            ("the-new-proxy-token", 200),
            ("the-old-proxy-token", 200),
            ("the-new-proxy-token, the-old-proxy-token", 401),
        ):
            assert (await plane.call("GET", "/snapshot?wait=5", token=token)).status == status


async def test_a_permission_that_is_taken_counts_at_once(plane: ControlPlane) -> None:
    await plane.role("readers", ("config:read", "*"))
    await plane.principal("alice", "readers")
    key = await plane.key_of("alice")
    assert (await plane.call("GET", "/admin/keys", token=key)).status == 200
    await plane.call("DELETE", "/admin/roles/readers/permissions", {"verb": "config:read"})
    refused = await plane.call("GET", "/admin/keys", token=key)
    assert refused.status == 403
    assert "config:read" in refused.error["message"]
