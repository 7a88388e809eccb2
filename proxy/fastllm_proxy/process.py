"""The process around a replica: logs, sockets, the event loop, signals, the exit code."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Callable

import uvloop

from fastllm_proxy.app import Replica, Surroundings
from fastllm_proxy.config import ProxySettings
from fastllm_proxy.drain import drain, plan
from fastllm_proxy.listen import CannotListen, open_sockets, url_of
from fastllm_proxy.native import missing_extensions, raise_file_limit
from fastllm_proxy.observe import Log, capture_libraries, make_log
from fastllm_proxy.sink import LineSink
from fastllm_proxy.status import new_identity
from fastllm_shared import __version__

LAST_LINES_SECONDS = 0.1
LAST_WORD_SECONDS = 0.05


def run(settings: ProxySettings) -> int:
    """Serves until a signal; returns the exit code: 0 after a drain, 1 if it could not serve."""
    out, err = LineSink(1), LineSink(2)
    log = make_log(err, settings.log_format)
    capture_libraries(log)
    try:
        if missing := missing_extensions():
            log.error("compiled extensions are missing, reinstall from wheels", missing=missing)
            return 1
        try:
            sockets = open_sockets(settings.host, settings.port)
        except CannotListen as error:
            log.error(str(error))
            return 1
        around = Surroundings(
            identity=new_identity(__version__),
            log=log,
            out=out,
            err=err,
            file_limit=raise_file_limit(),
            port=sockets[0].getsockname()[1],
        )
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings, sockets, around))
        return 0
    finally:
        out.flush(LAST_LINES_SECONDS)
        err.flush(LAST_LINES_SECONDS)


async def _serve(settings: ProxySettings, sockets: list[socket.socket], around: Surroundings) -> None:
    log = around.log
    leave = Leave(log, around.err, os._exit)
    signals = Signals(asyncio.get_running_loop(), settings.shutdown_grace, leave)
    replica = Replica(settings, around)
    try:
        await replica.start(sockets)
        if settings.tls_cert is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, replica.look_at_certificate)
        log.info(
            "listening",
            url=url_of(sockets[0], tls=settings.tls_cert is not None),
            replica=around.identity.replica,
            version=around.identity.version,
            control_url=settings.control_url,
            file_limit=around.file_limit,
        )
        signalled_at = await signals.first()
        await drain(replica, plan(signalled_at, settings.drain_delay, settings.shutdown_grace), log)
    finally:
        await replica.close()
    log.info("stopped")


class Leave:
    """Ends the process from wherever it is, with a last word."""

    def __init__(self, log: Log, err: LineSink, leave: Callable[[int], object]) -> None:
        self._log = log
        self._err = err
        self._leave = leave

    def __call__(self, why: str, code: int) -> None:
        self._log.error(why)
        self._err.flush(LAST_WORD_SECONDS)
        self._leave(code)


class Signals:
    """SIGTERM and SIGINT: the first starts the drain, a second ends the process now. From the first on a
    thread sees to it that the grace is not exceeded, even if the event loop is stuck."""

    def __init__(self, loop: asyncio.AbstractEventLoop, grace_seconds: float, leave: Leave) -> None:
        self._grace = grace_seconds
        self._leave = leave
        self._first: asyncio.Future[float] = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._received, number)

    async def first(self) -> float:
        """The monotonic time of the first signal."""
        return await self._first

    def _received(self, number: signal.Signals) -> None:
        if self._first.done():
            self._leave("second signal, exiting now", 128 + number)
            return
        self._first.set_result(time.monotonic())
        watchdog = threading.Timer(self._grace, self._leave, ("shutdown grace exceeded, exiting now", 1))
        watchdog.daemon = True
        watchdog.start()
