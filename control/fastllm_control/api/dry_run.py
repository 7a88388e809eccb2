"""`POST /admin/routing/dry-run`: what would happen to a request, and why."""

from __future__ import annotations

from fastllm_control.operations import Call, Operation
from fastllm_control.routing_preview import Preview
from fastllm_control.services import dry_run

MAX_BODY_BYTES = 4 << 20


async def run(call: Call) -> Preview:
    question: dry_run.Question = call.body
    services = call.services
    async with services.database.read() as session:
        return await dry_run.answer(
            session, question, call.actor.principal_id, services.clock(), services.secrets.open
        )


ROUTES = (
    Operation(
        method="POST",
        path="/admin/routing/dry-run",
        requires="config:read",
        summary="Tell which rule would decide about a request, its chain, and what is skipped, and why",
        handler=run,
        body=dry_run.Question,
        result=Preview,
        errors=(409,),
        transaction=False,
        max_body_bytes=MAX_BODY_BYTES,
    ),
)
