"""Bodies that work as they stand, for the OpenAPI document and its page, by method and path."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

EXAMPLES: Mapping[str, Any] = MappingProxyType(
    {
        "POST /login": {"name": "admin", "password": "correct horse battery"},
        "POST /admin/principals": {"name": "team-a", "kind": "service_account"},
        "PATCH /admin/principals/{id}": {"name": "team-b"},
        "POST /admin/principals/{id}/roles": {"role": "inference"},
        "DELETE /admin/principals/{id}/roles": {"role": "inference"},
        "PUT /admin/principals/{id}/password": {"password": "correct horse battery"},
        "PUT /admin/principals/{id}/limits": {"requests_per_min": 600, "max_concurrent": 32},
        "PUT /admin/principals/{id}/budget": {
            "window": "monthly",
            "cost_total_micros": 500_000_000,
            "timezone": "Europe/Berlin",
        },
        "POST /admin/roles": {"name": "chat-users"},
        "PATCH /admin/roles/{id}": {"name": "chat"},
        "POST /admin/roles/{id}/permissions": {"verb": "model:invoke", "resource": "model/chat"},
        "DELETE /admin/roles/{id}/permissions": {"verb": "model:invoke", "resource": "model/chat"},
        "POST /admin/keys": {
            "principal_id": "team-a",
            "name": "batch jobs",
            "expires_at": "2031-01-01T00:00:00Z",
        },
        "POST /admin/keys/{id}/rotate": {"grace_seconds": 3600},
        "POST /admin/providers": {
            "name": "gpu-1",
            "api_base": "http://10.0.0.5:8000/v1",
            "upstream_api_key": "sk-upstream",
        },
        "PATCH /admin/providers/{id}": {"state": "draining", "state_reason": "new driver"},
        "POST /admin/provider-models": {
            "name": "llama-70b",
            "context_length": 131_072,
            "input_price_per_mtok": 200_000,
            "output_price_per_mtok": 800_000,
            "backends": [{"provider": "gpu-1", "upstream_model": "meta-llama/Llama-3.3-70B-Instruct"}],
        },
        "PATCH /admin/provider-models/{id}": {"context_length": 65_536, "cached_input_price_per_mtok": None},
        "POST /admin/provider-models/{id}/backends": {
            "provider": "gpu-2",
            "upstream_model": "llama-70b",
            "admission_max_concurrent": 64,
        },
        "PATCH /admin/backends/{id}": {"upstream_timeout_seconds": 300, "state": "active"},
        "POST /admin/pools": {
            "name": "chat-gpus",
            "policy": "least-loaded",
            "members": [{"provider_model": "llama-70b", "weight": 3}, {"provider_model": "llama-8b"}],
        },
        "PATCH /admin/pools/{id}": {"members": [{"provider_model": "llama-70b"}]},
        "POST /admin/frontend-models": {"name": "chat", "targets": [{"target": "llama-70b"}]},
        "PATCH /admin/frontend-models/{id}": {"policy": "least-loaded"},
        "PUT /admin/frontend-models/{id}/targets": {
            "targets": [{"target": "llama-70b", "weight": 9}, {"target": "llama-70b-new", "weight": 1}]
        },
        "POST /admin/frontend-models/{id}/rules": {
            "when": {"min_prompt_tokens": 32_000},
            "targets": [{"target": "llama-70b-long"}],
            "tag": "long",
        },
        "PUT /admin/frontend-models/{id}/rules": {
            "rules": [
                {
                    "when": {"roles": ["batch"], "after": "08:00", "before": "18:00"},
                    "action": "deny",
                    "deny_status": 429,
                    "deny_message": "batch jobs run at night",
                },
                {"when": {"stream": False}, "targets": [{"target": "llama-70b-slow"}]},
            ]
        },
        "PATCH /admin/rules/{id}": {"position": 0},
        "POST /admin/routing/dry-run": {
            "model": "chat",
            "principal": "team-a",
            "stream": True,
            "prompt_tokens": 40_000,
            "at": "2031-01-01T09:00:00Z",
        },
        "POST /admin/apply": {"text": "principals:\n- name: team-a\n", "dry_run": True},
        "PUT /admin/fallback-model": {"frontend_model": "chat"},
    }
)
