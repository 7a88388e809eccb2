"""Keys, teams, users and budgets of LiteLLM → principals with roles, limits, budgets and keys. Pure.

Limits belong to principals here. A key that has limits or models of its own gets a principal of its own; the
others are keys of their team's principal, else of their user's.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from msgspec import Struct

from fastllm_control.access import Permission
from fastllm_control.declared.document import (
    DeclaredBudget,
    DeclaredLimits,
    DeclaredPrincipal,
    DeclaredRole,
)
from fastllm_control.litellm.findings import Report
from fastllm_control.litellm.groups import Names
from fastllm_control.windows import Window

WINDOWS: Mapping[str, Window] = {
    "1d": "daily", "24h": "daily", "daily": "daily", "7d": "weekly", "1w": "weekly", "weekly": "weekly",
    "30d": "monthly", "31d": "monthly", "1mo": "monthly", "monthly": "monthly",
}  # fmt: skip
_LIMITS = ("rpm_limit", "tpm_limit", "max_parallel_requests", "max_budget")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NOT_CARRIED = (
    *("tpd_limit", "soft_budget", "model_max_budget", "budget_limits", "allowed_routes", "aliases"),
    *("permissions", "policies", "allowed_cache_controls", "budget_fallbacks", "object_permission_id"),
    *("organization_id", "project_id", "metadata", "config", "router_settings"),
)

Row = Mapping[str, Any]


class Tables(Struct, frozen=True):
    """What LiteLLM's database holds; teams, users and budgets by their ids."""

    keys: Sequence[Row] = ()
    teams: Mapping[str, Row] = {}
    users: Mapping[str, Row] = {}
    budgets: Mapping[str, Row] = {}


class ImportedKey(Struct, frozen=True):
    """A key by its digest, as hex."""

    digest: str
    holder: str
    name: str
    prefix: str
    expires_at: datetime.datetime | None


class Holders(Struct, frozen=True):
    roles: tuple[DeclaredRole, ...] = ()
    principals: tuple[DeclaredPrincipal, ...] = ()
    keys: tuple[ImportedKey, ...] = ()


def holders(
    tables: Tables,
    models: Sequence[str],
    access_groups: Mapping[str, Sequence[str]],
    now: datetime.datetime,
    report: Report,
) -> Holders:
    """`models` are the frontend models that there will be."""
    grants = _Grants(frozenset(models), access_groups, report)
    names, by_place = Names(), {}
    roles: list[DeclaredRole] = []
    principals: list[DeclaredPrincipal] = []
    keys: list[ImportedKey] = []
    for row in sorted(tables.keys, key=lambda row: str(row["token"])):
        label = str(row.get("key_alias") or str(row["token"])[:12])
        path = f"LiteLLM_VerificationToken {label!a}"
        if not _is_usable(row, now, path, report):
            continue
        place, source = _holder(row, tables)
        if place not in by_place:
            by_place[place] = names.take(f"litellm/{place[0]}/{_plain(_label(place, source))}"[:190])
            role, principal = _principal(by_place[place], source, row, tables, grants, path, report)
            roles += role
            principals.append(principal)
        keys.append(
            ImportedKey(
                str(row["token"]),
                by_place[place],
                _plain(label)[:200],
                _prefix(row),
                _utc(row.get("expires")),
            )
        )
        _report_rest(row, path, report)
    return Holders(tuple(roles), tuple(principals), tuple(keys))


def _is_usable(row: Row, now: datetime.datetime, path: str, report: Report) -> bool:
    expires = _utc(row.get("expires"))
    reason = None
    if not _DIGEST.fullmatch(str(row["token"])):
        reason = "what is stored is no SHA-256 of the key: make a new one"
    elif row.get("blocked"):
        reason = "it is blocked"
    elif expires is not None and expires <= now:
        reason = "it has expired"
    if reason is not None:
        report.not_carried(path, reason)
    return reason is None


def _holder(row: Row, tables: Tables) -> tuple[tuple[str, str], Row]:
    """Whose principal a key is of, and the row whose limits and models it has."""
    if any(_given(row, name, tables) is not None for name in _LIMITS) or _own_models(row):
        return ("key", str(row["token"])), row
    for kind, found, field in (("team", tables.teams, "team_id"), ("user", tables.users, "user_id")):
        source = found.get(str(row.get(field)))
        if source is not None:
            return (kind, str(row[field])), source
    return ("key", str(row["token"])), row


def _own_models(row: Row) -> bool:
    return bool(set(row.get("models") or ()) - {"all-team-models"})


def _label(place: tuple[str, str], source: Row) -> str:
    for name in ("key_alias", "team_alias", "user_alias", "user_email"):
        if source.get(name):
            return str(source[name])
    return place[1][:12] if place[0] == "key" else place[1]


def _principal(
    name: str, source: Row, row: Row, tables: Tables, grants: _Grants, path: str, report: Report
) -> tuple[list[DeclaredRole], DeclaredPrincipal]:
    team = tables.teams.get(str(row.get("team_id")), {})
    user = tables.users.get(str(row.get("user_id")), {})
    wanted = next((models for r in (source, team, user) if (models := _models(r))), [])
    permissions = grants.of(wanted, path)
    roles = [] if permissions is None else [DeclaredRole(name=name, permissions=permissions)]
    if source is row:
        reason = "limits hold per principal, and the key has one of its own"
        for kind, other in (("team", team), ("user", user)):
            for field in _LIMITS:
                if other.get(field) is not None:
                    report.not_carried(f"{path}: {field} of its {kind}", reason)
    return roles, DeclaredPrincipal(
        name=name,
        roles=("inference",) if permissions is None else (name,),
        limits=_limits(source, tables, path, report),
        budget=_budget(source, tables, path, report),
    )


def _models(row: Row) -> list[str]:
    return [str(name) for name in row.get("models") or () if name != "all-team-models"]


class _Grants:
    def __init__(
        self, models: frozenset[str], access_groups: Mapping[str, Sequence[str]], report: Report
    ) -> None:
        self._models = models
        self._groups = access_groups
        self._report = report

    def of(self, wanted: Sequence[str], path: str) -> tuple[Permission, ...] | None:
        """`None` is every model."""
        if not wanted or {"all-proxy-models", "*"} & set(wanted):
            return None
        found: dict[str, None] = {}
        for name in wanted:
            if name in self._groups:
                found |= dict.fromkeys(self._groups[name])
            elif name in self._models:
                found[name] = None
            elif name != "no-default-models":
                self._report.not_carried(f"{path}: models", f"there is no model {name!a} that was carried")
        return tuple(Permission("model:invoke", f"model/{name}") for name in sorted(found))


def _given(row: Row, name: str, tables: Tables) -> Any:
    """A figure of a row, else of the budget that it names."""
    value = row.get(name)
    return value if value is not None else tables.budgets.get(str(row.get("budget_id")), {}).get(name)


def _limits(row: Row, tables: Tables, path: str, report: Report) -> DeclaredLimits | None:
    figures = {}
    for name, field in (
        ("requests_per_min", "rpm_limit"),
        ("tokens_per_min", "tpm_limit"),
        ("max_concurrent", "max_parallel_requests"),
    ):
        value = _given(row, field, tables)
        if value is not None and int(value) < 1:
            report.not_carried(f"{path}: {field}", "a limit is at least 1: revoke the key instead")
        elif value is not None:
            figures[name] = min(int(value), 1_000_000 if name == "max_concurrent" else 10**15)
    return DeclaredLimits(**figures) if figures else None


def _budget(row: Row, tables: Tables, path: str, report: Report) -> DeclaredBudget | None:
    cap, duration = _given(row, "max_budget", tables), _given(row, "budget_duration", tables)
    if cap is None:
        return None
    micros = int(Decimal(str(cap)) * 10**6)
    window = WINDOWS.get(str(duration))
    if window is None:
        reason = (
            "a budget here is daily, weekly or monthly"
            if duration
            else "a budget here begins anew each window"
        )
        report.not_carried(f"{path}: max_budget", reason)
        return None
    if not 1 <= micros <= 10**15:
        report.not_carried(
            f"{path}: max_budget", "out of range: revoke the key instead of a budget of nothing"
        )
        return None
    if row.get("spend"):
        report.not_carried(f"{path}: spend", "the budget begins with nothing used")
    return DeclaredBudget(cost_total_micros=micros, window=window)


def _report_rest(row: Row, path: str, report: Report) -> None:
    for name in _NOT_CARRIED:
        if row.get(name) not in (None, [], {}, "", "{}", "[]"):
            report.not_carried(f"{path}: {name}", "nothing here corresponds to it")


def _prefix(row: Row) -> str:
    # LiteLLM keeps `sk-...abcd`; nothing else is known of a key whose digest is all there is.
    return _plain(str(row.get("key_name") or str(row["token"])[:8]))[:11]


def _plain(text: str) -> str:
    """A name out of any text."""
    return "".join(c if c.isprintable() else "?" for c in text).strip() or "?"


def _utc(value: Any) -> datetime.datetime | None:
    if not isinstance(value, datetime.datetime):
        return None
    return value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
