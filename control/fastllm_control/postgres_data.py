"""The embedded Postgres' data folder: making it as a whole, recognising it, handing it to its account."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import msgspec

from fastllm_control.leash import die_with_parent
from fastllm_control.postgres_install import Account, Install, PostgresError

ROLE = "fastllm"
DATABASE = "fastllm"

_ACCESS = """\
# One role, one address, one method. Written by FastLLM when it made this folder.
host all all 127.0.0.1/32 scram-sha-256
"""


class DataFolder(msgspec.Struct, frozen=True):
    """The folder of one database cluster, the account that owns it and the programs that know it.

    `durable=False` turns fsync off, for tests.
    """

    folder: Path
    account: Account
    install: Install
    durable: bool = True

    def check_version(self) -> None:
        """Raises `PostgresError` unless the folder was made by the same major version."""
        try:
            found = (self.folder / "PG_VERSION").read_text(encoding="utf-8").strip()
        except OSError as error:
            raise PostgresError(f"{self.folder} is no Postgres data folder: {error}") from error
        known = self.install.major()
        if found != str(known):
            raise PostgresError(
                f"{self.folder} was written by PostgreSQL {found}, and this FastLLM carries PostgreSQL"
                f" {known}: dump the data with a FastLLM that carries {found} and load it into a new folder,"
                " or choose another folder. Nothing was changed"
            )

    def initialise(self, password: str, running: int) -> None:
        """Make the cluster in a folder beside, which takes its name once nothing can go wrong any more.

        What an earlier attempt left there is removed first. `running` is a descriptor that the programs
        hold open. Raises `PostgresError` with what they said.
        """
        torn = self.folder.with_name(self.folder.name + ".new")
        shutil.rmtree(torn, ignore_errors=True)
        torn.mkdir(mode=0o700)
        if self.account.switch:
            os.chown(torn, self.account.uid, self.account.gid)
        with ExitStack() as stack:
            location, fds = self.location(torn, stack)
            told = stack.enter_context(self._password_file(password))
            self._initdb(location, told.fileno(), [running, told.fileno(), *fds])
            program = [
                self.install.program("postgres"),
                "--single",
                "-D",
                location,
                *self.fsync(),
                "postgres",
            ]
            self._run(program, [running, *fds], feed=f"CREATE DATABASE {DATABASE}\n".encode())
        (torn / "pg_hba.conf").write_text(_ACCESS, encoding="utf-8")
        torn.rename(self.folder)

    def location(self, folder: Path, stack: ExitStack) -> tuple[str, list[int]]:
        """How the account names `folder`, and the descriptors that it needs for that.

        Another account may not be let through the folders above (those of a home, say), and opening
        them to everybody is not ours to do: it gets the folder as an open descriptor.
        """
        if not self.account.switch or not Path("/proc/self/fd").is_dir():
            return str(folder), []
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, descriptor)
        return f"/proc/self/fd/{descriptor}", [descriptor]

    def child(self, fds: Sequence[int], end_with: signal.Signals) -> dict[str, Any]:
        """How every program on the folder is started: leashed, in a place it can enter, as the account."""
        options: dict[str, Any] = {
            "pass_fds": tuple(fds),
            "cwd": "/",
            "preexec_fn": die_with_parent(end_with),
            "env": {"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
        }
        if self.account.switch:
            options |= {"user": self.account.uid, "group": self.account.gid, "extra_groups": []}
        return options

    def fsync(self) -> list[str]:
        """The server parameters that say how durable the data is to be."""
        if self.durable:
            return []
        return ["-c", "fsync=off", "-c", "full_page_writes=off"]

    def _password_file(self, password: str) -> IO[bytes]:
        """A file without a name, which the account may open through its descriptor."""
        file = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes it)
        file.write(password.encode() + b"\n")
        file.flush()
        os.fchown(file.fileno(), self.account.uid, self.account.gid)
        return file

    def _initdb(self, location: str, password: int, fds: Sequence[int]) -> None:
        command = [self.install.program("initdb"), "-D", location, "-U", ROLE, "-A", "scram-sha-256"]
        command += [f"--pwfile=/dev/fd/{password}", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        command += ["-E", "UTF8", "--no-instructions", *([] if self.durable else ["--no-sync"])]
        self._run(command, fds)

    def _run(self, command: Sequence[str], fds: Sequence[int], feed: bytes = b"") -> None:
        options = self.child(fds, signal.SIGKILL)
        done = subprocess.run(  # noqa: S603 (our own programs)
            command, input=feed, capture_output=True, check=False, **options
        )
        if done.returncode != 0:
            said = (done.stdout + done.stderr).decode(errors="replace")
            raise PostgresError(f"{Path(command[0]).name} failed with {done.returncode}:\n{said}")
