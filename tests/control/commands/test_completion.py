"""`fastllm completion`."""

from __future__ import annotations

import asyncio

import pytest

from fastllm_control.commands.completion import flags_of, script
from tests.fakes.command import fastllm


def test_flags_are_those_of_the_declared_settings() -> None:
    found = [flag for flag, _ in flags_of("fastllm_control.commands.import_")]
    assert {"--litellm", "--dry-run", "--help"} <= set(found)
    assert "--database-url" not in found  # a secret has no flag
    assert "--port" in [flag for flag, _ in flags_of("fastllm_control.config:ControlSettings")]
    assert flags_of("fastllm_control.errors") == [("--help", "explain the flags")]


async def test_bash_completes_commands_and_flags() -> None:
    done = await fastllm("completion", "bash")
    assert done.code == 0
    asked = 'COMP_WORDS=(fastllm import --li); COMP_CWORD=2; _fastllm; echo "${COMPREPLY[@]}"'
    first = 'COMP_WORDS=(fastllm mig); COMP_CWORD=1; _fastllm; echo "${COMPREPLY[@]}"'
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", f"{done.out}\n{asked}\n{first}", stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert out.decode().split() == ["--litellm", "migrate"]


@pytest.mark.parametrize("arguments", [(), ("tcsh",), ("bash", "zsh")])
async def test_which_shell_must_be_said(arguments: tuple[str, ...]) -> None:
    done = await fastllm("completion", *arguments)
    assert (done.code, done.out, done.errors.count("\n")) == (2, "", 1)
    assert "bash, zsh or fish" in done.errors


def test_other_shells() -> None:
    flags = {"apply": [("--file", "it's a file")]}
    texts = {"apply": "make it so"}
    assert script("zsh", flags, texts).startswith("autoload")
    fish = script("fish", flags, texts)
    assert "-l file -d 'it\\'s a file'" in fish
    assert "-a apply -d 'make it so'" in fish
