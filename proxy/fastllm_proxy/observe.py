"""Logging of everything but requests: structlog, and what libraries send to `logging`, in one form."""

from __future__ import annotations

import json
import logging
from typing import Any, Literal

import msgspec
import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor

from fastllm_proxy.sink import LineSink
from fastllm_shared.log_lines import message_of, one_line

Log = FilteringBoundLogger
"""What constructors take."""


class LibraryHandler(logging.Handler):
    """Standard-library records into our log."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        facts: dict[str, Any] = {"logger": record.name}
        if record.exc_info:
            facts["exc_info"] = record.exc_info
        # Only the standard levels have a name in structlog.
        self._log.log(min(record.levelno // 10 * 10, logging.CRITICAL), message_of(record), **facts)


class SinkLogger:
    """The end of structlog's chain: one rendered line into a sink."""

    def __init__(self, sink: LineSink) -> None:
        self._sink = sink

    def msg(self, message: str) -> None:
        self._sink.write(message.encode("utf-8", "backslashreplace") + b"\n")

    debug = info = warning = error = critical = exception = fatal = log = msg


def make_log(sink: LineSink, log_format: Literal["text", "json"]) -> Log:
    """The process's logger. Touches no global state."""
    logger: Log = structlog.wrap_logger(
        SinkLogger(sink),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _event_on_one_line,
            structlog.processors.format_exc_info,
            _renderer(log_format),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=True,
    )
    return logger


def capture_libraries(log: Log) -> None:
    """Sends what aiohttp and asyncio log (warnings and worse) to `log`, and nowhere else."""
    root = logging.getLogger()
    root.handlers[:] = [LibraryHandler(log)]
    root.setLevel(logging.WARNING)


def _event_on_one_line(_: object, __: str, event: EventDict) -> EventDict:
    """The values beside it are quoted by the renderer; the event itself may be a library's."""
    event["event"] = one_line(str(event["event"]))
    return event


def _renderer(log_format: Literal["text", "json"]) -> Processor:
    if log_format == "json":
        return structlog.processors.JSONRenderer(serializer=_to_json)
    return structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)


def _to_json(line: dict[str, Any], **_: object) -> str:
    leading = {name: line.pop(name) for name in ("timestamp", "level", "event") if name in line}
    try:
        return msgspec.json.encode(leading | line, enc_hook=repr).decode()
    except UnicodeEncodeError:  # a lone surrogate, which has no UTF-8 but can be escaped
        return json.dumps(leading | line, default=repr)
