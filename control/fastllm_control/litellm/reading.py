"""The YAML of a LiteLLM proxy, as LiteLLM reads it (YAML 1.1, anchors and merge keys included)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fastllm_control.declared.problems import Broken, Problem

MAX_BYTES = 8 * 1024 * 1024
MAX_FILES = 100
MAX_VALUES = 500_000
MAX_DEPTH = 50
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]  # chosen at run time
    """Refuses what would be dropped without a word: keys that are given twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    line = key.start_mark.line + 1
                    raise Broken([Problem("given twice", key.value, line)])
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def read(path: Path) -> dict[str, Any]:
    """The file with what it includes: lists are appended, anything else is replaced, as LiteLLM does it.
    Raises `Broken`, naming file and line.

    A file without a `model_list` is refused, since an import of no models takes away all that earlier imports
    made; an empty list says that this is meant.
    """
    config = _read(path, path.resolve().parent, [])
    if not isinstance(config.get("model_list"), list):
        message = f"{path.name} has no list of models: an empty one takes away what earlier imports made"
        raise Broken([Problem(message, "model_list")])
    return config


def _read(path: Path, root: Path, read_already: list[Path]) -> dict[str, Any]:
    resolved = path.resolve()
    if resolved in read_already:
        raise Broken([Problem(f"{path.name} is included twice")])
    if len(read_already) >= MAX_FILES:
        raise Broken([Problem(f"more than {MAX_FILES} files are included")])
    read_already.append(resolved)
    config = _load(path)
    for name in _included(config, path):
        inner = path.parent / name
        if not inner.resolve().is_relative_to(root):
            raise Broken([Problem(f"{name} is not below the folder of the file that is imported", "include")])
        for key, value in _read(inner, root, read_already).items():
            before = config.get(key)
            config[key] = [*before, *value] if isinstance(before, list) and isinstance(value, list) else value
    return config


def _included(config: dict[str, Any], path: Path) -> list[str]:
    names = config.pop("include", None) or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Broken([Problem(f"{path.name}: a list of files is expected", "include")])
    return names


def _load(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise Broken([Problem(f"{path}: {error.strerror}")]) from None
    if len(text) > MAX_BYTES:
        raise Broken([Problem(f"{path} is larger than {MAX_BYTES // 1024 // 1024} MiB")])
    try:
        value = yaml.load(text, Loader=_Loader)  # noqa: S506 (derived from the safe loader)
    except Broken as error:
        (problem,) = error.problems
        raise Broken([Problem(f"{path.name}: {problem.message}", problem.field, problem.line)]) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = None if mark is None else mark.line + 1
        raise Broken(
            [Problem(f"{path.name}: not YAML: {error.problem or error.context}", line=line)]
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise Broken([Problem(f"{path.name}: not YAML: it cannot be read")]) from None
    if not isinstance(value, dict):
        raise Broken([Problem(f"{path.name} is no mapping: a LiteLLM configuration has a `model_list`")])
    _bound(value, path)
    return value


def _bound(value: object, path: Path) -> None:
    """Refuse what anchors blow up: each use of one counts."""
    left, waiting = MAX_VALUES, [(value, 0)]
    while waiting:
        entry, depth = waiting.pop()
        left -= 1
        if left < 0 or depth > MAX_DEPTH:
            raise Broken([Problem(f"{path.name} holds too much, or too deep")])
        if isinstance(entry, Mapping):
            waiting += [(inner, depth + 1) for inner in entry.values()]
        elif isinstance(entry, list):
            waiting += [(inner, depth + 1) for inner in entry]
