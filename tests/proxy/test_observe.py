from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import msgspec
import pytest

from fastllm_proxy.observe import capture_libraries, make_log
from fastllm_proxy.sink import LineSink


class Collected(LineSink):
    """A sink that is read at once."""

    def __init__(self) -> None:
        super().__init__(-1)
        self.text = ""

    def write(self, lines: bytes, count: int = 1) -> None:
        self.text += lines.decode()


@pytest.fixture
def sink() -> Collected:
    return Collected()


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    """The one global thing: put back as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def failure() -> Exception:
    try:
        raise ValueError("what went wrong")
    except ValueError as error:
        return error


def test_json_lines(sink: Collected) -> None:
    make_log(sink, "json").warning("backend out of rotation", backend="b1", until=None, odd=object)
    line = msgspec.json.decode(sink.text)
    assert line["event"] == "backend out of rotation"
    assert (line["level"], line["backend"], line["until"]) == ("warning", "b1", None)
    assert line["timestamp"].endswith("Z")


def test_text_lines(sink: Collected) -> None:
    make_log(sink, "text").info("listening", url="http://127.0.0.1:4000")
    assert sink.text.count("\n") == 1
    for part in ("listening", "url=http://127.0.0.1:4000", "info"):
        assert part in sink.text
    assert "\x1b" not in sink.text


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_failure_comes_with_its_traceback(sink: Collected, log_format: str) -> None:
    log = make_log(sink, "json" if log_format == "json" else "text")
    log.error("loop failed", loop="probe", exc_info=failure())
    assert "Traceback" in sink.text
    assert "what went wrong" in sink.text
    if log_format == "json":
        assert sink.text.count("\n") == 1


def test_no_value_begins_a_line_of_its_own(sink: Collected) -> None:
    make_log(sink, "text").info("told", detail="a\n2026 [info] forged")
    assert sink.text.count("\n") == 1


def test_debug_is_not_written(sink: Collected) -> None:
    make_log(sink, "text").debug("noise")
    assert sink.text == ""


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_libraries_speak_through_the_same_sink(
    sink: Collected, root_logger: logging.Logger, log_format: str
) -> None:
    capture_libraries(make_log(sink, "json" if log_format == "json" else "text"))
    logging.getLogger("asyncio").error("Task exception was never retrieved", exc_info=failure())
    logging.getLogger("aiohttp.server").info("chatter")
    assert "Task exception was never retrieved" in sink.text
    assert "what went wrong" in sink.text
    assert "chatter" not in sink.text
    if log_format == "json":
        assert msgspec.json.decode(sink.text)["logger"] == "asyncio"


async def test_what_asyncio_complains_of_is_told(sink: Collected, root_logger: logging.Logger) -> None:
    capture_libraries(make_log(sink, "json"))
    asyncio.get_running_loop().call_exception_handler({"message": "a callback failed"})
    assert "a callback failed" in sink.text


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_library_neither_forges_a_line_nor_fails_over_its_own_arguments(
    sink: Collected, root_logger: logging.Logger, log_format: str
) -> None:
    capture_libraries(make_log(sink, "json" if log_format == "json" else "text"))
    logging.getLogger("aiohttp").warning("refused %s", "a\n2026 [error] forged")
    logging.getLogger("aiohttp").warning("%d bytes", "many")
    logging.getLogger("aiohttp").log(35, "an odd level")
    assert sink.text.count("\n") == 3
    assert "%d bytes" in sink.text
    assert "an odd level" in sink.text


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_half_a_character_is_written_escaped(sink: Collected, log_format: str) -> None:
    make_log(sink, "json" if log_format == "json" else "text").info("told", detail="\udc80")
    assert "udc80" in sink.text
