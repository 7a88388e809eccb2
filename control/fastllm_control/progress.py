"""What a command is doing while it takes its time: lines for a person at a terminal, and for nobody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

Tell = Callable[[str], None]
"""Takes one line without its end."""


def silent(_: str) -> None:
    """For whoever is not at a terminal."""


def on(stream: TextIO, program: str) -> Tell:
    """Lines on `stream`, each beginning with the command's name, if a person sees it."""
    if not stream.isatty():
        return silent

    def tell(line: str) -> None:
        stream.write(f"{program}: {line} …\n")
        stream.flush()

    return tell
