"""The YAML of a LiteLLM proxy."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastllm_control.declared.problems import Broken
from fastllm_control.litellm import reading


def test_anchors_and_merge_keys_are_read_as_litellm_does(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("model_list: []\na: &a {x: 1, y: 2}\nb:\n  <<: *a\n  x: 3\n")
    assert reading.read(path)["b"] == {"x": 3, "y": 2}


def test_includes_are_appended_and_replace(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("include: [more.yaml]\nmodel_list: [1]\ngeneral_settings: {}\n")
    (tmp_path / "more.yaml").write_text("model_list: [2]\ngeneral_settings: {b: 2}\n")
    assert reading.read(tmp_path / "config.yaml") == {"model_list": [1, 2], "general_settings": {"b": 2}}


BOMB = "b0: &b0 [1, 1]\n" + "".join(f"b{n}: &b{n} [*b{n - 1}, *b{n - 1}]\n" for n in range(1, 20))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3, a: config.yaml: given twice"),
        ("a: [1\n", "not YAML"),
        ("- 1\n", "is no mapping"),
        ("", "is no mapping"),
        ("include: 3\n", "a list of files"),
        ("include: [config.yaml]\n", "included twice"),
        ("include: [absent.yaml]\n", "No such file"),
        ("include: [../outside.yaml]\n", "not below"),
        ("a: !!python/object:os.system {}\n", "not YAML"),
        ("x: " + "[" * 60 + "]" * 60, "too deep"),
        (BOMB, "too much"),
        ("general_settings: {}\n", "has no list of models"),
        ("model_list: {}\n", "has no list of models"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_said_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(Broken) as refused:
        reading.read(path)
    assert said in refused.value.message
    assert "\n" not in refused.value.message


def test_an_absent_or_huge_file(tmp_path: Path) -> None:
    with pytest.raises(Broken, match="No such file"):
        reading.read(tmp_path / "absent.yaml")
    (tmp_path / "huge.yaml").write_bytes(b"#" * (reading.MAX_BYTES + 1))
    with pytest.raises(Broken, match="larger than"):
        reading.read(tmp_path / "huge.yaml")
