"""`fastllm up`: all of FastLLM on one machine, out of the processes that a larger installation runs.

    1  take the data folder, remove a stale ready file
    2  the demo engine, if asked for: it loads while the rest starts
    3  Postgres, embedded or yours; migrations; the first login and the first key
    4  the control plane; the demo's models by its admin API
    5  the proxies
    6  the ready file, and what a person needs on standard output

Whatever dies is started again. All of it ends with this process: in order on a signal (proxies, control
plane, engine, Postgres), at once on a second one, and by the kernel when this process is killed.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import signal
import sys
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import uvloop

from fastllm_control import demo, migrate
from fastllm_control.children import Child, PostgresChild, Process, Supervisor
from fastllm_control.config import DatabaseSettings, driver_url
from fastllm_control.database import open_engine
from fastllm_control.demo_engine import EngineMissing, model_file
from fastllm_control.first_login import FirstLogin, ensure_first_login
from fastllm_control.kept_secrets import KeptSecrets
from fastllm_control.observe import Log, make_log
from fastllm_control.postgres import EmbeddedPostgres
from fastllm_control.postgres_install import PostgresError
from fastllm_control.private_files import FolderInUse, FolderLock
from fastllm_control.readiness import NotReady, Readiness
from fastllm_control.ready_file import Pids, Ready, announcement, curl_line, remove_stale, write_ready
from fastllm_control.security import Passwords
from fastllm_control.transaction import Database
from fastllm_control.up_processes import PortInUse, Processes, choose_addresses
from fastllm_control.up_settings import Passed, UpSettings, default_data_dir, read_settings


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run until a signal. Raises `SettingsError`, `SchemaMismatch`, `OSError`."""
    settings, passed = read_settings(arguments, environ)
    log = make_log(sys.stderr, passed.control.get("log_format", "text"))
    data_dir = Path(settings.data_dir).absolute() if settings.data_dir else default_data_dir(environ)
    try:
        if settings.demo:
            model_file()  # what is missing is said before anything is touched
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FolderLock(data_dir / "up.lock"), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            up = Up(settings, passed, environ, data_dir, log)
            return runner.run(up.run())
    except (PostgresError, FolderInUse, PortInUse, EngineMissing, NotReady, demo.DemoError) as error:
        sys.stderr.write(f"fastllm up: {error}\n")
        return 1


class Up:
    """One run of it, on a data folder that is ours alone."""

    def __init__(
        self, settings: UpSettings, passed: Passed, environ: Mapping[str, str], data_dir: Path, log: Log
    ) -> None:
        self._settings = settings
        self._data_dir = data_dir
        self._log = log
        self._ready_file = Path(settings.ready_file) if settings.ready_file else data_dir / "ready.json"
        self._kept = KeptSecrets(data_dir / "secrets")
        self._encryption_key = settings.encryption_key or self._kept.encryption_key()
        self._proxy_token = settings.proxy_token or self._kept.proxy_token()
        self._addresses = choose_addresses(settings, self._kept)
        self._processes = Processes(self._addresses, passed, environ, data_dir / "logs")
        self._supervisor = Supervisor(log, self._write_ready)
        self._stopping = asyncio.Event()
        self._database_url = driver_url(settings.database_url or "")
        self._first = FirstLogin(None, None)
        self._postgres: PostgresChild | None = None
        self._engine: Process | None = None
        self._control: Process | None = None
        self._proxies: list[Process] = []

    async def run(self) -> int:
        """Start, watch, stop. Returns the exit code."""
        remove_stale(self._ready_file)
        self._listen_for_signals()
        try:
            await self._unless_stopped(self._start())
            if not self._stopping.is_set():
                self._write_ready()
                self._announce()
            await self._unless_stopped(self._supervisor.run())
        finally:
            await self._supervisor.stop()
            remove_stale(self._ready_file)
        return 0

    def _listen_for_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # `nohup` means it; SIGINT is ignored in any script's background job, which means nothing.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        if self._stopping.is_set():
            self._supervisor.kill()
        self._stopping.set()

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it, or as much of it as there is time for until a signal. Raises what it raises."""
        task = asyncio.create_task(work)
        signalled = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((task, signalled), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                await task
        finally:
            for one in (task, signalled):
                one.cancel()
            await asyncio.gather(task, signalled, return_exceptions=True)

    async def _start(self) -> None:
        async with Readiness() as readiness:
            if not self._settings.database_url:
                self._postgres = PostgresChild(EmbeddedPostgres(self._data_dir))
                self._supervisor.watch(self._postgres)
            if self._settings.demo:
                self._engine = self._processes.engine(self._kept.engine_key())
                self._supervisor.add(self._engine)
            if self._postgres is not None:
                self._database_url = await self._postgres.first_start()
            await asyncio.to_thread(migrate.upgrade, self._database_url)
            self._first = await self._find_first_login()
            await self._start_planes(readiness)

    async def _find_first_login(self) -> FirstLogin:
        engine = open_engine(DatabaseSettings(database_url=self._database_url))
        now = datetime.datetime.now(datetime.UTC)
        try:
            return await ensure_first_login(Database(engine), Passwords(), self._kept, now)
        finally:
            await engine.dispose()

    async def _start_planes(self, readiness: Readiness) -> None:
        addresses = self._addresses
        control = self._processes.control(self._database_url, self._encryption_key, self._proxy_token)
        self._control = control
        self._supervisor.add(control)
        self._proxies = self._processes.proxies(self._proxy_token)
        for proxy in self._proxies:  # at the same time: they ask until the control plane answers
            self._supervisor.add(proxy)
        await readiness.answers(control, f"{addresses.control_url}/readyz")
        version = await self._register_demo(readiness)
        for proxy, url in zip(self._proxies, addresses.proxy_urls, strict=True):
            await readiness.answers(proxy, f"{url}/readyz")
            await readiness.serves(proxy, url, version)

    async def _register_demo(self, readiness: Readiness) -> int:
        """Returns the version of the snapshot that proxies must have; 0 if any will do."""
        if self._engine is None:
            return 0
        await readiness.answers(self._engine, f"{self._addresses.engine_url}/health")
        login = self._first.admin
        if login is None:
            self._log.warning(
                "the login made by the first run has changed: the demo's models stay as they are"
            )
            return 0
        engine_url = f"{self._addresses.engine_url}/v1"
        return await demo.register(self._addresses.control_url, login, engine_url, self._kept.engine_key())

    def _write_ready(self) -> None:
        write_ready(self._ready_file, self._ready())

    def _ready(self) -> Ready:
        urls = self._addresses.proxy_urls
        model = demo.FRONTEND_MODEL if self._engine is not None else None
        return Ready(
            proxy_url=urls[0],
            proxy_urls=urls,
            control_url=self._addresses.control_url,
            admin=self._first.admin,
            api_key=self._first.api_key,
            proxy_token=self._proxy_token,
            database_url=self._database_url.replace("postgresql+asyncpg://", "postgresql://", 1),
            demo_model=model,
            curl=curl_line(urls[0], self._first.api_key, model),
            pids=Pids(
                up=os.getpid(),
                control=_pid(self._control),
                postgres=_pid(self._postgres),
                engine=_pid(self._engine),
                proxies=tuple(proxy.pid for proxy in self._proxies),
            ),
        )

    def _announce(self) -> None:
        text = announcement(self._ready(), self._data_dir, self._ready_file, secrets=not self._kept.shown())
        sys.stdout.write(text)
        sys.stdout.flush()
        self._kept.keep_shown()


def _pid(child: Child | None) -> int | None:
    return None if child is None else child.pid
