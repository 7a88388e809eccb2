"""Settings of the control plane and of the commands beside it. Durations are seconds."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Any, Literal

from msgspec import Meta
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from fastllm_control.secrets import Keyring, KeyringError
from fastllm_shared.addresses import AddressPolicy
from fastllm_shared.settings import SECRET, Settings

_SECRET: dict[str, Any] = {SECRET: True}

Seconds = Annotated[float, Meta(gt=0, le=86_400)]


class DatabaseSettings(Settings, frozen=True, kw_only=True):
    """What every command that opens the database needs."""

    database_url: Annotated[
        str, Meta(description="postgresql://user:password@host:port/name", extra=_SECRET, min_length=1)
    ]
    database_pool_size: Annotated[int, Meta(description="connections to Postgres", ge=1, le=500)] = 10
    pgbouncer: Annotated[bool, Meta(description="Postgres is reached through a PgBouncer")] = False

    def __post_init__(self) -> None:
        if found := self.problems():
            raise ValueError("\n".join(found))

    def problems(self) -> list[str]:
        """What is wrong with the values taken together, one line each, naming the setting."""
        return address_problems(self.database_url)


class ControlSettings(DatabaseSettings, frozen=True, kw_only=True):
    """The control plane: admin API, operator UI, snapshots for proxies."""

    encryption_key: Annotated[
        str,
        Meta(description="32 bytes as hex; several, comma-separated: the first encrypts", extra=_SECRET),
    ]
    proxy_token: Annotated[
        str,
        Meta(description="what proxies prove themselves with; two, comma-separated, rotate", extra=_SECRET),
    ]
    webhook_secret: Annotated[str | None, Meta(description="signs webhooks", extra=_SECRET)] = None

    host: Annotated[str, Meta(description="address to listen on", min_length=1)] = "127.0.0.1"
    port: Annotated[int, Meta(description="port to listen on; 0 takes a free one", ge=0, le=65_535)] = 4001
    tls_cert: Annotated[str | None, Meta(description="PEM file with the certificate chain")] = None
    tls_key: Annotated[str | None, Meta(description="PEM file with the certificate's key")] = None
    trusted_proxies: Annotated[
        str, Meta(description="networks whose X-Forwarded-For counts, comma-separated")
    ] = ""
    allow_plaintext_snapshot: Annotated[
        bool, Meta(description="serve snapshots with credentials over plain HTTP off loopback")
    ] = False
    deny_private_upstreams: Annotated[bool, Meta(description="refuse providers at private addresses")] = False
    own_ports: Annotated[
        str, Meta(description="ports of proxies on this machine, comma-separated: they are no providers")
    ] = "4000"
    config_poll: Annotated[Seconds, Meta(description="the proxies' longest wait between polls")] = 5.0
    health_report_interval: Annotated[Seconds, Meta(description="between a proxy's health reports")] = 10.0
    rate_limit_reconcile_interval: Annotated[
        Seconds, Meta(description="between a proxy's reports of what it admitted")
    ] = 5.0
    provider_sweep_interval: Annotated[Seconds, Meta(description="between sweeps of the providers")] = 60.0
    provider_delete_after: Annotated[
        Seconds, Meta(description="absence after which a leased provider is deleted")
    ] = 1800.0
    retention_days: Annotated[int, Meta(description="days that raw usage rows are kept", ge=1)] = 90
    webhook_url: Annotated[str | None, Meta(description="where alerts are posted")] = None
    session_seconds: Annotated[Seconds, Meta(description="how long a login lasts")] = 43_200.0
    shutdown_grace: Annotated[Seconds, Meta(description="from SIGTERM to exit, at most")] = 30.0
    log_format: Annotated[Literal["json", "text"], Meta(description="of the log on standard error")] = "text"
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="of the log")] = (
        "info"
    )

    def problems(self) -> list[str]:
        found = super().problems()
        if bool(self.tls_cert) != bool(self.tls_key):
            found.append("--tls-cert, --tls-key: set both or neither")
        found += key_problems(self.encryption_key)
        found += token_problems(self.proxy_token)
        try:
            self.address_policy()
        except ValueError:
            found.append("--own-ports: port numbers, comma-separated")
        try:
            self.trusted_networks()
        except ValueError as error:
            found.append(f"--trusted-proxies: {error}")
        return found

    def proxy_tokens(self) -> tuple[str, ...]:
        """The tokens that are valid now."""
        return _tokens(self.proxy_token)

    def trusted_networks(self) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
        """Raises `ValueError` when one does not parse."""
        parts = [part.strip() for part in self.trusted_proxies.split(",") if part.strip()]
        return tuple(ipaddress.ip_network(part, strict=False) for part in parts)

    def address_policy(self) -> AddressPolicy:
        """What may be dialled from here. Raises `ValueError` when `own_ports` does not parse."""
        ports = {int(part) for part in self.own_ports.split(",") if part.strip()}
        return AddressPolicy(
            deny_private=self.deny_private_upstreams, own_ports=frozenset(ports | {self.port})
        )

    @property
    def serves_tls(self) -> bool:
        return self.tls_cert is not None


def driver_url(url: str) -> str:
    """A user's `postgres://` or `postgresql://` address as the one that names our driver."""
    scheme, separator, rest = url.partition("://")
    known = ("postgres", "postgresql", "postgresql+asyncpg")
    return f"postgresql+asyncpg://{rest}" if separator and scheme in known else url


def address_problems(database_url: str) -> list[str]:
    """What is wrong with an address of a database, naming the setting."""
    try:
        backend = make_url(driver_url(database_url)).get_backend_name()
    except ArgumentError:
        backend = ""
    if backend == "postgresql":
        return []
    return ["FASTLLM_DATABASE_URL: not an address of the form postgresql://user@host/name"]


def key_problems(encryption_key: str) -> list[str]:
    """What is wrong with the key, or one of several, under which credentials are encrypted."""
    try:
        Keyring.parse(encryption_key)
    except KeyringError as error:
        return [f"FASTLLM_ENCRYPTION_KEY: {error}"]
    return []


def token_problems(proxy_token: str) -> list[str]:
    """What is wrong with the token that proxies prove themselves with."""
    tokens = _tokens(proxy_token)
    if 1 <= len(tokens) <= 2 and all(len(token) >= 16 for token in tokens):
        return []
    return ["FASTLLM_PROXY_TOKEN: one token, or two, of at least 16 characters each"]


def _tokens(proxy_token: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in proxy_token.split(",") if part.strip())
