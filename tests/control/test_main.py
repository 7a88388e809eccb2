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
    further = "rotate-encryption-key doctor completion help version"
    assert set(COMMANDS) == {*wanted.split(), *further.split()}


def test_an_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bogus"]) == 2
    captured = capsys.readouterr()
    assert (captured.out, "fastllm --help" in captured.err) == ("", True)


@pytest.mark.parametrize("name", ["sync-prices", "doctor"])
def test_what_is_planned_says_so(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name]) == 1
    assert capsys.readouterr().err == f"fastllm {name}: not available yet\n"


@pytest.mark.parametrize("name", ["migrate", "import", "create-key"])
async def test_help_of_a_command_has_an_example(name: str) -> None:
    done = await fastllm("help", name)
    assert (done.code, done.errors) == (0, "")
    assert "example" in done.out
    assert f"fastllm {name}" in done.out


def test_help_of_what_has_no_flags(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("help", "version", "completion", "proxy"):
        assert main(["help", name]) == 0
        assert name in capsys.readouterr().out
    assert main(["completion", "--help"]) == 0
    assert "bash" in capsys.readouterr().out


async def test_the_nearest_is_suggested_in_one_line() -> None:
    flag = await fastllm("import", "--dryrun")
    assert (flag.code, flag.out) == (2, "")
    assert flag.errors == (
        "fastllm import: there is no flag --dryrun: did you mean --dry-run? (see `fastllm import --help`)\n"
    )
    command = await fastllm("improt")
    assert (command.code, command.errors.count("\n")) == (2, 1)
    assert "Did you mean `fastllm import`?" in command.errors


@pytest.mark.parametrize("name", ["control", "migrate", "set-password", "create-key"])
async def test_every_command_explains_its_flags(name: str) -> None:
    done = await fastllm(name, "--help")
    assert (done.code, done.errors) == (0, "")
    assert "[FASTLLM_" in done.out
