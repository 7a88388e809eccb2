"""What a configuration file can say."""

from __future__ import annotations

import msgspec
import pytest

from fastllm_control.declared.document import Document


def test_a_reference_names_exactly_one_place() -> None:
    for reference in ({}, {"env": "KEY", "file": "/run/key"}, {"env": "1KEY"}, "sk-secret"):
        provider = {"name": "p", "api_base": "http://127.0.0.1:1/v1", "upstream_api_key": reference}
        with pytest.raises(msgspec.ValidationError, match="upstream_api_key"):
            msgspec.convert({"format": 1, "providers": [provider]}, Document)


def test_absent_is_not_null() -> None:
    assert msgspec.convert({"format": 1}, Document).fallback_model is msgspec.UNSET
    assert msgspec.convert({"format": 1, "fallback_model": None}, Document).fallback_model is None
