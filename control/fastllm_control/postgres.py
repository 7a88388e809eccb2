"""The embedded Postgres: one server on one folder, which lives no longer than this process.

    DIR/postgres            the data, made as `postgres.new` and renamed once it is complete
    DIR/postgres-password   the password of the role `fastllm`, 0600
    DIR/postgres.lock       held by the process that supervises the server; names its pid
    DIR/postgres.running    held by the server's own processes, so that no second server starts beside
                            the remains of one whose supervisor or postmaster was killed
    DIR/logs/postgres.log   what the server says

It listens on 127.0.0.1 only, on a free port, with a password, and on no Unix socket, whose file a killed
process would leave behind.
"""

from __future__ import annotations

import errno
import fcntl
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from fastllm_control.log_files import LogFile
from fastllm_control.postgres_data import DATABASE, ROLE, DataFolder
from fastllm_control.postgres_install import (
    Install,
    PostgresError,
    account_for,
    install_for,
    wheel_install,
)
from fastllm_control.private_files import FolderInUse, FolderLock, read_or_make

_POLL_SECONDS = 0.01
_PORTS_TRIED = 5


class PortTaken(PostgresError):
    """Somebody else listened on the port by the time the server did."""


class EmbeddedPostgres:
    """Supervises one server on `data_dir`. Not thread-safe; start it from the main thread.

    `durable=False` turns fsync off, for tests; `settings` are further server parameters; `install` takes
    the place of the wheel's programs. `remains_seconds` is how long the processes of a killed server may
    take to go before a start gives up.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        install: Install | None = None,
        durable: bool = True,
        settings: Mapping[str, str] | None = None,
        start_seconds: float = 120.0,
        remains_seconds: float = 30.0,
    ) -> None:
        self.data_dir = data_dir.absolute()
        self.folder = self.data_dir / "postgres"
        self.log = LogFile(self.data_dir / "logs" / "postgres.log")
        self.port = 0
        self._wheel = install
        self._durable = durable
        self._settings = dict(settings or {})
        self._start_seconds = start_seconds
        self._remains_seconds = remains_seconds
        self._lock = FolderLock(self.data_dir / "postgres.lock")
        self._data: DataFolder | None = None
        self._password = ""
        self._served = False
        self._stopping = False
        self._grace_seconds = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The postmaster's process id; `None` when it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def programs(self) -> Install:
        """The programs in use, once started."""
        if self._data is None:
            raise PostgresError("the embedded Postgres has not been started")
        return self._data.install

    def url(self, database: str = DATABASE) -> str:
        """The address of a database on this server, password included."""
        return f"postgresql+asyncpg://{ROLE}:{self._password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> str:
        """Make the data if there is none, start the server, wait until it answers; returns the URL.

        Also starts it again after it died, on the same port. Raises `PostgresError`.
        """
        for _ in range(_PORTS_TRIED):
            self.launch()
            try:
                self.wait_ready()
            except PortTaken:
                continue
            return self.url()
        raise PostgresError(f"no free port after {_PORTS_TRIED} attempts; see {self.log.path}")

    def launch(self) -> None:
        """The first half of `start`: everything up to the fork, which must happen on the main thread."""
        if self.pid is not None:
            raise PostgresError(f"Postgres already runs on {self.folder}")
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._lock.acquire()
        except FolderInUse as error:
            raise PostgresError(str(error)) from None
        try:
            with self._running() as running:
                self._fork(self._prepare(running), running)
        except BaseException:
            self._lock.release()
            raise

    def wait_ready(self) -> None:
        """The second half of `start`; may run on any thread.

        Raises `PostgresError` with the server's last words when it ends instead, `PortTaken` when somebody
        took its port before it ever served (the next `launch` takes another).
        """
        deadline = time.monotonic() + self._start_seconds
        while not self._is_ready():
            if self.pid is None:
                raise self._failure()
            if time.monotonic() > deadline:
                raise PostgresError(
                    f"Postgres is not ready after {self._start_seconds:g} s; see {self.log.path}"
                )
            time.sleep(_POLL_SECONDS)
        self._served = True

    def stop(self, grace_seconds: float = 20.0) -> None:
        """Stop the server: fast, then at once, then by force, each after the grace of the one before.

        A second call does nothing; one that comes from another thread while the first still waits gives that
        one its own grace.
        """
        self._grace_seconds = grace_seconds
        process, self._process = self._process, None
        if process is None:
            if not self._stopping:
                self._lock.release()
            return
        self._stopping = True
        try:
            for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
                process.send_signal(number)
                if self._ends(process):
                    break
            self._running().close()  # comes through once the last of its processes has gone
        finally:
            self._stopping = False
            self._lock.release()

    def _ends(self, process: subprocess.Popen[bytes]) -> bool:
        since = time.monotonic()
        while process.poll() is None:
            if time.monotonic() - since > self._grace_seconds:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def _running(self) -> IO[bytes]:
        """The lock that the server's processes inherit; waits for those of a killed one to be gone."""
        running = (self.data_dir / "postgres.running").open("ab")
        deadline = time.monotonic() + self._remains_seconds
        while True:
            try:
                fcntl.flock(running, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    running.close()
                    raise PostgresError(
                        f"processes of a Postgres that was killed still run on {self.folder}: end them first"
                    ) from None
                time.sleep(_POLL_SECONDS)
            else:
                return running

    def _prepare(self, running: IO[bytes]) -> DataFolder:
        wheel = self._wheel or wheel_install()
        account = account_for(self.folder)
        data = DataFolder(self.folder, account, install_for(account, wheel), self._durable)
        if self.folder.exists():
            data.check_version()
        self._password = read_or_make(self.data_dir / "postgres-password", lambda: secrets.token_hex(24))
        if not self.folder.exists():
            data.initialise(self._password, running.fileno())
        self._data = data
        return data

    def _fork(self, data: DataFolder, running: IO[bytes]) -> None:
        self.port = self.port or free_ports(1)[0]
        parameters = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "logging_collector": "off",
            "log_timezone": "UTC",
            "timezone": "UTC",
            **self._settings,
        }
        with ExitStack() as stack:
            location, fds = data.location(data.folder, stack)
            command = [data.install.program("postgres"), "-D", location, *data.fsync()]
            for name, value in parameters.items():
                command += ["-c", f"{name}={value}"]
            log = stack.enter_context(self.log.open())
            self._process = subprocess.Popen(  # noqa: S603 (our own programs)
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # the terminal's Ctrl-C is for us: the database stops last
                **data.child([running.fileno(), *fds], signal.SIGINT),
            )

    def _is_ready(self) -> bool:
        """Postgres writes its state into the eighth line of its pid file, as `pg_ctl` reads it."""
        try:
            lines = (self.folder / "postmaster.pid").read_text(encoding="utf-8").splitlines()
        except OSError:
            return False
        return len(lines) > 7 and lines[0] == str(self.pid) and lines[7].strip() == "ready"

    def _failure(self) -> PostgresError:
        words = self.log.last_words()
        code = self._process.returncode if self._process else None
        if not self._served and "Address already in use" in words:
            self.port = 0
            return PortTaken(words)
        return PostgresError(f"Postgres ended with {code} while starting:\n{words}")


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Different ports that nobody listens on just now."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((host, 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether nobody listens on `port` just now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def is_taken(port: int, host: str) -> bool:
    """Whether somebody listens on `port` of `host`. That it cannot be listened on for another reason is no
    yes."""
    for family, kind, protocol, _, address in socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    ):
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                probe.bind(address)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return True
    return False
