"""What is said about a file that is taken over."""

from __future__ import annotations

from fastllm_control.litellm.findings import Fields, Finding, Report, within


def test_what_nobody_takes_is_reported_by_its_path_without_its_value() -> None:
    report = Report()
    fields = Fields({"model": "x", "new": "canary", "empty": None}, "model_list[0]", report)
    assert fields.take("model") == "x"
    assert fields.take("absent") is None
    fields.close()
    fields.close()
    assert [str(finding) for finding in report.findings] == [
        "model_list[0].new: nothing here corresponds to it"
    ]


def test_what_is_no_mapping_is_an_error() -> None:
    report = Report()
    assert Fields(["x"], "router_settings", report).take("x") is None
    assert Fields({"headers": 3}, "a", report).mapping("headers") == {}
    assert [error.path for error in report.errors] == ["router_settings", "a.headers"]


def test_others_are_added_behind_its_own() -> None:
    fields = Fields({"a": 1}, "", Report())
    fields.add({"a": 2, "b": 3})
    assert fields.rest() == {"a": 1, "b": 3}
    assert fields.rest() == {}


def test_a_name_cannot_forge_a_line() -> None:
    assert within("a", "b\nmodel_list: fine") == "a.'b\\nmodel_list: fine'"
    assert within("", "x" * 500) == "'" + "x" * 200 + "'"
    assert str(Finding("a", "b")) == "a: b"
