"""`fastllm completion bash|zsh|fish`: what a shell completes, out of the declared settings."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import msgspec

from fastllm_shared.settings import Settings, SettingsError, settings_of

Shell = Literal["bash", "zsh", "fish"]
Flags = Mapping[str, Sequence[tuple[str, str]]]
"""Per command its flags, each with what it is."""

_SETTINGS: Mapping[str, str] = {
    "up": "fastllm_control.up_settings",
    "control": "fastllm_control.config:ControlSettings",
    "proxy": "fastllm_proxy.config",
}
_ELSEWHERE = frozenset({"help", "version", "completion"})


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:  # noqa: ARG001 (as every command)
    """Print the script. Raises `SettingsError`."""
    from fastllm_control.__main__ import COMMANDS

    if len(arguments) != 1 or arguments[0] not in get_args(Shell):
        raise SettingsError(["name one shell: bash, zsh or fish, as in `fastllm completion bash`"])
    modules = {name: module for name, (module, _) in COMMANDS.items() if module or name in _SETTINGS}
    flags = {
        name: flags_of(_SETTINGS.get(name, module))
        for name, module in modules.items()
        if name not in _ELSEWHERE
    }
    texts = {name: text for name, (_, text) in COMMANDS.items()}
    sys.stdout.write(script(arguments[0], flags, texts))
    return 0


def flags_of(place: str) -> list[tuple[str, str]]:
    """The flags of the settings of a module: of the class that is named, else of the last that it defines."""
    module_name, _, wanted = place.partition(":")
    module = importlib.import_module(module_name)
    kinds = [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Settings) and kind.__module__ == module_name
    ]
    kind: type[msgspec.Struct] | None = getattr(module, wanted) if wanted else kinds[-1] if kinds else None
    found = [] if kind is None else settings_of(kind)
    flags = [(setting.flag, setting.description) for setting in found if setting.flag is not None]
    return [*flags, ("--help", "explain the flags")]


def script(shell: str, flags: Flags, texts: Mapping[str, str]) -> str:
    """The script of a shell."""
    if shell == "fish":
        return _fish(flags, texts)
    cases = "\n".join(
        f"    {name}) words='{' '.join(flag for flag, _ in found)}' ;;" for name, found in flags.items()
    )
    body = _BASH.replace("@COMMANDS@", " ".join(texts)).replace("@CASES@", cases)
    return f"autoload -U +X bashcompinit && bashcompinit\n{body}" if shell == "zsh" else body


_BASH = """\
_fastllm() {
  local words
  if [ "$COMP_CWORD" -eq 1 ]; then
    words='@COMMANDS@'
  else
    case "${COMP_WORDS[1]}" in
@CASES@
    completion) words='bash zsh fish' ;;
    help) words='@COMMANDS@' ;;
    *) words='' ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _fastllm fastllm
"""


def _fish(flags: Flags, texts: Mapping[str, str]) -> str:
    lines = [
        f"complete -c fastllm -n __fish_use_subcommand -a {name} -d {_quoted(text)}"
        for name, text in texts.items()
    ]
    for name, found in flags.items():
        lines += [
            f"complete -c fastllm -n '__fish_seen_subcommand_from {name}' -l {flag[2:]} -d {_quoted(text)}"
            for flag, text in found
        ]
    lines.append("complete -c fastllm -n '__fish_seen_subcommand_from completion' -a 'bash zsh fish'")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
