"""Settings of a process, read from flags and environment into one frozen Struct.

A process declares its settings as a subclass of `Settings` whose fields are `Annotated[type,
Meta(description=…, …)]`.
`load` makes a flag `--some-name` and a variable `FASTLLM_SOME_NAME` of each field `some_name` (the flag
wins). A field marked `SECRET` has no flag, since flags show in process lists: it is read from its variable or
from the file that `<NAME>_FILE` points to. Everything wrong is reported together, before anything starts.
"""

from __future__ import annotations

import argparse
import difflib
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar, get_args, get_origin, get_type_hints

import msgspec

SECRET = "from-environment-only"
"""Key in `Meta.extra` that marks a field as a secret."""

MASKED = "********"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the settings of every process derive from: wherever they are shown, secrets are masked."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({effective(self)})"


T = TypeVar("T", bound=msgspec.Struct)


class SettingsError(Exception):
    """All that is wrong with the settings: one line each, in `problems`."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class Setting(msgspec.Struct, frozen=True):
    """One setting as documentation and parsers see it. `flag` is `None` for a secret."""

    field: str
    flag: str | None
    variable: str
    type: Any
    default: Any
    description: str

    @property
    def secret(self) -> bool:
        return self.flag is None

    @property
    def is_switch(self) -> bool:
        """Whether the flag may stand without a value."""
        bare = get_args(self.type)[0] if get_origin(self.type) is Annotated else self.type
        return bare is bool


def settings_of(kind: type[msgspec.Struct]) -> tuple[Setting, ...]:
    """Every setting of a settings Struct, in the order of its fields."""
    hints = get_type_hints(kind, include_extras=True)
    found = []
    for field in msgspec.structs.fields(kind):
        annotated = hints[field.name]
        metas = [m for m in get_args(annotated)[1:] if isinstance(m, msgspec.Meta)]
        secret = any((meta.extra or {}).get(SECRET) for meta in metas)
        found.append(
            Setting(
                field=field.name,
                flag=None if secret else "--" + field.name.replace("_", "-"),
                variable="FASTLLM_" + field.name.upper(),
                type=annotated,
                default=field.default,
                description=next((m.description for m in metas if m.description), ""),
            )
        )
    return tuple(found)


def effective(settings: Settings) -> dict[str, Any]:
    """Every setting by name, secrets masked."""
    shown: dict[str, Any] = {}
    for setting in settings_of(type(settings)):
        value = getattr(settings, setting.field)
        shown[setting.field] = MASKED if setting.secret and value is not None else value
    return shown


def load(kind: type[T], program: str, arguments: Sequence[str], environ: Mapping[str, str]) -> T:
    """Settings from `arguments` and `environ`.

    Raises `SettingsError` with every problem; `--help` and an unknown flag leave by `SystemExit` as
    `argparse` does, the latter with one line that names the nearest flag.
    """
    declared = settings_of(kind)
    parser = _parser(program, kind, declared)
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.error(_not_known(unknown[0], declared))
    flags = vars(parsed)
    values: dict[str, Any] = {}
    problems: list[str] = []
    for setting in declared:
        source, text = _find(setting, flags, environ, problems)
        if text is None:
            if setting.default is msgspec.NODEFAULT and not any(
                p.startswith(f"{source}: ") for p in problems
            ):
                problems.append(f"{source}: required, but not set")
            continue
        try:
            values[setting.field] = msgspec.convert(text, setting.type, strict=False)
        except msgspec.ValidationError as error:
            shown = "" if setting.secret else f" (got {text!r})"
            problems.append(f"{source}: {error}{shown}")
    if not problems:
        try:
            return kind(**values)
        except ValueError as error:  # raised by a Struct's own __post_init__, which names the fields
            problems.append(str(error))
    raise SettingsError(problems)


def _find(
    setting: Setting, flags: Mapping[str, Any], environ: Mapping[str, str], problems: list[str]
) -> tuple[str, str | None]:
    """Where a setting was given (or is to be given), and its text."""
    given = flags.get(setting.field)
    if given is not None and setting.flag is not None:
        return setting.flag, str(given)
    if setting.secret and (path := environ.get(setting.variable + "_FILE")):
        source = setting.variable + "_FILE"
        if environ.get(setting.variable):
            problems.append(f"{source}: set together with {setting.variable}; set one of them")
        try:
            return source, Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            problems.append(f"{source}: cannot read {path}: {error}")
            return source, None
    if text := environ.get(setting.variable):
        return setting.variable, text
    return setting.flag or setting.variable, None


def _not_known(argument: str, declared: Sequence[Setting]) -> str:
    name = argument.partition("=")[0]
    if not name.startswith("-"):
        return f"{argument!r} belongs to no flag"
    for secret in declared:
        if secret.secret and name == "--" + secret.field.replace("_", "-"):
            return f"{name} is no flag, since flags show in process lists: set {secret.variable}"
    flags = [setting.flag for setting in declared if setting.flag is not None]
    near = difflib.get_close_matches(name, flags, n=1)
    return f"there is no flag {name}" + (f": did you mean {near[0]}?" if near else "")


class _OneLine(argparse.ArgumentParser):
    """Says what is wrong in one line; `--help` explains the rest."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see `{self.prog.split(' [')[0]} --help`)\n")


def _parser(program: str, kind: type[msgspec.Struct], declared: Sequence[Setting]) -> argparse.ArgumentParser:
    summary, _, more = inspect.cleandoc(kind.__doc__ or "").partition("\n")
    _, heading, examples = more.partition("\nexample")  # of what follows the first line, only these are shown
    parser = _OneLine(
        prog=program,
        description=summary,
        epilog=f"example{examples}" if heading else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for setting in declared:
        if setting.flag is None:
            continue
        default = "" if setting.default in (None, msgspec.NODEFAULT) else f" (default: {setting.default})"
        text = f"{setting.description}{default} [{setting.variable}]".replace("%", "%%")
        if setting.is_switch:
            parser.add_argument(setting.flag, dest=setting.field, nargs="?", const="true", help=text)
        else:
            parser.add_argument(setting.flag, dest=setting.field, help=text)
    return parser
