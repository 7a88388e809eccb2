"""`fastllm control`: sockets, signals, and Hypercorn driven by ourselves on uvloop."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import sys
from collections.abc import Mapping, Sequence

import hypercorn.asyncio
import uvloop
from hypercorn.config import Config
from starlette.applications import Starlette

import fastllm_shared
from fastllm_control import migrate
from fastllm_control.app import Services, build_app, build_services
from fastllm_control.config import ControlSettings
from fastllm_control.database import reached
from fastllm_control.observe import Log, bridged, make_log
from fastllm_shared.settings import SettingsError, load


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Serve until SIGTERM or SIGINT. Raises `SettingsError`, `SchemaMismatch`, `OSError`."""
    settings = load(ControlSettings, "fastllm control", arguments, environ)
    _check_certificate(settings)
    log = make_log(sys.stderr, settings.log_format, settings.log_level)
    with bridged(log), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings, log))


def _check_certificate(settings: ControlSettings) -> None:
    if settings.tls_cert is None or settings.tls_key is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        message = f"--tls-cert, --tls-key: no certificate with its key in these files: {error}"
        raise SettingsError([message]) from error


async def _serve(settings: ControlSettings, log: Log) -> int:
    services = build_services(settings, log)
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, services.stopping.set)
    async with reached(services.database.engine) as connection:
        await migrate.check(connection)
    with listen(settings.host, settings.port) as listener:
        address = url_of(listener, settings.serves_tls)
        log.info("control plane listens", url=address, version=fastllm_shared.__version__)
        await serve(build_app(services), services, listener)
    log.info("control plane ended")
    return 0


async def serve(app: Starlette, services: Services, listener: socket.socket) -> None:
    """Serve on `listener` until `services.stopping`, then let requests end within the grace."""
    await hypercorn.asyncio.serve(
        app,  # type: ignore[arg-type]  # Starlette's and Hypercorn's names for the same ASGI types
        _configuration(services.settings, listener),
        shutdown_trigger=services.stopping.wait,
    )


def listen(host: str, port: int) -> socket.socket:
    """A bound socket. Raises `OSError` that says which address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        # From here on clients wait in the queue, and are not refused, while the rest starts.
        listener.listen(100)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return listener


def url_of(listener: socket.socket, tls: bool) -> str:
    """Where a bound socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def _configuration(settings: ControlSettings, listener: socket.socket) -> Config:
    config = Config()
    # A duplicate, because Hypercorn closes what it is given.
    config.bind = [f"fd://{listener.dup().detach()}"]
    config.certfile = settings.tls_cert
    config.keyfile = settings.tls_key
    config.graceful_timeout = settings.shutdown_grace
    config.shutdown_timeout = settings.shutdown_grace
    config.include_server_header = False
    config.keep_alive_timeout = 75
    config.accesslog = None
    config.errorlog = None
    return config
