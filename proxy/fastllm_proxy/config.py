"""Settings of a proxy: what is fixed when it starts. What may change while it runs is in the snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal
from urllib.parse import urlsplit

from msgspec import Meta

from fastllm_proxy.tls import client_context, server_context
from fastllm_shared.settings import SECRET, Settings, load

Seconds = Annotated[float, Meta(gt=0, le=86_400)]
PingSeconds = Annotated[float, Meta(ge=1, le=3_600)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]


class ProxySettings(Settings, frozen=True, kw_only=True):
    """The data plane: serves LLM clients from the snapshot that the control plane publishes."""

    host: Annotated[
        str, Meta(description="address to listen on; anything but loopback is an explicit act")
    ] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535, description="port to listen on; 0 picks a free one")] = 4000
    tls_cert: Annotated[
        str | None, Meta(description="PEM file with the certificate chain for clients; unset: plain HTTP")
    ] = None
    tls_key: Annotated[str | None, Meta(description="PEM file with the certificate's key")] = None
    control_url: Annotated[str, Meta(description="where the control plane answers")] = "http://127.0.0.1:4001"
    proxy_token: Annotated[
        str,
        Meta(
            min_length=1,
            description="token shared with the control plane; while rotating `new,old`",
            extra={SECRET: True},
        ),
    ]
    workers: Annotated[
        int, Meta(ge=1, le=256, description="worker processes sharing the port; only 1 so far")
    ] = 1
    log_format: Annotated[Literal["text", "json"], Meta(description="how log lines look: text or json")] = (
        "text"
    )

    config_poll: Annotated[
        Seconds, Meta(description="longest wait between two polls for a snapshot, in seconds")
    ] = 5.0
    health_report_interval: Annotated[
        Seconds, Meta(description="seconds between two reports to the control plane")
    ] = 10.0
    health_interval: Annotated[Seconds, Meta(description="seconds between two probes of an endpoint")] = 10.0
    health_timeout: Annotated[
        Seconds, Meta(description="seconds that a probe may take, its whole body included")
    ] = 3.0
    unhealthy_after: Annotated[Count, Meta(description="failed probes in a row that eject a backend")] = 2
    upstream_timeout: Annotated[Seconds, Meta(description="seconds to the first byte of a stream")] = 120.0
    response_timeout: Annotated[
        Seconds, Meta(description="seconds to the headers of an answer that is not a stream")
    ] = 600.0
    sse_ping: Annotated[
        PingSeconds | None,
        Meta(description="seconds between comments in an event stream that is silent; unset: none"),
    ] = None
    max_retries: Annotated[
        int, Meta(ge=0, le=3, description="further backends of a target tried before the first byte")
    ] = 2
    max_body_mb: Annotated[Count, Meta(description="largest request body, in MiB")] = 64
    max_buffered_mb: Annotated[Count, Meta(description="all request bodies held at once, in MiB")] = 512
    max_inflight: Annotated[
        Count | None, Meta(description="requests at once before 503; unset: a third of the file limit")
    ] = None
    drain_delay: Annotated[
        float,
        Meta(ge=0, le=3_600, description="seconds after SIGTERM in which new connections are still served"),
    ] = 5.0
    shutdown_grace: Annotated[Seconds, Meta(description="whole time from SIGTERM to exit, in seconds")] = 30.0
    ca_bundle: Annotated[
        str | None, Meta(description="PEM file of certificate authorities trusted beside the system's")
    ] = None
    deny_private_upstreams: Annotated[
        bool, Meta(description="refuse to dial backends at private addresses")
    ] = False

    def __post_init__(self) -> None:
        problems = [*self._problems()]
        if problems:
            raise ValueError("\n".join(problems))

    def _problems(self) -> list[str]:
        found = []
        if self.workers != 1:
            found.append(f"--workers: only 1 is supported in this release (got {self.workers})")
        if self.drain_delay > self.shutdown_grace:
            found.append(
                f"--drain-delay: must not exceed --shutdown-grace "
                f"({self.drain_delay:g} s > {self.shutdown_grace:g} s)"
            )
        parts = urlsplit(self.control_url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            found.append(f"--control-url: must be http://HOST:PORT or https://… (got {self.control_url!r})")
        try:
            client_context(self.ca_bundle)
        except ValueError as error:
            found.append(f"--ca-bundle: {error} (got {self.ca_bundle!r})")
        if bool(self.tls_cert) != bool(self.tls_key):
            found.append("--tls-cert, --tls-key: set both or neither")
        elif self.tls_cert and self.tls_key:
            try:
                server_context(self.tls_cert, self.tls_key)
            except ValueError as error:
                found.append(str(error))
        if not self.tokens:
            found.append("FASTLLM_PROXY_TOKEN: holds no token")
        return found

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens that may be presented, the preferred one first."""
        return tuple(part for token in self.proxy_token.split(",") if (part := token.strip()))


def read_settings(arguments: Sequence[str], environ: Mapping[str, str]) -> ProxySettings:
    """Settings from the arguments after `fastllm proxy`; raises `SettingsError` with every problem."""
    return load(ProxySettings, "fastllm proxy", arguments, environ)
