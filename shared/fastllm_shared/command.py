"""The `fastllm` command: hands over to the plane that owns the subcommand.

The planes never import each other, and a proxy must not pay for the control plane's imports: the module
is chosen by name, at run time.
"""

from __future__ import annotations

import importlib
import sys


def main() -> int:
    """Run `fastllm ARGS…`; returns the exit code."""
    arguments = sys.argv[1:]
    plane = "fastllm_proxy" if arguments[:1] == ["proxy"] else "fastllm_control"
    module = importlib.import_module(f"{plane}.__main__")
    return int(module.main(arguments))
