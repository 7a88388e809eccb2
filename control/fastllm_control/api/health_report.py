"""`POST /health-report`: what a proxy says of itself."""

from __future__ import annotations

from fastllm_control.operations import Call, Operation
from fastllm_control.services import fleet
from fastllm_control.services.fleet import ReportAck
from fastllm_shared.health import HealthReport

MAX_REPORT_BYTES = 8 << 20


async def post_report(call: Call) -> ReportAck:
    return await fleet.take_report(call.tx.session, call.body)


ROUTES = (
    Operation(
        method="POST",
        path="/health-report",
        requires="proxy",
        summary="Replace this replica's report",
        handler=post_report,
        body=HealthReport,
        result=ReportAck,
        max_body_bytes=MAX_REPORT_BYTES,
    ),
)
