"""The `fastllm` command: hands over to the plane that owns the subcommand.

The planes never import each other, and a proxy must not pay for the control plane's imports: the module
is chosen by name, at run time. So are the settings of a plane, which `fastllm up` passes flags on to.
"""

from __future__ import annotations

import importlib
import sys
from typing import Literal

from fastllm_shared.settings import Setting, settings_of

Plane = Literal["control", "proxy"]


def main() -> int:
    """Run `fastllm ARGS…`; returns the exit code."""
    arguments = sys.argv[1:]
    plane = "fastllm_proxy" if arguments[:1] == ["proxy"] else "fastllm_control"
    module = importlib.import_module(f"{plane}.__main__")
    return int(module.main(arguments))


def declared_settings(plane: Plane) -> tuple[Setting, ...]:
    """Every setting that the processes of a plane take."""
    module = importlib.import_module(f"fastllm_{plane}.config")
    return settings_of(getattr(module, f"{plane.capitalize()}Settings"))
