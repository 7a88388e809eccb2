"""Progress on a terminal."""

from __future__ import annotations

import os
import pty
from io import StringIO

from fastllm_control import progress


def test_a_terminal_is_told() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        progress.on(terminal, "fastllm apply")("making 3 changes")
        assert os.read(ours, 1000) == "fastllm apply: making 3 changes …\r\n".encode()
    os.close(ours)


def test_nobody_else_is() -> None:
    stream = StringIO()
    progress.on(stream, "fastllm apply")("making 3 changes")
    assert stream.getvalue() == ""
