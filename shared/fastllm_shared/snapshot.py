"""The snapshot: the immutable, pre-flattened configuration that a proxy serves from.

The control plane builds it, `GET /snapshot` carries it as msgpack, a proxy turns it into its own indexes.
References between entries are ids; names are for clients, logs and usage rows. Times are Unix seconds,
money is integer micro-units per million tokens, durations are seconds. `None` means "not set: the
deployment's value applies" unless a field says otherwise.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Policy = Literal["weighted", "cache-affinity", "least-loaded", "lowest-latency", "round-robin", "cheapest"]
Protocol = Literal["openai", "anthropic", "both"]
StreamUsage = Literal["inject", "never"]
Scope = Literal["invoke", "admin"]
PrincipalKind = Literal["user", "service_account"]
ProviderKind = Literal["static", "cloud", "dynamic"]
State = Literal["active", "draining", "disabled"]
RuleAction = Literal["route", "deny", "jump"]
Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]

DEFAULT_POLICY: Policy = "cache-affinity"
"""Among the backends of a target, when neither list nor pool says otherwise."""


class KeyEntry(msgspec.Struct, frozen=True, gc=False):
    """One API key. The key itself is nowhere: `digest` is `keys.digest_of(key)`, 32 bytes."""

    digest: bytes
    id: str
    principal_id: str
    prefix: str
    scope: Scope = "invoke"
    expires_at: float | None = None


class LimitsEntry(msgspec.Struct, frozen=True, gc=False):
    """Per-principal limits; `None` is unlimited."""

    requests_per_min: int | None = None
    tokens_per_min: int | None = None
    max_concurrent: int | None = None


class BudgetEntry(msgspec.Struct, frozen=True, gc=False):
    """Per-principal caps. What is used is not content: it travels with the reconcile answers."""

    tokens_total: int | None = None
    cost_total_micros: int | None = None
    window: Literal["daily", "weekly", "monthly"] | None = None
    timezone: str = "UTC"


class PrincipalEntry(msgspec.Struct, frozen=True):
    """Who may call: `models` are the frontend models granted by name, `all_models` is `model/*`."""

    id: str
    name: str
    kind: PrincipalKind
    roles: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    all_models: bool = False
    limits: LimitsEntry | None = None
    budget: BudgetEntry | None = None


class ProviderEntry(msgspec.Struct, frozen=True):
    """How to dial an endpoint, the usable credential included.

    `auth_scheme` `None` means `Bearer`, `""` sends the credential raw. `ca` is PEM text.
    """

    id: str
    name: str
    kind: ProviderKind
    api_base: str
    protocol: Protocol = "openai"
    credential: str | None = None
    auth_header: str = "authorization"
    auth_scheme: str | None = None
    extra_headers: tuple[tuple[str, str], ...] = ()
    stream_usage: StreamUsage = "inject"
    ca: str | None = None
    server_name: str | None = None

    def __repr__(self) -> str:
        return f"ProviderEntry(id={self.id!r}, name={self.name!r})"  # without what is secret of it


class BackendEntry(msgspec.Struct, frozen=True):
    """One provider serving one provider model under an upstream name.

    Only backends that may receive requests, or are draining, are in a snapshot.
    """

    id: str
    provider_id: str
    provider_model_id: str
    upstream_model: str
    state: State = "active"
    upstream_timeout_seconds: float | None = None
    response_timeout_seconds: float | None = None
    health_timeout_seconds: float | None = None
    unhealthy_after: int | None = None
    consecutive_timeout_threshold: int | None = None
    admission_max_concurrent: int | None = None
    admission_high_water: int = 4
    admission_max_queued: int = 64
    admission_max_wait_seconds: float = 30.0


class ProviderModelEntry(msgspec.Struct, frozen=True):
    """Inventory: what a request is routed to, never a name that a client may use."""

    id: str
    name: str
    context_length: int | None = None
    input_price_per_mtok: int | None = None
    output_price_per_mtok: int | None = None
    cached_input_price_per_mtok: int | None = None
    backends: tuple[str, ...] = ()


class PoolMember(msgspec.Struct, frozen=True, gc=False):
    backend_id: str
    weight: int = 1


class PoolEntry(msgspec.Struct, frozen=True):
    id: str
    name: str
    policy: Policy
    members: tuple[PoolMember, ...] = ()


class TargetEntry(msgspec.Struct, frozen=True, gc=False):
    """A provider model or pool, bound by name: it may be unresolved and re-attach when the name returns."""

    target: str
    weight: int = 1


_Names = Annotated[
    tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=200)], ...], msgspec.Meta(max_length=1000)
]
_Tokens = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]
_Percent = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]
_Clock = Annotated[str, msgspec.Meta(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$(?!\n)")]
_HeaderName = Annotated[str, msgspec.Meta(max_length=100, pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$(?!\n)")]
_HeaderValue = Annotated[str, msgspec.Meta(max_length=8192, pattern=r"^[\x20-\x7e]*$(?!\n)")]


class Conditions(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """When a rule applies: all that are set must hold; none set always holds.

    `after`/`before` are wall-clock `HH:MM` in `timezone` (UTC unless said) and wrap midnight; `days` are
    `mon`…`sun`; `headers` must match exactly, names without regard to case; token figures are estimates;
    `max_inflight_per_backend` is the mean over the backends that the rule would send to.
    """

    principals: _Names | None = None
    roles: _Names | None = None
    min_prompt_tokens: _Tokens | None = None
    max_prompt_tokens: _Tokens | None = None
    min_max_tokens: _Tokens | None = None
    max_max_tokens: _Tokens | None = None
    stream: bool | None = None
    headers: Annotated[dict[_HeaderName, _HeaderValue], msgspec.Meta(max_length=50)] | None = None
    min_budget_used_percent: _Percent | None = None
    max_budget_used_percent: _Percent | None = None
    max_inflight_per_backend: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] | None = None
    after: _Clock | None = None
    before: _Clock | None = None
    days: Annotated[tuple[Day, ...], msgspec.Meta(max_length=7)] | None = None
    timezone: Annotated[str, msgspec.Meta(min_length=1, max_length=100)] | None = None


class RuleEntry(msgspec.Struct, frozen=True):
    """One routing rule."""

    position: int
    when: Conditions = Conditions()
    action: RuleAction = "route"
    targets: tuple[TargetEntry, ...] = ()
    policy: Policy | None = None
    tag: str | None = None
    deny_status: int | None = None
    deny_message: str | None = None
    jump: str | None = None


class FrontendModelEntry(msgspec.Struct, frozen=True):
    """What a client asks for: ordered rules, then default targets. The only thing access is granted on."""

    id: str
    name: str
    created_at: float
    policy: Policy | None = None
    retry_on_timeout: bool = False
    rules: tuple[RuleEntry, ...] = ()
    targets: tuple[TargetEntry, ...] = ()


class Snapshot(msgspec.Struct, frozen=True, tag="full"):
    """The whole configuration at one version.

    `version` grows with every change of content and follows commit order. `history` names the line of
    versions: it changes only when a control plane says that its database was restored.
    """

    version: int
    history: str
    created_at: float
    keys: tuple[KeyEntry, ...] = ()
    principals: tuple[PrincipalEntry, ...] = ()
    providers: tuple[ProviderEntry, ...] = ()
    backends: tuple[BackendEntry, ...] = ()
    provider_models: tuple[ProviderModelEntry, ...] = ()
    pools: tuple[PoolEntry, ...] = ()
    frontend_models: tuple[FrontendModelEntry, ...] = ()
    fallback_model: str | None = None


SNAPSHOT_CONTENT_TYPE = "application/vnd.fastllm.snapshot+msgpack"

encode_snapshot = msgspec.msgpack.Encoder().encode
"""Snapshot → wire bytes (before compression)."""

decode_snapshot = msgspec.msgpack.Decoder(Snapshot).decode
"""Wire bytes → Snapshot; raises `msgspec.DecodeError` or `msgspec.ValidationError`."""


def etag_of(version: int) -> str:
    """The entity tag under which a version is polled."""
    return f'"{version}"'
