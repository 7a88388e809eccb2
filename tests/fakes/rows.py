"""Rows as `repositories.content` reads them, for tests of what is built of them."""

from __future__ import annotations

from typing import Any

from fastllm_control.snapshot_rows import BackendRow, ModelRow, ProviderRow, Rows
from fastllm_shared.ids import uuid7

VERSION = 1_796_000_000_000_000


def provider(**changed: Any) -> ProviderRow:
    plain = {
        "id": uuid7(),
        "name": "gpu-1",
        "kind": "static",
        "api_base": "http://127.0.0.1:9001/v1",
        "protocol": "openai",
        "credential": None,
        "auth_header": "authorization",
        "auth_scheme": None,
        "extra_headers": None,
        "stream_usage": "inject",
        "ca": None,
        "server_name": None,
        "state": "active",
        "condition": "ok",
        "agent_draining": False,
    }
    return ProviderRow(**{**plain, **changed})


def model(name: str = "qwen") -> ModelRow:
    return ModelRow(uuid7(), name, 32768, 500_000, 1_500_000, None)


def backend(of: ProviderRow, serves: ModelRow, **changed: Any) -> BackendRow:
    settings = {
        name: None
        for name in BackendRow.__struct_fields__
        if name.startswith("admission") or name.endswith(("seconds", "after", "threshold"))
    }
    plain = {
        "id": uuid7(),
        "provider_id": of.id,
        "provider_model_id": serves.id,
        "upstream_model": "Qwen/Qwen3-8B",
        "state": "active",
        "condition": "ok",
    }
    return BackendRow(**{**settings, **plain, **changed})


def rows(**content: Any) -> Rows:
    return Rows(version=VERSION, history="h", **content)
