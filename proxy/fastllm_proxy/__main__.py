"""`fastllm proxy …`: settings, then the replica."""

from __future__ import annotations

import os
import sys

from fastllm_proxy.config import read_settings
from fastllm_shared.settings import SettingsError


def main(arguments: list[str]) -> int:
    """`arguments` begin with `proxy`. Returns the exit code: 2 for bad settings, 1 if it cannot serve."""
    try:
        settings = read_settings(arguments[1:], os.environ)
    except SettingsError as error:
        for problem in error.problems:
            sys.stderr.write(f"fastllm proxy: {problem}\n")
        return 2
    # After the settings: `--help` and mistakes are answered without the weight of the whole proxy.
    from fastllm_proxy.process import run

    return run(settings)


if __name__ == "__main__":
    raise SystemExit(main(["proxy", *sys.argv[1:]]))
