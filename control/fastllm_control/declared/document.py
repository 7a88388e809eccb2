"""What a configuration file says. Everything refers to everything by name, nothing is a secret.

A section that is absent is not managed: nothing of its kind is changed, and nothing is pruned. A field that
is absent has its default, as it would have when it is created over the API.
"""

from __future__ import annotations

import datetime
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from fastllm_control.access import Permission
from fastllm_control.forms import (
    AuthScheme,
    Count,
    CountOrNone,
    HeaderName,
    HeaderValue,
    HostName,
    Pem,
    Price,
    Reason,
    RuleForm,
    Seconds,
    Targets,
    Tokens,
    UpstreamName,
    Url,
    Wait,
    Weight,
)
from fastllm_control.naming import Name
from fastllm_control.windows import Window
from fastllm_shared.snapshot import (
    DEFAULT_POLICY,
    Policy,
    PrincipalKind,
    Protocol,
    State,
    StreamUsage,
)

_Text = Annotated[str, Meta(min_length=1, max_length=1000)]


class SecretReference(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where a secret is to be read when the file is applied: an environment variable, or a file's text
    without the white space around it. Exactly one of the two."""

    env: Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$(?!\n)", max_length=200)] | None = None
    file: _Text | None = None

    def __post_init__(self) -> None:
        if (self.env is None) == (self.file is None):
            raise ValueError("a reference names either `env` or `file`")


class DeclaredProvider(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Of the kinds that a person types in; leased providers register themselves."""

    name: Name
    api_base: Url
    kind: Literal["static", "cloud"] = "static"
    protocol: Protocol = "openai"
    upstream_api_key: SecretReference | None = None
    auth_header: HeaderName = "authorization"
    auth_scheme: AuthScheme | None = None
    extra_headers: Annotated[dict[HeaderName, HeaderValue | SecretReference], Meta(max_length=50)] = {}
    stream_usage: StreamUsage = "inject"
    ca: Pem | None = None
    server_name: HostName | None = None
    state: State = "active"
    state_reason: Reason | None = None


class DeclaredBackend(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Of the provider model that it stands under."""

    provider: Name
    upstream_model: UpstreamName
    upstream_timeout_seconds: Seconds | None = None
    response_timeout_seconds: Seconds | None = None
    health_timeout_seconds: Seconds | None = None
    unhealthy_after: Count | None = None
    consecutive_timeout_threshold: Count | None = None
    admission_max_concurrent: Count | None = None
    admission_high_water: Count | None = None
    admission_max_queued: CountOrNone | None = None
    admission_max_wait_seconds: Wait | None = None
    state: State = "active"
    state_reason: Reason | None = None


class DeclaredModel(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A provider model."""

    name: Name
    context_length: Tokens | None = None
    input_price_per_mtok: Price | None = None
    output_price_per_mtok: Price | None = None
    cached_input_price_per_mtok: Price | None = None
    backends: Annotated[tuple[DeclaredBackend, ...], Meta(max_length=1000)] = ()


class BackendReference(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One backend, by what it is."""

    provider: Name
    provider_model: Name
    upstream_model: UpstreamName


class DeclaredMember(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """All backends of a provider model, or one backend. Exactly one of the two."""

    provider_model: Name | None = None
    backend: BackendReference | None = None
    weight: Weight = 1

    def __post_init__(self) -> None:
        if (self.provider_model is None) == (self.backend is None):
            raise ValueError("a member names either `provider_model` or `backend`")


class DeclaredPool(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    name: Name
    policy: Policy = DEFAULT_POLICY
    members: Annotated[tuple[DeclaredMember, ...], Meta(max_length=1000)] = ()


class DeclaredFrontend(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """With its rules, in their order."""

    name: Name
    policy: Policy | None = None
    retry_on_timeout: bool = False
    targets: Targets = ()
    rules: Annotated[tuple[RuleForm, ...], Meta(max_length=1000)] = ()


class DeclaredRole(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The built-in roles cannot be declared, only held."""

    name: Name
    permissions: Annotated[tuple[Permission, ...], Meta(max_length=10_000)] = ()


class DeclaredLimits(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    requests_per_min: Annotated[int, Meta(ge=1, le=10**15)] | None = None
    tokens_per_min: Annotated[int, Meta(ge=1, le=10**15)] | None = None
    max_concurrent: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None


class DeclaredBudget(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Caps and window; what was used is no configuration, and is never rewound."""

    tokens_total: Annotated[int, Meta(ge=1, le=10**15)] | None = None
    cost_total_micros: Annotated[int, Meta(ge=1, le=10**15)] | None = None
    window: Window = "monthly"
    timezone: Annotated[str, Meta(min_length=1, max_length=64)] = "UTC"
    starts_at: Annotated[datetime.datetime, Meta(tz=True)] | None = None


class DeclaredPrincipal(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Who may call, and what they hold. Keys and passwords are made over the API or the command line."""

    name: Name
    kind: PrincipalKind = "service_account"
    roles: Annotated[tuple[Name, ...], Meta(max_length=1000)] = ()
    limits: DeclaredLimits | None = None
    budget: DeclaredBudget | None = None


class Document(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A whole file. `fallback_model` is managed when it is there; `null` clears it."""

    format: Literal[1]
    providers: tuple[DeclaredProvider, ...] | None = None
    provider_models: tuple[DeclaredModel, ...] | None = None
    pools: tuple[DeclaredPool, ...] | None = None
    frontend_models: tuple[DeclaredFrontend, ...] | None = None
    fallback_model: Name | UnsetType | None = UNSET
    roles: tuple[DeclaredRole, ...] | None = None
    principals: tuple[DeclaredPrincipal, ...] | None = None
