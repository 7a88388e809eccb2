"""What operators see of a control plane: its log on standard error, and its metrics."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, TextIO

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import EventDict, FilteringBoundLogger, Processor

import fastllm_shared
from fastllm_shared.log_lines import message_of, one_line

Log = FilteringBoundLogger
Level = Literal["debug", "info", "warning", "error"]

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def make_log(stream: TextIO, kind: Literal["json", "text"] = "text", level: Level = "info") -> Log:
    """A logger that writes one line an event to `stream`. It configures nothing globally."""
    processors: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # Tracebacks without local variables: those hold credentials, and rendering them holds up the loop.
    if kind == "json":
        frames = ExceptionDictTransformer(show_locals=False)
        processors += [structlog.processors.ExceptionRenderer(frames), structlog.processors.JSONRenderer()]
    else:
        plain = structlog.dev.plain_traceback
        processors.append(_one_line)
        processors += [structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=plain)]
    log: Log = structlog.wrap_logger(
        structlog.PrintLogger(stream),
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=False,
    )
    return log


def _one_line(_: object, __: str, event: EventDict) -> EventDict:
    """Callers choose paths and names: none of them may start a line or speak to the reader's terminal."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = one_line(value)
    return event


class Bridge(logging.Handler):
    """Hands what libraries say through `logging` to our log, so that there is one form of line."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        facts: dict[str, Any] = {"logger": record.name}
        if record.exc_info:
            facts["exc_info"] = record.exc_info
        # Only the standard levels have a name in structlog.
        self._log.log(min(record.levelno // 10 * 10, logging.CRITICAL), message_of(record), **facts)


@contextmanager
def bridged(log: Log) -> Iterator[None]:
    """For as long as it is open, `logging`'s warnings and errors go to `log`."""
    root, bridge = logging.getLogger(), Bridge(log)
    root.addHandler(bridge)
    try:
        yield
    finally:
        root.removeHandler(bridge)


class Metrics:
    """The control plane's own metrics. Other parts register theirs in `registry`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "fastllm_control_requests",
            "Requests answered, by route and status.",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            "fastllm_control_request_seconds",
            "Time to answer, by route; held polls included.",
            ("method", "route"),
            registry=self.registry,
            buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
        )
        self.logins = Counter(
            "fastllm_control_logins", "Login attempts, by outcome.", ("outcome",), registry=self.registry
        )
        build = Gauge("fastllm_control_build_info", "Always 1.", ("version",), registry=self.registry)
        build.labels(fastllm_shared.__version__).set(1)

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one answered request. `route` is the template, never the path asked for."""
        if method not in _METHODS:  # anybody may send any word, and each would be kept for ever
            method = "(other)"
        self.requests.labels(method, route, str(status)).inc()
        self.seconds.labels(method, route).observe(seconds)

    def text(self) -> bytes:
        """The exposition format, version 0.0.4."""
        return generate_latest(self.registry)
