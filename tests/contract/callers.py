"""Everybody who may knock: a stranger, a session and an admin key of each seeded role, other proofs."""

from __future__ import annotations

from typing import Literal

import msgspec

from tests.fakes.control_plane import PASSWORD, PROXY_TOKEN, ControlPlane

HELD: dict[str, frozenset[str]] = {
    "admin": frozenset(
        {
            "model:invoke",
            "key:create",
            "key:revoke",
            "access:write",
            "config:read",
            "config:write",
            "usage:read",
        }
    ),
    "operator": frozenset({"key:create", "key:revoke", "config:read", "config:write", "usage:read"}),
    "inference": frozenset({"model:invoke"}),
    "viewer": frozenset({"config:read", "usage:read"}),
}
"""The seeded roles and what each is promised to hold, written down a second time on purpose."""

Proof = Literal["none", "invalid", "session", "admin key", "invoke key", "proxy token"]


class Caller(msgspec.Struct, frozen=True):
    """One way to knock. `role` is what the principal behind it holds, if there is one."""

    proof: Proof
    role: str | None = None
    token: str | None = None
    cookie: str | None = None

    def __str__(self) -> str:
        return self.proof if self.role is None else f"{self.proof} of {self.role}"

    def refused_with(self, permission: str) -> int | None:
        """The status with which an operation that asks for `permission` turns this caller away, or `None`."""
        if permission == "public":
            return None
        if self.proof in ("none", "invalid"):
            return 401
        if permission == "proxy" or self.proof == "proxy token":
            return None if permission == "proxy" and self.proof == "proxy token" else 403
        if permission == "any_principal":
            return None
        if self.proof == "invoke key":
            return 403
        held = HELD[self.role or ""]
        return None if permission == "session" or permission in held else 403


async def all_callers(plane: ControlPlane) -> list[Caller]:
    """All of them, on a fresh control plane."""
    callers = [
        Caller("none"),
        Caller("invalid", token="sk-" + "x" * 43),
        Caller("invalid", token=PROXY_TOKEN[:-1]),
        Caller("invalid", cookie="x" * 43),
        Caller("proxy token", token=PROXY_TOKEN),
    ]
    for role in HELD:
        name = f"{role}-by-role"
        await plane.principal(name, role)
        set_ = await plane.call("PUT", f"/admin/principals/{name}/password", {"password": PASSWORD})
        assert set_.status == 200, set_.body
        callers.append(Caller("session", role, cookie=await plane.log_in(name)))
        callers.append(Caller("admin key", role, token=await plane.key_of(name, "admin")))
        callers.append(Caller("invoke key", role, token=await plane.key_of(name, "invoke")))
    return callers
