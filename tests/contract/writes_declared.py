"""The write that is a whole configuration."""

from __future__ import annotations

from tests.contract.audited import Scenario, Stage, Write


async def apply_configuration(stage: Stage) -> Write:
    name = stage.fresh("applied")
    provider = {"name": name, "api_base": stage.engine_url, "upstream_api_key": {"env": "KEY"}}
    return Write(
        path="/admin/apply",
        body={
            "document": {"format": 1, "providers": [provider]},
            "credentials": {"KEY": stage.canary()},
        },
        action="provider.create",
        kind="provider",
        name=name,
        fields=frozenset(
            {
                "kind",
                "api_base",
                "protocol",
                "auth_header",
                "stream_usage",
                "condition",
                "upstream_api_key",
            }
        ),
    )


WRITES: dict[str, Scenario] = {"POST /admin/apply": apply_configuration}
