"""The `fastllm` command line, all of it but `fastllm proxy`.

Every failure that a person can mend is one line on standard error that says what to do.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Mapping, Sequence

from sqlalchemy.exc import SQLAlchemyError

import fastllm_shared
from fastllm_control.database import DatabaseUnreachable
from fastllm_control.errors import ApiError
from fastllm_control.migrate import SchemaMismatch
from fastllm_shared.settings import SettingsError

USAGE = 2
"""Exit code when the command line or a setting is wrong, as `argparse` has it."""

EXIT_CODES: Mapping[int, str] = {
    0: "done, or it was so already",
    1: "refused or failed: a line says why (also that a migration must come first), and nothing was changed",
    2: "a flag, a variable or the command is wrong",
    78: "the database's schema is newer than this program: run the program that fits",
    130: "interrupted",
}
"""Of every command."""

COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("fastllm_control.up", "everything on this machine, on an embedded database"),
    "control": ("fastllm_control.serve", "the control plane"),
    "proxy": ("", "the data plane"),
    "migrate": ("fastllm_control.commands.migrate", "bring the database's schema up to this program"),
    "set-password": ("fastllm_control.commands.set_password", "set a person's password"),
    "create-key": ("fastllm_control.commands.create_key", "create an API key"),
    "export": ("fastllm_control.commands.export", "write the configuration as YAML"),
    "apply": ("fastllm_control.commands.apply", "make the database so as a YAML file says"),
    "import": ("fastllm_control.commands.import_", "take over another gateway's configuration"),
    "sync-prices": ("", "fill in prices from a catalogue"),
    "rotate-encryption-key": ("", "re-encrypt every credential under the newest key"),
    "doctor": ("", "check a deployment end to end"),
    "completion": ("fastllm_control.commands.completion", "print what bash, zsh or fish completes"),
    "help": ("", "explain a command, as in `fastllm help up`"),
    "version": ("", "print the version"),
}
"""Module with `run(arguments, environ) -> int` and one line of help. A command without a module that is
not handled in `main` is planned, and says so."""


def main(arguments: Sequence[str]) -> int:
    """Run `fastllm ARGUMENTS…`; returns the exit code."""
    name = arguments[0] if arguments else "--help"
    if name == "completion" and arguments[1:] in (["--help"], ["-h"]):
        name, arguments = "help", ["help", name]
    if name == "help" and len(arguments) > 1:
        name, arguments = arguments[1], [arguments[1], "--help"]
        if name in ("help", "version", "completion"):
            return _say(f"fastllm {name}: {COMMANDS[name][1]}")
        if name == "proxy":  # of the other plane, which the entry point chooses
            return _say("fastllm proxy: the data plane; `fastllm proxy --help` explains its flags")
    if name in ("--help", "-h", "help"):
        return _help()
    if name in ("version", "--version"):
        return _say(f"fastllm {fastllm_shared.__version__}")
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        meant = f" Did you mean `fastllm {near[0]}`?" if near else ""
        return _fail(f"fastllm: there is no command {name!r}: see `fastllm --help`.{meant}", USAGE)
    module, _ = COMMANDS[name]
    if not module:
        return _fail(f"fastllm {name}: not available yet", 1)
    try:
        return int(importlib.import_module(module).run(list(arguments[1:]), os.environ))
    except SettingsError as error:
        return _fail("\n".join(f"fastllm {name}: {problem}" for problem in error.problems), USAGE)
    except SchemaMismatch as error:
        return _fail(f"fastllm {name}: {error}", error.exit_code)
    except (ApiError, DatabaseUnreachable) as error:
        return _fail("\n".join(f"fastllm {name}: {line}" for line in str(error).splitlines()), 1)
    except (OSError, SQLAlchemyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return _fail(f"fastllm {name}: {reason}", 1)
    except KeyboardInterrupt:
        return 130


def _help() -> int:
    lines = ["usage: fastllm COMMAND [--help] [flags]", "", "commands:"]
    lines += [f"  {name:<22} {text}" for name, (_, text) in COMMANDS.items()]
    lines += ["", "exit codes:", *(f"  {code:<22} {meaning}" for code, meaning in EXIT_CODES.items())]
    return _say("\n".join(lines))


def _say(text: str) -> int:
    sys.stdout.write(text + "\n")
    return 0


def _fail(text: str, code: int) -> int:
    sys.stderr.write(text + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
