"""What the documentation says is so: reference pages match the code, quoted messages are printed by it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.contract.reference import FOLDER, pages

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("name", sorted(pages()))
def test_reference_is_what_the_code_says(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == pages()[name], "run `make docs`"


def test_every_quoted_message_is_in_the_code() -> None:
    sources = [
        re.sub(r"\s+", " ", re.sub(r"[\"']\s*\n\s*f?[\"']", "", path.read_text(encoding="utf-8")))
        for folder in ("control", "proxy", "shared")
        for path in (ROOT / folder).rglob("*.py")
    ]
    quoted = re.findall(r"^> `(.+)`$", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE)
    assert len(quoted) > 15
    # What varies in a message stands as … on the page.
    for message in quoted:
        parts = [part.strip() for part in message.split("…") if part.strip()]
        assert any(all(part in source for part in parts) for source in sources), message


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target
