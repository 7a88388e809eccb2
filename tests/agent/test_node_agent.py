"""The agent is one file that needs nothing but Python."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

AGENT = Path(__file__).parents[2] / "agent" / "fastllm-node-agent.py"


def test_it_imports_only_the_standard_library() -> None:
    tree = ast.parse(AGENT.read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names


def test_it_says_that_it_is_not_there_yet() -> None:
    ended = subprocess.run([sys.executable, "-I", "-S", str(AGENT)], capture_output=True, text=True)
    assert ended.returncode == 1
    assert "not available yet" in ended.stderr
