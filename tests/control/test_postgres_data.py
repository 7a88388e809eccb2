from __future__ import annotations

import os
import stat
from contextlib import ExitStack
from pathlib import Path

import pytest

from fastllm_control.postgres_data import DataFolder
from fastllm_control.postgres_install import Account, Install, PostgresError, account_for, wheel_install


def folder_at(path: Path, durable: bool = True) -> DataFolder:
    return DataFolder(path, account_for(path), wheel_install(), durable)


def test_making_it_lets_one_role_in_from_one_address_by_password(tmp_path: Path) -> None:
    data = folder_at(tmp_path / "postgres", durable=False)
    with (tmp_path / "running").open("ab") as running:
        data.initialise("secret", running.fileno())
    rules = (tmp_path / "postgres" / "pg_hba.conf").read_text().splitlines()
    assert [rule for rule in rules if not rule.startswith("#")] == ["host all all 127.0.0.1/32 scram-sha-256"]
    assert stat.S_IMODE((tmp_path / "postgres").stat().st_mode) == 0o700
    assert sorted(path.name for path in tmp_path.iterdir()) == ["postgres", "running"]
    data.check_version()


def test_a_failure_carries_the_programs_words(tmp_path: Path) -> None:
    program = tmp_path / "programs" / "bin" / "initdb"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho no space left >&2\nexit 3\n")
    program.chmod(0o755)
    own = Account(os.geteuid(), os.getegid(), switch=False)
    data = DataFolder(tmp_path / "postgres", own, Install(tmp_path / "programs"))
    with (
        (tmp_path / "running").open("ab") as running,
        pytest.raises(PostgresError, match=r"initdb failed with 3:\nno space left"),
    ):
        data.initialise("secret", running.fileno())
    assert not data.folder.exists()


def test_another_account_gets_the_folder_as_a_descriptor(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    data = DataFolder(tmp_path / "postgres", Account(65534, 65534, switch=True), wheel_install())
    with ExitStack() as stack:
        location, descriptors = data.location(data.folder, stack)
        assert os.path.samefile(location, data.folder)
        assert location == f"/proc/self/fd/{descriptors[0]}"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptors[0])


def test_our_own_account_gets_it_by_name(tmp_path: Path) -> None:
    data = DataFolder(tmp_path, Account(os.geteuid(), os.getegid(), switch=False), wheel_install())
    with ExitStack() as stack:
        assert data.location(tmp_path, stack) == (str(tmp_path), [])


def test_only_undurable_data_goes_without_fsync(tmp_path: Path) -> None:
    assert folder_at(tmp_path).fsync() == []
    assert "fsync=off" in folder_at(tmp_path, durable=False).fsync()
