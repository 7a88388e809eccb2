"""The log: one line an event, nothing of local variables; and metrics of bounded size."""

from __future__ import annotations

import io
import json
import logging
from typing import Literal

import pytest

from fastllm_control.observe import Bridge, Log, Metrics, bridged, make_log

CANARY = "canary-4711-credential"
Kind = Literal["json", "text"]
KINDS: tuple[Kind, ...] = ("json", "text")


def fail(credential: str) -> None:
    header = {"authorization": f"Bearer {credential}"}
    try:
        raise KeyError(len(header))
    except KeyError as error:
        raise RuntimeError("the engine refused") from error


def fail_logged(log: Log) -> None:
    try:
        fail(CANARY)
    except RuntimeError as error:
        log.error("request failed", request_id="r-1", exc_info=error)


@pytest.mark.parametrize("kind", KINDS)
def test_tracebacks_show_where_and_never_what_variables_held(kind: Kind) -> None:
    stream = io.StringIO()
    fail_logged(make_log(stream, kind))
    written = stream.getvalue()
    for part in (
        "request failed",
        "r-1",
        "RuntimeError",
        "the engine refused",
        "KeyError",
        "in fail" if kind == "text" else '"name": "fail"',
    ):
        assert part in written
    assert CANARY not in written
    assert "Bearer" not in written.replace('f"Bearer {credential}"', "")


def test_json_is_one_object_a_line() -> None:
    stream = io.StringIO()
    log = make_log(stream, "json")
    log.info("one", path="/x\nforged", number=1, nothing=None)
    fail_logged(log)
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert first.pop("timestamp").endswith("Z")
    assert first == {"event": "one", "level": "info", "path": "/x\nforged", "number": 1, "nothing": None}
    assert second["exception"][0]["exc_type"] == "RuntimeError"


@pytest.mark.parametrize(
    "nasty",
    ["/x\n2026 [info] forged", "/x\r", "/\x1b[2J\x1b[31mred", "/\x07", "/\x9b31m", "/\u2028", "/\u202ecod"],
)
def test_what_callers_write_neither_starts_a_line_nor_speaks_to_the_terminal(nasty: str) -> None:
    stream = io.StringIO()
    log = make_log(stream, "text")
    log.info("request", path=nasty)
    log.info(nasty, logger=nasty)
    written = stream.getvalue()
    assert written.count("\n") == 2
    assert written.replace("\n", "").isprintable()
    assert nasty.encode("unicode_escape").decode() in written


def test_names_in_other_scripts_stay_readable() -> None:
    stream = io.StringIO()
    make_log(stream, "text").info("request", actor="Ærøskøbing 東京")
    assert "Ærøskøbing 東京" in stream.getvalue()


def test_levels() -> None:
    stream = io.StringIO()
    log = make_log(stream, "json", "warning")
    for level in ("debug", "info", "warning", "error"):
        getattr(log, level)(level)
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["warning", "error"]


def test_a_logger_configures_nothing_for_others() -> None:
    one, other = io.StringIO(), io.StringIO()
    log, _ = make_log(one, "json", "error"), make_log(other, "text", "debug")
    log.info("unheard")
    log.error("heard")
    assert json.loads(one.getvalue())["event"] == "heard"
    assert other.getvalue() == ""


def test_what_libraries_say_takes_the_same_form_while_bridged() -> None:
    stream = io.StringIO()
    library = logging.getLogger("some.library")
    before = list(logging.getLogger().handlers)
    with bridged(make_log(stream, "json")):
        library.info("unheard")
        library.warning("the %s is %d", "answer", 42)
        try:
            fail(CANARY)
        except RuntimeError:
            library.exception("it failed")
    assert logging.getLogger().handlers == before
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (first["event"], first["logger"], first["level"]) == (
        "the answer is 42",
        "some.library",
        "warning",
    )
    assert (second["event"], second["level"]) == ("it failed", "error")
    assert CANARY not in stream.getvalue()


@pytest.mark.parametrize(
    ("level", "said", "shown"),
    [(35, "warning", "x"), (45, "error", "x"), (50, "critical", "x"), (99, "critical", "x")],
)
def test_levels_of_their_own(level: int, said: str, shown: str) -> None:
    stream = io.StringIO()
    record = logging.LogRecord("lib", level, __file__, 1, "x", (), None)
    Bridge(make_log(stream, "json")).emit(record)
    line = json.loads(stream.getvalue())
    assert (line["level"], line["event"]) == (said, shown)


@pytest.mark.parametrize(
    ("message", "arguments"), [("%d", ("y",)), ("%s %s", ("y",)), ("%(a)s", ({"b": 1},)), ("%", (1,))]
)
def test_a_message_that_its_arguments_do_not_fit_is_logged_as_it_is(
    message: str, arguments: tuple[object, ...]
) -> None:
    stream = io.StringIO()
    Bridge(make_log(stream, "json")).emit(
        logging.LogRecord("lib", logging.WARNING, __file__, 1, message, arguments, None)
    )
    assert json.loads(stream.getvalue())["event"] == message


def test_metrics_do_not_grow_by_what_callers_invent() -> None:
    metrics = Metrics()
    for method in ("GET", "POST", *(f"WORD{number}" for number in range(100))):
        metrics.observe(method, "/admin/keys", 405, 0.001)
    series = [
        line
        for line in metrics.text().decode().splitlines()
        if line.startswith("fastllm_control_requests_total")
    ]
    assert sorted(series) == [
        f'fastllm_control_requests_total{{method="{method}",route="/admin/keys",status="405"}} {count}.0'
        for method, count in (("(other)", 100), ("GET", 1), ("POST", 1))
    ]


def test_two_processes_worth_of_metrics_do_not_meet() -> None:
    first, second = Metrics(), Metrics()
    first.logins.labels("ok").inc()
    assert b'outcome="ok"' in first.text()
    assert b'outcome="ok"' not in second.text()
