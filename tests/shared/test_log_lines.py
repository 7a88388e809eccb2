from __future__ import annotations

import logging

import pytest

from fastllm_shared.log_lines import message_of, one_line


@pytest.mark.parametrize(
    "nasty", ["a\nb", "a\r", "\x1b[2J", "\x07", "\x9b31m", "\u2028", "\u202ecod", "\udc80"]
)
def test_nothing_is_left_that_is_no_character_to_print(nasty: str) -> None:
    shown = one_line(nasty)
    assert shown.isprintable()
    assert shown == nasty.encode("unicode_escape").decode()


def test_names_in_other_scripts_stay_as_they_are() -> None:
    assert one_line("Ærøskøbing 東京") == "Ærøskøbing 東京"


@pytest.mark.parametrize(
    ("message", "arguments", "said"),
    [
        ("the %s is %d", ("answer", 42), "the answer is 42"),
        ("%d", ("x",), "%d"),
        ("%(name)s", ({"other": 1},), "%(name)s"),
        (KeyError("x"), (), "'x'"),
    ],
)
def test_what_a_record_says(message: object, arguments: tuple[object, ...], said: str) -> None:
    record = logging.LogRecord("library", logging.WARNING, "", 1, message, arguments, None)
    assert message_of(record) == said
