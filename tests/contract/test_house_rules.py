"""The rules of the house that no linter knows: mirrors of modules, sizes, state, imports of the hot path."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = {
    "control": ROOT / "control" / "fastllm_control",
    "proxy": ROOT / "proxy" / "fastllm_proxy",
    "shared": ROOT / "shared" / "fastllm_shared",
}
MODULES = sorted(path for folder in SOURCES.values() for path in folder.rglob("*.py"))
FILE_LINES = 350
FUNCTION_LINES = 60


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_every_module_has_its_test(path: Path) -> None:
    if path.name in ("__init__.py", "__main__.py") or not _has_code(path):
        return
    plane = next(name for name, folder in SOURCES.items() if folder in path.parents)
    mirror = ROOT / "tests" / plane / path.relative_to(SOURCES[plane]).with_name(f"test_{path.name}")
    assert mirror.is_file(), f"{_name(path)} wants {_name(mirror)}"


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_sizes(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= FILE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            length = node.end_lineno - node.lineno + 1
            assert length <= FUNCTION_LINES, f"{node.name} has {length} lines"


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_no_mutable_module_state(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Global)]
    for statement in tree.body:
        value = getattr(statement, "value", None)
        if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(value, ast.List | ast.Set):
            pytest.fail(f"line {statement.lineno}: a mutable value at module level")


def test_every_suppression_names_its_code() -> None:
    for path in [*MODULES, *(ROOT / "tests").rglob("*.py")]:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for bare in ("# type: ignore\n", "# noqa\n"):
                assert not (line + "\n").endswith(bare), f"{_name(path)}:{number}"


def test_broad_excepts_are_rare() -> None:
    lines = broad = 0
    for path in MODULES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        lines += path.read_text(encoding="utf-8").count("\n")
        for node in ast.walk(tree):
            if isinstance(node, ast.ExceptHandler) and _is_broad(node):
                broad += not any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
    assert broad <= max(3, lines * 0.5 / 1000), f"{broad} broad excepts in {lines} lines"


def test_nothing_is_tracked_that_belongs_to_a_machine() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split("\n")
    hosts = [".".join(parts) for parts in (("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"))]
    for name in filter(None, tracked):
        path = ROOT / name
        if path.suffix in (".py", ".toml", ".txt", ".md", ".yaml", ".yml", ".sh", "") and path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            assert not [host for host in hosts if host in text], name


def _has_code(path: Path) -> bool:
    """Whether there is anything to test: a named empty place has only a docstring and constants."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    if any(isinstance(node, kinds) for node in ast.walk(tree)):
        return "tables" not in path.parts
    return False


def _is_broad(handler: ast.ExceptHandler) -> bool:
    caught = handler.type
    if caught is None:
        return True
    names = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(isinstance(name, ast.Name) and name.id in ("Exception", "BaseException") for name in names)
