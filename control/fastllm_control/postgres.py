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

import fcntl
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from fastllm_control.leash import die_with_parent
from fastllm_control.postgres_install import (
    Install,
    PostgresError,
    account_for,
    install_for,
    wheel_install,
)

ROLE = "fastllm"
DATABASE = "fastllm"

_LOG_KEPT_BYTES = 16 << 20
_POLL_SECONDS = 0.01
_REMAINS_SECONDS = 30.0
"""How long the processes of a killed server may take to go away before a start gives up."""


class EmbeddedPostgres:
    """Supervises one server on `data_dir`. Not thread-safe; start it from the main thread.

    `durable=False` turns fsync off, for tests. `settings` are further server parameters.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        install: Install | None = None,
        durable: bool = True,
        settings: Mapping[str, str] | None = None,
        start_seconds: float = 120.0,
    ) -> None:
        self.data_dir = data_dir.absolute()
        self.folder = self.data_dir / "postgres"
        self.log_file = self.data_dir / "logs" / "postgres.log"
        self.port = 0
        self._durable = durable
        self._settings = dict(settings or {})
        self._start_seconds = start_seconds
        self._wheel = install
        self._install: Install | None = None
        self._password = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: IO[str] | None = None

    @property
    def pid(self) -> int | None:
        """The postmaster's process id; `None` when it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def programs(self) -> Install:
        """The programs in use, once started."""
        if self._install is None:
            raise PostgresError("the embedded Postgres has not been started")
        return self._install

    def url(self, database: str = DATABASE) -> str:
        """The address of a database on this server, password included."""
        return f"postgresql+asyncpg://{ROLE}:{self._password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> str:
        """Make the data if there is none, start the server, wait until it answers; returns the URL.

        Also starts it again after it died, on the same port. Raises `PostgresError`.
        """
        self.launch()
        self.wait_ready()
        return self.url()

    def launch(self) -> None:
        """The first half of `start`: everything up to the fork, which must happen on the main thread."""
        if self.pid is not None:
            raise PostgresError(f"Postgres already runs on {self.folder}")
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._acquire()
        try:
            self._prepare()
            self._fork()
        except BaseException:
            self._release()
            raise

    def wait_ready(self) -> None:
        """The second half of `start`; may run on any thread. Raises `PostgresError` with the server's words."""
        deadline = time.monotonic() + self._start_seconds
        while not self._is_ready():
            if self.pid is None:
                code = self._process.returncode if self._process else None
                raise PostgresError(f"Postgres ended with {code} while starting:\n{self._last_words()}")
            if time.monotonic() > deadline:
                raise PostgresError(
                    f"Postgres is not ready after {self._start_seconds:g} s; see {self.log_file}"
                )
            time.sleep(_POLL_SECONDS)

    def stop(self, grace_seconds: float = 20.0) -> None:
        """Stop the server: fast, then immediate, then by force; a second call does nothing."""
        process, self._process = self._process, None
        if process is not None:
            for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
                process.send_signal(number)
                try:
                    process.wait(grace_seconds)
                    break
                except subprocess.TimeoutExpired:
                    continue
            self._take_running().close()  # comes through once the last of its processes has gone
        self._release()

    def _acquire(self) -> None:
        if self._lock is not None:
            return
        lock = (self.data_dir / "postgres.lock").open("a+", encoding="ascii")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            lock.close()
            raise PostgresError(
                f"{self.data_dir} is in use by another FastLLM (pid {holder}); stop it, or choose another folder"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        self._lock = lock

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _take_running(self) -> IO[bytes]:
        """The lock that the server's processes inherit; waits for those of a killed one to be gone."""
        running = (self.data_dir / "postgres.running").open("ab")
        deadline = time.monotonic() + _REMAINS_SECONDS
        while True:
            try:
                fcntl.flock(running, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    running.close()
                    raise PostgresError(
                        f"a Postgres whose supervisor was killed still runs on {self.folder}; end it first"
                    ) from None
                time.sleep(_POLL_SECONDS)
            else:
                return running

    def _prepare(self) -> None:
        wheel = self._wheel or wheel_install()
        self._account = account_for(self.folder)
        self._install = install_for(self._account, wheel)
        self.log_file.parent.mkdir(mode=0o700, exist_ok=True)
        if self.log_file.exists() and self.log_file.stat().st_size > _LOG_KEPT_BYTES:
            self.log_file.replace(self.log_file.with_suffix(".log.old"))
        if self.folder.exists():
            self._check_version()
            self._password = self._read_password()
        else:
            self._password = self._new_password()
            self._initialise()

    def _check_version(self) -> None:
        version_file = self.folder / "PG_VERSION"
        try:
            found = version_file.read_text(encoding="ascii").strip()
        except OSError as error:
            raise PostgresError(f"{self.folder} is no Postgres data folder: {error}") from error
        known = self.programs.major()
        if found != str(known):
            raise PostgresError(
                f"{self.folder} was written by PostgreSQL {found}, and this FastLLM carries PostgreSQL {known}: "
                f"dump the data with a FastLLM that carries {found} and load it here, or choose another folder"
            )

    def _read_password(self) -> str:
        file = self.data_dir / "postgres-password"
        try:
            return file.read_text(encoding="ascii").strip()
        except OSError as error:
            raise PostgresError(
                f"cannot read the password of the database in {self.folder}: {error}"
            ) from error

    def _new_password(self) -> str:
        password = secrets.token_hex(24)
        file = self.data_dir / "postgres-password"
        file.unlink(missing_ok=True)  # of an attempt that was cut short before it had any data
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as out:
            out.write(password + "\n")
        return password

    def _initialise(self) -> None:
        """initdb into a folder beside, which takes its name once nothing can go wrong any more."""
        torn = self.data_dir / "postgres.new"
        with ExitStack() as stack:
            running = stack.enter_context(self._take_running())
            shutil.rmtree(torn, ignore_errors=True)
            torn.mkdir(mode=0o700)
            if self._account.switch:
                os.chown(torn, self._account.uid, self._account.gid)
            password = stack.enter_context(tempfile.TemporaryFile())
            password.write(self._password.encode() + b"\n")
            password.flush()
            os.fchown(password.fileno(), self._account.uid, self._account.gid)
            location, kept = self._location(torn, stack)
            fds = [running.fileno(), password.fileno(), *kept]
            self._run(
                [self.programs.program("initdb"), "-D", location, "-U", ROLE, "-A", "scram-sha-256"]
                + [f"--pwfile=/dev/fd/{password.fileno()}", "--locale-provider=builtin"]
                + ["--builtin-locale=C.UTF-8", "-E", "UTF8", "--no-instructions"]
                + ([] if self._durable else ["--no-sync"]),
                fds,
            )
            single = [
                self.programs.program("postgres"),
                "--single",
                "-D",
                location,
                *self._fsync(),
                "postgres",
            ]
            self._run(single, [running.fileno(), *kept], feed=f"CREATE DATABASE {DATABASE}\n".encode())
        (torn / "pg_hba.conf").write_text(
            "# One role, one address, one method. Written by FastLLM.\n"
            "host all all 127.0.0.1/32 scram-sha-256\n",
            encoding="ascii",
        )
        torn.rename(self.folder)

    def _run(self, command: Sequence[str], fds: Sequence[int], feed: bytes = b"") -> None:
        done = subprocess.run(
            command, input=feed, capture_output=True, check=False, **self._child(fds, signal.SIGKILL)
        )
        if done.returncode != 0:
            said = (done.stdout + done.stderr).decode(errors="replace")
            raise PostgresError(f"{Path(command[0]).name} failed with {done.returncode}:\n{said}")

    def _fork(self) -> None:
        self.port = self.port or free_port()
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
            running = stack.enter_context(self._take_running())
            location, kept = self._location(self.folder, stack)
            command = [self.programs.program("postgres"), "-D", location, *self._fsync()]
            for name, value in parameters.items():
                command += ["-c", f"{name}={value}"]
            log = stack.enter_context(self.log_file.open("ab"))
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # the terminal's Ctrl-C is for us: the database stops last
                **self._child([running.fileno(), *kept], signal.SIGINT),
            )

    def _child(self, fds: Sequence[int], end_with: signal.Signals) -> dict[str, Any]:
        """How every child is started: leashed, in a folder it can enter, as the account."""
        options: dict[str, Any] = {
            "pass_fds": tuple(fds),
            "cwd": "/",
            "preexec_fn": die_with_parent(end_with),
            "env": {"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
        }
        if self._account.switch:
            options |= {"user": self._account.uid, "group": self._account.gid, "extra_groups": []}
        return options

    def _location(self, folder: Path, stack: ExitStack) -> tuple[str, list[int]]:
        """How the account names `folder`, and the descriptors that it needs for that.

        Another account may not be let through the folders above (those of a home, say), and opening
        them to everybody is not ours to do: it gets the folder as an open descriptor.
        """
        if not self._account.switch or not Path("/proc/self/fd").is_dir():
            return str(folder), []
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, descriptor)
        return f"/proc/self/fd/{descriptor}", [descriptor]

    def _fsync(self) -> list[str]:
        if self._durable:
            return []
        return ["-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off"]

    def _is_ready(self) -> bool:
        """Postgres writes its state into the eighth line of its pid file, as `pg_ctl` reads it."""
        try:
            lines = (self.folder / "postmaster.pid").read_text(encoding="ascii").splitlines()
        except OSError:
            return False
        return len(lines) > 7 and lines[0] == str(self.pid) and lines[7].strip() == "ready"

    def _last_words(self, lines: int = 8) -> str:
        try:
            said = self.log_file.read_bytes()[-4096:].decode(errors="replace")
        except OSError as error:
            return str(error)
        return "\n".join(said.splitlines()[-lines:])


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
