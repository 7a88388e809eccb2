"""`GET /admin/fleet`: every replica as it last reported, and what that amounts to."""

from __future__ import annotations

from fastllm_control.operations import Call, Operation
from fastllm_control.services import fleet
from fastllm_control.services.fleet import FleetAnswer


async def get_fleet(call: Call) -> FleetAnswer:
    settings = call.services.settings
    async with call.services.database.read() as session:
        return await fleet.describe(session, settings.config_poll, settings.health_report_interval)


ROUTES = (
    Operation(
        method="GET",
        path="/admin/fleet",
        requires="config:read",
        summary="The proxies: which snapshot each serves, how it sees its backends, how its usage adds up",
        handler=get_fleet,
        result=FleetAnswer,
    ),
)
