"""The command line as a whole."""

from __future__ import annotations

import pytest

import fastllm_shared
from fastllm_control.__main__ import COMMANDS, main
from tests.fakes.command import fastllm


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["version"], ["--version"]):
        assert main(arguments) == 0
        assert capsys.readouterr().out == f"fastllm {fastllm_shared.__version__}\n"


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--help"], ["help"]):
        assert main(arguments) == 0
        out = capsys.readouterr().out
        assert not [name for name in COMMANDS if name not in out]


def test_every_command_of_the_specification_is_there() -> None:
    wanted = "up control proxy migrate set-password create-key export apply import sync-prices"
    assert set(COMMANDS) == {*wanted.split(), "rotate-encryption-key", "doctor", "version"}


def test_an_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bogus"]) == 2
    captured = capsys.readouterr()
    assert (captured.out, "fastllm --help" in captured.err) == ("", True)


@pytest.mark.parametrize("name", ["export", "apply", "import", "sync-prices", "doctor"])
def test_what_is_planned_says_so(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name]) == 1
    assert capsys.readouterr().err == f"fastllm {name}: not available yet\n"


@pytest.mark.parametrize("name", ["control", "migrate", "set-password", "create-key"])
async def test_every_command_explains_its_flags(name: str) -> None:
    done = await fastllm(name, "--help")
    assert (done.code, done.errors) == (0, "")
    assert "[FASTLLM_" in done.out
