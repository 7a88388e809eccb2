"""YAML in and out: what is read as what, what is refused and where, and that it comes back as it went."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastllm_control.declared.document import DeclaredProvider, DeclaredRole, Document
from fastllm_control.declared.problems import Broken
from fastllm_control.declared.text import MAX_BYTES, parse, read, write
from fastllm_control.naming import Name

FILE = """\
format: 1
providers:
- name: gpu-1
  api_base: http://gpu-1:8000/v1
frontend_models:
- name: assistant
  rules:
  - when: {after: 22:00, before: 06:00, days: [mon]}
    action: deny
    deny_status: 403
    deny_message: at night, no
fallback_model:
"""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"),
        ("no", "no"),
        ("y", "y"),
        ("22:00", "22:00"),
        ("1_000", "1_000"),
        ("2026-01-01", "2026-01-01"),
        ("=", "="),
        ("017", 17),
        ("0o17", 15),
        ("0x1F", 31),
        ("+12", 12),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("-.INF", float("-inf")),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("", None),
        ("null", None),
        ("'null'", "null"),
        ('"12"', "12"),
        ("9" * 500, "9" * 500),
    ],
)
def test_scalars_are_what_they_look_like(text: str, value: object) -> None:
    assert parse(f"key: {text}\n")[0] == {"key": value}


def test_a_file_becomes_a_document_with_lines() -> None:
    found = read(FILE)
    assert found.document.providers == (DeclaredProvider(name="gpu-1", api_base="http://gpu-1:8000/v1"),)
    assert found.document.frontend_models is not None
    assert found.document.frontend_models[0].rules[0].when.after == "22:00"
    assert found.document.fallback_model is None
    assert found.document.pools is None
    assert found.lines.line_of("frontend_models[0].rules[0].when.days[0]") == 8
    assert found.lines.line_of("frontend_models[0].rules[0].deny_status") == 10


def test_json_is_read_too() -> None:
    text = '{"format": 1, "roles": [{"name": "\\u00e9", "permissions": []}]}'
    assert read(text).document == Document(format=1, roles=(DeclaredRole(name="é"),))
    assert read("\ufeff" + text).document == read(text.encode()).document


BROKEN: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "a configuration file is a mapping"),
    "a list": ("- 1", "line 1: a configuration file is a mapping"),
    "no format": ("roles: []", "line 1, format: Object missing required field `format`"),
    "another format": ("format: 2", "line 1, format: Invalid enum value 2"),
    "unknown section": ("format: 1\nrouters: []", "line 2, routers: Object contains unknown field `routers`"),
    "section of another shape": ("format: 1\nroles: {}", "line 2, roles: Expected a list"),
    "entry of another shape": (
        "format: 1\nroles:\n- admin",
        "line 3, roles[0]: Expected `object`, got `str`",
    ),
    "number for a name": (
        "format: 1\nroles:\n- name: 5",
        "line 3, roles[0].name: Expected `str`, got `int`: put",
    ),
    "required field": ("format: 1\nproviders:\n- name: a", "line 3, providers[0].api_base: Object missing"),
    "unknown field": ("format: 1\nroles:\n- name: a\n  verbs: []", "line 4, roles[0].verbs: Object contains"),
    "out of range": (
        "format: 1\nfrontend_models:\n- name: a\n  targets:\n  - target: b\n    weight: -1",
        "line 6, frontend_models[0].targets[0].weight: Expected `int` >= 0",
    ),
    "deep inside": (
        FILE.replace("[mon]", "[mon,\n       soon]"),
        "line 9, frontend_models[0].rules[0].when.days[1]: Invalid enum value 'soon'",
    ),
    "a secret in the open": (
        "format: 1\nproviders:\n- name: a\n  api_base: http://a/v1\n  upstream_api_key: canary",
        "line 5, providers[0].upstream_api_key: Expected `object | null`, got `str`",
    ),
    "both ways": (
        "format: 1\nproviders:\n- name: a\n  api_base: http://a/v1\n  upstream_api_key: {env: A, file: b}",
        "line 5, providers[0].upstream_api_key: a reference names either",
    ),
    "nul": ('format: 1\nroles:\n- name: "a\\0"', "line 3, roles[0].name: text must not hold a NUL"),
    "repeated key": ("format: 1\nroles: []\nroles: []", "line 3, roles: given twice: line 2 has it already"),
    "anchor": ("format: 1\nroles: &a []", "line 2, roles: anchors"),
    "alias": ("format: 1\nroles: *a", "line 2, roles: aliases"),
    "bomb": ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]", "line 1, a: anchors"),
    "tag": ("format: !!int 1", "line 1, format: tags"),
    "merge": ("format: 1\n<<: {a: 1}", "line 2: merge keys"),
    "key that is a list": ("format: 1\n? [a]\n: 1", "line 2: a key must be text"),
    "two documents": ("format: 1\n---\nformat: 1", "line 2: a second document begins here"),
    "not closed": ("format: 1\nroles: [\n", "line 3: not YAML"),
    "tab": ("format: 1\nroles:\n\t- name: a", "line 3: not YAML"),
    "control character": (
        "format: 1\nroles:\n- name: \x1b[0m",
        "line 3: the character U+001B is not allowed",
    ),
    "not UTF-8": (b"format: 1\nroles:\n- name: \xff", "line 3: not UTF-8 text"),
    "lone surrogate": ("format: 1\nroles:\n- name: \ud800", "line 3: not UTF-8 text"),
    "too deep": ("roles: " + "[" * 40 + "]" * 40, "nested too deeply"),
    "far too deep": ("roles: " + "[" * 100_000, "line 1"),
    "huge number": ("format: " + "9" * 1000, "line 1, format: Expected `int`, got `str`"),
    "too large": (b"#" * (MAX_BYTES + 1), "it is larger than 8 MiB"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_refused_with_line_and_field(name: str) -> None:
    text, message = BROKEN[name]
    with pytest.raises(Broken) as refused:
        read(text)
    assert message in refused.value.message
    assert "canary" not in refused.value.message


def test_all_that_is_wrong_with_the_shape_is_said_at_once() -> None:
    text = "format: 1\nroles:\n- name: 1\n- {}\npools:\n- name: a\n  policy: fair\nfrob: 1\n"
    with pytest.raises(Broken) as refused:
        read(text)
    assert [(problem.line, problem.field) for problem in refused.value.problems] == [
        (8, "frob"),
        (6 + 1, "pools[0].policy"),
        (3, "roles[0].name"),
        (4, "roles[1].name"),
    ]


def test_what_is_written_can_be_read_by_people() -> None:
    text = write(read(FILE).document)
    assert text.startswith("# Configuration of FastLLM")
    assert "api_base: http://gpu-1:8000/v1\n" in text
    assert "after: '22:00'\n" in text
    pem = Document(format=1, providers=(DeclaredProvider(name="a", api_base="http://a/", ca="one\ntwo\n"),))
    assert "  ca: |\n    one\n    two\n" in write(pem)


def _is_name(text: str) -> bool:
    try:
        msgspec.convert(text, Name)
    except msgspec.ValidationError:
        return False
    return "\0" not in text


TRICKY = [
    "on",
    "0o17",
    "1e3",
    "~",
    "22:00",
    "1_000",
    "- a",
    "a: b",
    "a #b",
    "=",
    "<<",
    ".inf",
    "a\u2028b",
    "é",
]
TRICKY += ["017", "0x1f", "2026-01-01", "a\x85b", "a\ufeffb", "!a", "&a", "*a", "%a", "@a", "`a", "'a", '"a']
NAMES = st.sampled_from(TRICKY) | st.text(min_size=1, max_size=30).filter(_is_name)


@given(st.lists(NAMES, max_size=5), st.text(max_size=80).filter(lambda text: "\0" not in text))
def test_what_is_written_is_read_as_the_same(names: list[str], reason: str) -> None:
    provider = DeclaredProvider(name="a", api_base="http://a/", state="draining", state_reason=reason)
    roles = tuple(DeclaredRole(name=name) for name in names)
    document = Document(format=1, providers=(provider,), roles=roles)
    assert read(write(document)).document == document


@given(st.text(max_size=60) | st.binary(max_size=60))
def test_whatever_the_text_it_is_read_or_refused(text: Any) -> None:
    with contextlib.suppress(Broken):
        read(text)
