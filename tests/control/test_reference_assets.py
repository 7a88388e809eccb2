"""The page's policy lets in its own style and script, by hash, and nothing else."""

from __future__ import annotations

import base64
import hashlib
import re

from fastllm_control.reference_assets import CONTENT_SECURITY_POLICY, SCRIPT, STYLE


def test_the_policy_names_what_the_page_holds() -> None:
    for text in (STYLE, SCRIPT):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in CONTENT_SECURITY_POLICY


def test_the_policy_lets_nothing_else_in() -> None:
    directives = dict(part.strip().split(" ", 1) for part in CONTENT_SECURITY_POLICY.split(";"))
    assert directives["default-src"] == "'none'"
    for name in ("base-uri", "form-action", "frame-ancestors"):
        assert directives[name] == "'none'"
    for name in ("style-src", "script-src"):
        assert re.fullmatch(r"'sha256-[A-Za-z0-9+/=]+'", directives[name])


def test_style_and_script_load_nothing_and_cannot_end_early() -> None:
    for text in (STYLE, SCRIPT):
        assert "</" not in text
        for forbidden in ("url(", "@import", "http:", "https:", "//", "fetch", "innerHTML", "eval"):
            assert forbidden not in text
