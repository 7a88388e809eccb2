"""Settings of `fastllm up`: its own, and those that it hands to the processes which it runs.

Flags of the processes are not listed here: the processes declare them, and `up` takes all of them but those
that it decides itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fastllm_control.config import address_problems, key_problems, token_problems
from fastllm_shared.command import Plane, declared_settings
from fastllm_shared.settings import SECRET, Setting, Settings, load, settings_of

DECIDED = frozenset({"host", "port", "own_ports", "control_url", "workers", "tls_cert", "tls_key"})
"""Settings of the processes that `up` decides from its own."""

_SECRET: dict[str, Any] = {SECRET: True}
_Port = Annotated[int, Meta(ge=0, le=65_535)]
_PLANES: tuple[Plane, ...] = ("control", "proxy")


class UpSettings(Settings, frozen=True, kw_only=True):
    """All of FastLLM on this machine, on an embedded database. Further flags are those of its processes."""

    data_dir: Annotated[str | None, Meta(description="where everything is kept")] = None
    host: Annotated[str, Meta(description="address that the proxies listen on", min_length=1)] = "127.0.0.1"
    port: Annotated[_Port, Meta(description="port of the first proxy; 0 takes a free one")] = 4000
    control_host: Annotated[
        str, Meta(description="address that the control plane listens on", min_length=1)
    ] = "127.0.0.1"
    control_port: Annotated[_Port, Meta(description="port of the control plane; 0 takes a free one")] = 4001
    proxies: Annotated[int, Meta(description="proxies; all but the first on free ports", ge=1, le=64)] = 1
    demo: Annotated[bool, Meta(description="also run a small real engine, and serve its model")] = False
    ready_file: Annotated[
        str | None, Meta(description="written once everything answers (default: DATA_DIR/ready.json)")
    ] = None
    database_url: Annotated[
        str | None, Meta(description="a Postgres of yours in place of the embedded one", extra=_SECRET)
    ] = None
    encryption_key: Annotated[
        str | None, Meta(description="in place of the one that the first run makes", extra=_SECRET)
    ] = None
    proxy_token: Annotated[
        str | None, Meta(description="in place of the one that the first run makes", extra=_SECRET)
    ] = None

    def __post_init__(self) -> None:
        found = [
            *(address_problems(self.database_url) if self.database_url else ()),
            *(key_problems(self.encryption_key) if self.encryption_key else ()),
            *(token_problems(self.proxy_token) if self.proxy_token else ()),
        ]
        if found:
            raise ValueError("\n".join(found))


class Passed(msgspec.Struct, frozen=True):
    """What goes to the processes of each plane: values by the names of their settings."""

    control: dict[str, Any]
    proxy: dict[str, Any]

    def flags(self, plane: Plane) -> list[str]:
        """As arguments of a command line."""
        given: dict[str, Any] = getattr(self, plane)
        flags: list[str] = []
        for name, value in given.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            flags += ["--" + name.replace("_", "-"), text]
        return flags


def read_settings(arguments: Sequence[str], environ: Mapping[str, str]) -> tuple[UpSettings, Passed]:
    """From flags and environment; raises `SettingsError` with every problem of whichever process."""
    own = {setting.field for setting in settings_of(UpSettings)}
    foreign = {plane: _handed_on(plane, own) for plane in _PLANES}
    fields: list[tuple[str, Any, Any]] = [
        _optional(one) for one in _distinct(foreign["control"], foreign["proxy"])
    ]
    namespace = {"__doc__": UpSettings.__doc__}
    whole = msgspec.defstruct(
        "Whole", fields, bases=(UpSettings,), namespace=namespace, frozen=True, kw_only=True
    )
    loaded = load(whole, "fastllm up", arguments, environ)
    values = msgspec.structs.asdict(loaded)
    passed = {
        plane: {
            one.field: values[one.field]
            for one in foreign[plane]
            if values[one.field] not in (None, one.default)
        }
        for plane in _PLANES
    }
    # Whoever stops all of it wants it stopped: no load balancer has to notice first.
    passed["proxy"].setdefault("drain_delay", 0)
    return UpSettings(**{name: values[name] for name in own}), Passed(passed["control"], passed["proxy"])


def default_data_dir(environ: Mapping[str, str]) -> Path:
    """Where data of a system service or of a user belongs."""
    if os.geteuid() == 0:
        return Path("/var/lib/fastllm/data")
    home = environ.get("XDG_DATA_HOME") or Path(environ.get("HOME") or Path.home(), ".local", "share")
    return Path(home, "fastllm")


def foreign_secrets(plane: Plane, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables with secrets of a plane's processes that are none of `up`'s business."""
    own = {setting.variable for setting in settings_of(UpSettings)}
    names = [one.variable for one in declared_settings(plane) if one.secret and one.variable not in own]
    return {name: environ[name] for base in names for name in (base, base + "_FILE") if name in environ}


def _handed_on(plane: Plane, own: set[str]) -> list[Setting]:
    return [
        setting
        for setting in declared_settings(plane)
        if not setting.secret and setting.field not in own | DECIDED
    ]


def _distinct(*lists: Sequence[Setting]) -> list[Setting]:
    return list({setting.field: setting for one in reversed(lists) for setting in one}.values())


def _optional(setting: Setting) -> tuple[str, Any, Any]:
    """The same setting, `None` unless given: its default stays the process's own."""
    return setting.field, setting.type, None
