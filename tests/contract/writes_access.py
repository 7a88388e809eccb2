"""Writes about who may do what: principals, roles, keys, sessions, limits, budgets."""

from __future__ import annotations

from urllib.parse import quote

from tests.contract.audited import Scenario, Stage, Write
from tests.fakes.control_plane import PASSWORD


async def log_in(stage: Stage) -> Write:
    return Write(
        path="/login",
        body={"name": "root", "password": PASSWORD},
        token=None,
        action="session.create",
        kind="session",
        name="root",
        content=False,
        again="another",
        via="session",
    )


async def log_out(stage: Stage) -> Write:
    cookie = await stage.plane.log_in()
    (row,) = await stage.rows("SELECT id FROM sessions ORDER BY id DESC LIMIT 1")
    return Write(
        path="/logout",
        cookie=cookie,
        action="session.end",
        kind="session",
        target_id=str(row.id),
        name="root",
        content=False,
        via="session",
    )


async def revoke_session(stage: Stage) -> Write:
    await stage.plane.log_in()
    (row,) = await stage.rows("SELECT id FROM sessions ORDER BY id DESC LIMIT 1")
    return Write(
        path=f"/admin/sessions/{row.id}",
        action="session.revoke",
        kind="session",
        target_id=str(row.id),
        name="root",
        content=False,
        again="refused",
    )


async def create_principal(stage: Stage) -> Write:
    name = stage.fresh("principal")
    return Write(
        path="/admin/principals",
        body={"name": name, "kind": "user"},
        action="principal.create",
        kind="principal",
        name=name,
        fields=frozenset({"kind"}),
        again="refused",
    )


async def rename_principal(stage: Stage) -> Write:
    identity, _ = await stage.principal()
    name = stage.fresh("renamed")
    return Write(
        path=f"/admin/principals/{identity}",
        body={"name": name},
        action="principal.update",
        kind="principal",
        name=name,
        fields=frozenset({"name"}),
    )


async def delete_principal(stage: Stage) -> Write:
    identity, name = await stage.principal()
    return Write(
        path=f"/admin/principals/{quote(name, safe='')}",
        action="principal.delete",
        kind="principal",
        target_id=identity,
        name=name,
        fields=frozenset({"kind"}),
        again="refused",
    )


async def give_role(stage: Stage) -> Write:
    identity, name = await stage.principal()
    return Write(
        path=f"/admin/principals/{identity}/roles",
        body={"role": "viewer"},
        action="principal.give_role",
        kind="principal",
        target_id=identity,
        name=name,
        fields=frozenset({"roles"}),
    )


async def take_role(stage: Stage) -> Write:
    identity, name = await stage.principal("user", "viewer")
    return Write(
        path=f"/admin/principals/{identity}/roles",
        body={"role": "viewer"},
        action="principal.take_role",
        kind="principal",
        target_id=identity,
        name=name,
        fields=frozenset({"roles"}),
        again="refused",
    )


async def set_password(stage: Stage) -> Write:
    identity, name = await stage.principal("user")
    return Write(
        path=f"/admin/principals/{identity}/password",
        body={"password": stage.canary()},
        action="principal.set_password",
        kind="principal",
        name=name,
        fields=frozenset({"password"}),
        content=False,
        again="another",  # whether it is the one that was set already is not to be told
    )


async def create_role(stage: Stage) -> Write:
    name = stage.fresh("role")
    return Write(
        path="/admin/roles",
        body={"name": name},
        action="role.create",
        kind="role",
        name=name,
        content=False,  # nobody holds it
        again="refused",
    )


async def rename_role(stage: Stage) -> Write:
    identity, _ = await stage.role()
    name = stage.fresh("renamed")
    return Write(
        path=f"/admin/roles/{identity}",
        body={"name": name},
        action="role.update",
        kind="role",
        name=name,
        fields=frozenset({"name"}),
    )


async def delete_role(stage: Stage) -> Write:
    identity, name = await stage.role()
    await stage.call("POST", f"/admin/roles/{identity}/permissions", {"verb": "usage:read"})
    await stage.principal("user", name)
    return Write(
        path=f"/admin/roles/{quote(name, safe='')}",
        action="role.delete",
        kind="role",
        target_id=identity,
        name=name,
        fields=frozenset({"permissions", "holders"}),
        again="refused",
    )


async def add_permission(stage: Stage) -> Write:
    identity, name = await stage.role()
    return Write(
        path=f"/admin/roles/{identity}/permissions",
        body={"verb": "model:invoke", "resource": "model/a"},
        action="role.add_permission",
        kind="role",
        name=name,
        fields=frozenset({"permissions"}),
    )


async def drop_permission(stage: Stage) -> Write:
    identity, name = await stage.role()
    path = f"/admin/roles/{identity}/permissions"
    await stage.call("POST", path, {"verb": "usage:read"})
    return Write(
        path=path,
        body={"verb": "usage:read"},
        action="role.drop_permission",
        kind="role",
        name=name,
        fields=frozenset({"permissions"}),
        content=False,  # proxies are served permissions to call models alone
        again="refused",
    )


async def create_key(stage: Stage) -> Write:
    identity, _ = await stage.principal()
    return Write(
        path="/admin/keys",
        body={"principal_id": identity, "name": "a key", "expires_at": "2099-01-01T00:00:00Z"},
        action="key.create",
        kind="key",
        name="a key",
        fields=frozenset({"principal", "scope", "prefix", "expires_at"}),
        again="another",
    )


async def rotate_key(stage: Stage) -> Write:
    made = await _key(stage)
    return Write(
        path=f"/admin/keys/{made}/rotate",
        body={"grace_seconds": 0},
        action="key.rotate",
        kind="key",
        target_id=made,
        name="k",
        fields=frozenset({"expires_at", "disabled", "successor"}),
        again="refused",
    )


async def revoke_key(stage: Stage) -> Write:
    made = await _key(stage)
    return Write(
        path=f"/admin/keys/{made}",
        action="key.revoke",
        kind="key",
        target_id=made,
        name="k",
        fields=frozenset({"disabled"}),
    )


async def set_limits(stage: Stage) -> Write:
    identity, name = await stage.principal()
    return Write(
        path=f"/admin/principals/{identity}/limits",
        body={"requests_per_min": 60, "max_concurrent": 4},
        action="limits.set",
        kind="principal",
        target_id=identity,
        name=name,
        fields=frozenset({"requests_per_min", "max_concurrent"}),
    )


async def set_budget(stage: Stage) -> Write:
    identity, name = await stage.principal()
    return Write(
        path=f"/admin/principals/{identity}/budget",
        body={"tokens_total": 1000, "window": "monthly", "timezone": "Europe/Brussels"},
        action="budget.set",
        kind="principal",
        target_id=identity,
        name=name,
        fields=frozenset({"tokens_total", "window", "timezone"}),
    )


async def drop_budget(stage: Stage) -> Write:
    identity, name = await _budget(stage)
    return Write(
        path=f"/admin/principals/{identity}/budget",
        action="budget.delete",
        kind="principal",
        target_id=identity,
        name=name,
        fields=frozenset({"tokens_total", "window", "timezone"}),
        again="refused",
    )


async def reset_budget(stage: Stage) -> Write:
    identity, name = await _budget(stage)
    await stage.execute("UPDATE budgets SET tokens_used = 7 WHERE principal_id = :id", id=identity)
    return Write(
        path=f"/admin/principals/{identity}/budget/reset",
        action="budget.reset",
        kind="principal",
        target_id=identity,
        name=name,
        fields=frozenset({"tokens_used"}),
        content=False,
    )


async def _key(stage: Stage) -> str:
    identity, _ = await stage.principal()
    made = await stage.call("POST", "/admin/keys", {"principal_id": identity, "name": "k"})
    return str(made.json["id"])


async def _budget(stage: Stage) -> tuple[str, str]:
    identity, name = await stage.principal()
    body = {"tokens_total": 1000, "window": "daily"}
    await stage.call("PUT", f"/admin/principals/{identity}/budget", body)
    return identity, name


WRITES: dict[str, Scenario] = {
    "POST /login": log_in,
    "POST /logout": log_out,
    "DELETE /admin/sessions/{id}": revoke_session,
    "POST /admin/principals": create_principal,
    "PATCH /admin/principals/{id}": rename_principal,
    "DELETE /admin/principals/{id}": delete_principal,
    "POST /admin/principals/{id}/roles": give_role,
    "DELETE /admin/principals/{id}/roles": take_role,
    "PUT /admin/principals/{id}/password": set_password,
    "POST /admin/roles": create_role,
    "PATCH /admin/roles/{id}": rename_role,
    "DELETE /admin/roles/{id}": delete_role,
    "POST /admin/roles/{id}/permissions": add_permission,
    "DELETE /admin/roles/{id}/permissions": drop_permission,
    "POST /admin/keys": create_key,
    "POST /admin/keys/{id}/rotate": rotate_key,
    "DELETE /admin/keys/{id}": revoke_key,
    "PUT /admin/principals/{id}/limits": set_limits,
    "PUT /admin/principals/{id}/budget": set_budget,
    "DELETE /admin/principals/{id}/budget": drop_budget,
    "POST /admin/principals/{id}/budget/reset": reset_budget,
}
