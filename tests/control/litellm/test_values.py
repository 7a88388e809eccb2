"""Values of the file."""

from __future__ import annotations

from typing import Any

import pytest

from fastllm_control.forms import Count
from fastllm_control.litellm.findings import Report
from fastllm_control.litellm.values import Values


def values(**environ: str) -> tuple[Values, Report]:
    report = Report()
    return Values(environ, {}, report), report


def test_references_are_followed_for_what_is_no_secret() -> None:
    found, report = values(BASE="http://a")
    assert found.plain("os.environ/BASE", "x") == "http://a"
    assert found.plain(3, "x") == 3
    assert found.plain("os.environ/LOST", "x") is None
    assert [str(error) for error in report.errors] == ["x: the environment variable LOST is not set"]


def test_secrets_stay_references_and_literals_become_some() -> None:
    found, report = values(LITELLM_FILE_SECRET_1="taken")
    reference, literal = found.secret("os.environ/KEY", "a"), found.secret("canary", "b")
    again = found.secret("canary", "c")
    assert (reference and reference.env, literal) == ("KEY", again)
    assert literal is not None
    assert literal.env == "LITELLM_FILE_SECRET_2"
    assert found.secrets["LITELLM_FILE_SECRET_2"] == "canary"
    assert len(report.warnings) == 2
    assert "canary" not in str(report.warnings)
    assert (found.secret(None, "d"), found.secret("", "d")) == (None, None)


@pytest.mark.parametrize("value", ["os.environ/a b", "os.environ/", [], {}, True])
def test_what_is_no_secret_is_an_error(value: Any) -> None:
    found, report = values()
    assert found.secret(value, "a") is None
    assert [error.path for error in report.errors] == ["a"]


@pytest.mark.parametrize(
    ("given", "micros"),
    [
        (2.5e-06, 2_500_000),
        ("2.5e-06", 2_500_000),
        (0.00000015, 150_000),
        (1e-07, 100_000),
        (0, 0),
        (3, 3 * 10**12),
    ],
)
def test_prices_are_exact(given: Any, micros: int) -> None:
    found, report = values()
    assert found.price(given, "p") == micros
    assert (report.warnings, report.findings) == ([], [])


def test_a_price_below_a_micro_unit_is_rounded_and_said() -> None:
    found, report = values()
    assert found.price(1.26e-11, "p") == 13
    assert report.warnings == ["p: rounded to 13 micro-units per million tokens"]


@pytest.mark.parametrize("given", ["much", -1e-6, 10**9, True, [], float("nan")])
def test_what_is_no_price_is_reported(given: Any) -> None:
    found, report = values()
    assert found.price(given, "p") is None
    assert [finding.path for finding in report.findings] == ["p"]


def test_figures_are_of_their_kind() -> None:
    found, report = values()
    assert found.fitting(found.number("64", "p"), Count, "p") == 64
    assert found.fitting(found.number(0, "p"), Count, "p") is None
    assert found.fitting(found.number(1.5, "p"), Count, "p") is None
    assert len(report.findings) == 2


def test_the_files_own_variables_count_and_idle_ones_are_known() -> None:
    found = Values({"A": "x"}, {"A": "own", "IDLE": "y"}, Report())
    assert found.plain("os.environ/A", "p") == "own"
    assert found.has("IDLE")
    assert found.leftover_variables() == ["IDLE"]
