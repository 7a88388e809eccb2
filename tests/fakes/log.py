"""A logger that keeps what it is told, for tests that look at it."""

from __future__ import annotations

import logging
from typing import Any

import structlog
from structlog.testing import LogCapture
from structlog.typing import FilteringBoundLogger


class CapturedLog:
    """`log` goes into constructors, `entries` are what was logged: dictionaries with `event`, `log_level` and
    the fields."""

    def __init__(self) -> None:
        self._capture = LogCapture()
        self.log: FilteringBoundLogger = structlog.wrap_logger(
            None,
            processors=[self._capture],
            wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        )

    @property
    def entries(self) -> list[dict[str, Any]]:
        return [dict(entry) for entry in self._capture.entries]

    def events(self, event: str) -> list[dict[str, Any]]:
        """The entries of one kind."""
        return [entry for entry in self.entries if entry["event"] == event]
