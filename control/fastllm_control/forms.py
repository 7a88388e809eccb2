"""What callers may send to create and change configuration. In a PATCH an absent field is `UNSET`, and `null`
clears. Durations are seconds, prices micro-units per million tokens, context lengths tokens."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from fastllm_control.naming import Name
from fastllm_shared.snapshot import (
    DEFAULT_POLICY,
    Conditions,
    Policy,
    Protocol,
    ProviderKind,
    RuleAction,
    State,
    StreamUsage,
)

_TOKEN = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$(?!\n)"
_REFUSED = "connection|content-length|expect|host|keep-alive|te|trailer|transfer-encoding|upgrade|proxy-.*"

Url = Annotated[str, Meta(min_length=1, max_length=2000)]
Credential = Annotated[
    str, Meta(min_length=1, max_length=8192, pattern=r"^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$(?!\n)")
]
HeaderName = Annotated[str, Meta(max_length=100, pattern=rf"^(?!(?i:{_REFUSED})$){_TOKEN[1:]}")]
HeaderValue = Annotated[str, Meta(max_length=8192, pattern=r"^[\x20-\x7e]*$(?!\n)")]
AuthScheme = Annotated[str, Meta(max_length=50, pattern=r"^[\x21-\x7e]*$(?!\n)")]
ExtraHeaders = Annotated[dict[HeaderName, HeaderValue], Meta(max_length=50)]
Pem = Annotated[str, Meta(min_length=1, max_length=200_000)]
HostName = Annotated[str, Meta(max_length=253, pattern=r"^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$(?!\n)")]
Reason = Annotated[str, Meta(max_length=500)]
UpstreamName = Annotated[str, Meta(min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]+$(?!\n)")]

Tokens = Annotated[int, Meta(ge=1, le=2**53 - 1)]
Price = Annotated[int, Meta(ge=0, le=10**15)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Wait = Annotated[float, Meta(ge=0, le=86_400)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
CountOrNone = Annotated[int, Meta(ge=0, le=1_000_000)]
Weight = Annotated[int, Meta(ge=1, le=1_000_000)]
TargetWeight = Annotated[int, Meta(ge=0, le=1_000_000)]


class NewProvider(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`auth_scheme` absent is `Bearer`, `""` sends the credential as it is."""

    name: Name
    api_base: Url
    kind: ProviderKind = "static"
    protocol: Protocol = "openai"
    upstream_api_key: Credential | None = None
    auth_header: HeaderName = "authorization"
    auth_scheme: AuthScheme | None = None
    extra_headers: ExtraHeaders = {}
    stream_usage: StreamUsage = "inject"
    ca: Pem | None = None
    server_name: HostName | None = None
    state: State = "active"
    state_reason: Reason | None = None

    def __repr__(self) -> str:
        return f"NewProvider({self.name})"  # without what is secret of it


class ProviderPatch(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`owner` is a principal's id or name."""

    name: Name | UnsetType = UNSET
    kind: ProviderKind | UnsetType = UNSET
    owner: Annotated[str, Meta(min_length=1, max_length=200)] | UnsetType = UNSET
    api_base: Url | UnsetType = UNSET
    protocol: Protocol | UnsetType = UNSET
    upstream_api_key: Credential | UnsetType | None = UNSET
    auth_header: HeaderName | UnsetType = UNSET
    auth_scheme: AuthScheme | UnsetType | None = UNSET
    extra_headers: ExtraHeaders | UnsetType | None = UNSET
    stream_usage: StreamUsage | UnsetType = UNSET
    ca: Pem | UnsetType | None = UNSET
    server_name: HostName | UnsetType | None = UNSET
    state: State | UnsetType = UNSET
    state_reason: Reason | UnsetType | None = UNSET

    def __repr__(self) -> str:
        return "ProviderPatch()"  # without what is secret of it


class BackendSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that can be set per backend; `null` means the deployment's value."""

    upstream_timeout_seconds: Seconds | UnsetType | None = UNSET
    response_timeout_seconds: Seconds | UnsetType | None = UNSET
    health_timeout_seconds: Seconds | UnsetType | None = UNSET
    unhealthy_after: Count | UnsetType | None = UNSET
    consecutive_timeout_threshold: Count | UnsetType | None = UNSET
    admission_max_concurrent: Count | UnsetType | None = UNSET
    admission_high_water: Count | UnsetType | None = UNSET
    admission_max_queued: CountOrNone | UnsetType | None = UNSET
    admission_max_wait_seconds: Wait | UnsetType | None = UNSET
    state: State | UnsetType = UNSET
    state_reason: Reason | UnsetType | None = UNSET


class NewBackend(BackendSettings, frozen=True, kw_only=True):
    """`provider` is an id or name."""

    provider: Annotated[str, Meta(min_length=1, max_length=200)]
    upstream_model: UpstreamName


class BackendPatch(BackendSettings, frozen=True, kw_only=True):
    """`accept` takes a pending backend into service, and its owner's other hosts for this model with it."""

    upstream_model: UpstreamName | UnsetType = UNSET
    accept: Literal[True] | UnsetType = UNSET


class NewProviderModel(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: Name
    context_length: Tokens | None = None
    input_price_per_mtok: Price | None = None
    output_price_per_mtok: Price | None = None
    cached_input_price_per_mtok: Price | None = None
    backends: Annotated[tuple[NewBackend, ...], Meta(max_length=1000)] = ()


class ProviderModelPatch(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: Name | UnsetType = UNSET
    context_length: Tokens | UnsetType | None = UNSET
    input_price_per_mtok: Price | UnsetType | None = UNSET
    output_price_per_mtok: Price | UnsetType | None = UNSET
    cached_input_price_per_mtok: Price | UnsetType | None = UNSET


class Target(Struct, frozen=True, forbid_unknown_fields=True):
    """The name of a provider model or pool, which need not exist yet. With a weight of 0 it is there for
    failover alone: it is chosen when no target with a weight has a backend in rotation."""

    target: Name
    weight: TargetWeight = 1


Targets = Annotated[tuple[Target, ...], Meta(max_length=1000)]


class TargetList(Struct, frozen=True, forbid_unknown_fields=True):
    targets: Targets


class NewFrontendModel(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: Name
    policy: Policy | None = None
    retry_on_timeout: bool = False
    targets: Targets = ()


class FrontendModelPatch(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: Name | UnsetType = UNSET
    policy: Policy | UnsetType | None = UNSET
    retry_on_timeout: bool | UnsetType = UNSET
    targets: Targets | UnsetType = UNSET


class Force(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`force` goes on where the call would otherwise be refused for the caller's own good."""

    force: bool = False


Reference = Annotated[str, Meta(min_length=1, max_length=200)]
DenyStatus = Annotated[int, Meta(ge=400, le=499)]
DenyMessage = Annotated[str, Meta(min_length=1, max_length=1000)]
Tag = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$(?!\n)")]
Position = Annotated[int, Meta(ge=0, le=999)]


class PoolMemberForm(Struct, frozen=True, forbid_unknown_fields=True):
    """All backends of a provider model (by id or name), or one backend (by id)."""

    provider_model: Reference | None = None
    backend_id: UUID | None = None
    weight: Weight = 1


PoolMembers = Annotated[tuple[PoolMemberForm, ...], Meta(max_length=1000)]


class NewPool(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: Name
    policy: Policy = DEFAULT_POLICY
    members: PoolMembers = ()


class PoolPatch(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`members` replaces all of them."""

    name: Name | UnsetType = UNSET
    policy: Policy | UnsetType = UNSET
    members: PoolMembers | UnsetType = UNSET


class RuleForm(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One rule, its place apart. `route` takes targets (without any it sends to the model's own), `deny` a
    4xx status and a message, `jump` the name of a frontend model whose rules go on from here."""

    when: Conditions = Conditions()
    action: RuleAction = "route"
    targets: Targets = ()
    policy: Policy | None = None
    tag: Tag | None = None
    deny_status: DenyStatus | None = None
    deny_message: DenyMessage | None = None
    jump: Name | None = None


class NewRule(RuleForm, frozen=True, kw_only=True):
    """`position` counts from 0 and moves what stands there and after it down by one; absent: at the end."""

    position: Position | None = None


Rules = Annotated[tuple[RuleForm, ...], Meta(max_length=1000)]


class RuleList(Struct, frozen=True, forbid_unknown_fields=True):
    rules: Rules


class RulePatch(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`when` and `targets` are replaced as a whole; `position` moves the rule."""

    position: Position | UnsetType = UNSET
    when: Conditions | UnsetType = UNSET
    action: RuleAction | UnsetType = UNSET
    targets: Targets | UnsetType = UNSET
    policy: Policy | UnsetType | None = UNSET
    tag: Tag | UnsetType | None = UNSET
    deny_status: DenyStatus | UnsetType | None = UNSET
    deny_message: DenyMessage | UnsetType | None = UNSET
    jump: Name | UnsetType | None = UNSET


class FallbackForm(Struct, frozen=True, forbid_unknown_fields=True):
    """The frontend model, by id or name, that may end every chain."""

    frontend_model: Reference
