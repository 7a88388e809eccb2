"""Writes docs/reference from the code: `python -m tests.contract.reference` (or `make docs`)."""

from __future__ import annotations

from pathlib import Path

from msgspec import NODEFAULT

from fastllm_control.api.everything import OPERATIONS
from fastllm_control.config import ControlSettings
from fastllm_control.up_settings import UpSettings
from fastllm_proxy.config import ProxySettings
from fastllm_shared.settings import Setting, settings_of

FOLDER = Path(__file__).parents[2] / "docs" / "reference"

_PROGRAMS = (
    ("fastllm up", UpSettings),
    ("fastllm control", ControlSettings),
    ("fastllm proxy", ProxySettings),
)


def pages() -> dict[str, str]:
    """Every page by its file name."""
    return {"settings.md": settings_page(), "admin-api.md": api_page()}


def settings_page() -> str:
    lines = [
        "# Settings",
        "",
        "Every flag has an environment variable; the flag wins. What has no flag is a secret: it is read",
        "from its variable or from the file that `<VARIABLE>_FILE` names. All wrong settings are reported",
        "together before anything starts (exit code 2). `fastllm up` also takes the flags of the processes",
        "that it runs.",
    ]
    for program, kind in _PROGRAMS:
        lines += ["", f"## {program}", "", "| flag | variable | default | meaning |", "|---|---|---|---|"]
        lines += [_setting_row(setting) for setting in settings_of(kind)]
    return "\n".join(lines) + "\n"


def _setting_row(setting: Setting) -> str:
    flag = f"`{setting.flag}`" if setting.flag else "(secret)"
    if setting.default is NODEFAULT:
        default = "required"
    elif setting.default in (None, ""):
        default = ""
    else:
        default = f"`{str(setting.default).lower() if setting.is_switch else setting.default}`"
    return f"| {flag} | `{setting.variable}` | {default} | {setting.description} |"


def api_page() -> str:
    lines = [
        "# Admin API",
        "",
        "The whole of it, with every field, is the OpenAPI document at `/openapi.json` of a control plane.",
        "Permissions: `public` asks nothing, `proxy` the proxy token, `any_principal` any valid key,",
        "`session` somebody who has logged in, or an `admin` key.",
        "",
        "| method | path | permission | what it does |",
        "|---|---|---|---|",
    ]
    ordered = sorted(OPERATIONS, key=lambda one: (one.path, one.method))
    lines += [f"| {one.method} | `{one.path}` | `{one.requires}` | {one.summary} |" for one in ordered]
    return "\n".join(lines) + "\n"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
