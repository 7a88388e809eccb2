"""Logging of everything but requests: structlog, and what libraries send to `logging`, in one form."""

from __future__ import annotations

import logging
from typing import Any, Literal

import msgspec
import structlog
from structlog.typing import FilteringBoundLogger, Processor

from fastllm_proxy.sink import LineSink

Log = FilteringBoundLogger
"""What constructors take."""


class SinkHandler(logging.Handler):
    """Standard-library records into a sink."""

    def __init__(self, sink: LineSink) -> None:
        super().__init__()
        self._sink = sink

    def emit(self, record: logging.LogRecord) -> None:
        self._sink.write(self.format(record).encode("utf-8", "backslashreplace") + b"\n")


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
        processors=[*_stamps(), structlog.processors.format_exc_info, _renderer(log_format)],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=True,
    )
    return logger


def capture_libraries(sink: LineSink, log_format: Literal["text", "json"]) -> None:
    """Sends what aiohttp and asyncio log (warnings and worse) through the same sink and form."""
    handler = SinkHandler(sink)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*_stamps(), structlog.stdlib.add_logger_name],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                _renderer(log_format),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)


def _stamps() -> list[Processor]:
    return [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


def _renderer(log_format: Literal["text", "json"]) -> Processor:
    if log_format == "json":
        return structlog.processors.JSONRenderer(serializer=_to_json)
    return structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)


def _to_json(line: dict[str, Any], **_: object) -> str:
    leading = {name: line.pop(name) for name in ("timestamp", "level", "event") if name in line}
    return msgspec.json.encode(leading | line, enc_hook=repr).decode()
