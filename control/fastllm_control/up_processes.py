"""Which processes `fastllm up` runs, with which command lines, variables, addresses and logs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from fastllm_control.children import Process
from fastllm_control.demo_engine import KEY_VARIABLE
from fastllm_control.kept_secrets import KeptSecrets
from fastllm_control.postgres import free_ports, is_free, is_taken
from fastllm_control.up_settings import Passed, UpSettings, foreign_secrets
from fastllm_shared.command import Plane

_PYTHON = (sys.executable, "-P", "-m")  # -P: a module of that name in the current folder is none of ours
_GRACE_SECONDS = 30.0
_KILL_MARGIN_SECONDS = 5.0


class Addresses(msgspec.Struct, frozen=True):
    """Ports that were decided before anything starts, so that a restarted process has the same one."""

    control_port: int
    proxy_ports: tuple[int, ...]
    engine_port: int
    settings: UpSettings

    @property
    def control_url(self) -> str:
        return f"http://{_reachable(self.settings.control_host)}:{self.control_port}"

    @property
    def proxy_urls(self) -> tuple[str, ...]:
        return tuple(f"http://{_reachable(self.settings.host)}:{port}" for port in self.proxy_ports)

    @property
    def engine_url(self) -> str:
        """Without the `/v1` of its API."""
        return f"http://127.0.0.1:{self.engine_port}"


class PortInUse(Exception):
    """Somebody else listens where one of the processes was to listen."""


def choose_addresses(settings: UpSettings, kept: KeptSecrets) -> Addresses:
    """Free ports for whatever has none. The engine gets the one of the last run, which is configured.

    Raises `PortInUse`: were it another FastLLM, it would answer in the place of the process that could not
    listen, and be sent this one's password.
    """
    _require_free("--control-port", settings.control_host, settings.control_port)
    _require_free("--port", settings.host, settings.port)
    control, engine, first, *others = free_ports(2 + settings.proxies)
    if settings.demo:
        last = kept.engine_port()
        engine = last if last is not None and is_free(last) else engine
        kept.keep_engine_port(engine)
    return Addresses(
        control_port=settings.control_port or control,
        proxy_ports=(settings.port or first, *others),
        engine_port=engine,
        settings=settings,
    )


class Processes:
    """Builds them; starts none. Secrets go by the environment, and to the processes that need them only."""

    def __init__(self, addresses: Addresses, passed: Passed, environ: Mapping[str, str], logs: Path) -> None:
        self._addresses = addresses
        self._settings = addresses.settings
        self._passed = passed
        self._environ = environ
        self._logs = logs

    def control(self, database_url: str, encryption_key: str, proxy_token: str) -> Process:
        flags = ["--host", self._settings.control_host, "--port", str(self._addresses.control_port)]
        flags += ["--own-ports", ",".join(map(str, self._addresses.proxy_ports))]
        secrets = {
            "FASTLLM_DATABASE_URL": database_url,
            "FASTLLM_ENCRYPTION_KEY": encryption_key,
            "FASTLLM_PROXY_TOKEN": proxy_token,
            **foreign_secrets("control", self._environ),
        }
        command = [*_PYTHON, "fastllm_control", "control", *flags, *self._passed.flags("control")]
        return self._process("control", command, secrets, self._grace("control"))

    def proxies(self, proxy_token: str) -> list[Process]:
        made = []
        secrets = {"FASTLLM_PROXY_TOKEN": proxy_token, **foreign_secrets("proxy", self._environ)}
        for number, port in enumerate(self._addresses.proxy_ports, 1):
            flags = ["--host", self._settings.host, "--port", str(port)]
            flags += ["--control-url", self._addresses.control_url, *self._passed.flags("proxy")]
            command = [*_PYTHON, "fastllm_proxy", *flags]
            made.append(self._process(f"proxy-{number}", command, secrets, self._grace("proxy")))
        return made

    def engine(self, key: str) -> Process:
        command = [*_PYTHON, "fastllm_control.demo_engine", "--port", str(self._addresses.engine_port)]
        return self._process("engine", command, {KEY_VARIABLE: key}, _KILL_MARGIN_SECONDS)

    def _process(self, name: str, command: list[str], secrets: dict[str, str], grace: float) -> Process:
        # What is set for us is handed on as flags; what is secret, only to whom it concerns.
        plain = {key: value for key, value in self._environ.items() if not key.startswith("FASTLLM_")}
        return Process(name, command, plain | secrets, self._logs / f"{name}.log", grace)

    def _grace(self, plane: Plane) -> float:
        given: dict[str, float] = getattr(self._passed, plane)
        return float(given.get("shutdown_grace", _GRACE_SECONDS)) + _KILL_MARGIN_SECONDS


def _require_free(flag: str, host: str, port: int) -> None:
    if port and is_taken(port, host):
        raise PortInUse(f"port {port} on {host} is in use by another process (choose another with {flag})")


def _reachable(host: str) -> str:
    """An address to dial for an address to listen on."""
    known = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "[::1]"}  # noqa: S104 (compared, not bound)
    return known.get(host, f"[{host}]" if ":" in host else host)
