"""The stages of one request, in order; the only place that knows the order."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from fastllm_proxy import refusals
from fastllm_proxy.authenticate import authenticate
from fastllm_proxy.authorise import authorise
from fastllm_proxy.client_headers import MAX_HOPS
from fastllm_proxy.errors import Refused
from fastllm_proxy.forms import form_boundary, read_form
from fastllm_proxy.kept_state import refuse_kept_state
from fastllm_proxy.peek import peek
from fastllm_proxy.routing import route

if TYPE_CHECKING:
    from fastllm_proxy.balancer import Balancer
    from fastllm_proxy.body import RequestBody
    from fastllm_proxy.exchange import Exchange
    from fastllm_proxy.forward import Forwarder
    from fastllm_proxy.limits import Limits
    from fastllm_proxy.meter import Meter
    from fastllm_proxy.metrics import Metrics
    from fastllm_proxy.spool import Spools
    from fastllm_shared.usage import Refusal

CLIENT_GONE: Final = 499

_REFUSALS: Final[dict[str | None, Refusal]] = {
    "model_access_denied": "authorisation",
    "rate_limit_exceeded": "rate_limit",
    "budget_exceeded": "budget",
    "no_backend": "no_backend",
    "overloaded": "overloaded",
    "backend_overloaded": "overloaded",
    "denied_by_rule": "denied",
}
"""The refusals that leave a usage row, by error code."""


class Pipeline:
    __slots__ = ("_balancer", "_forwarder", "_limits", "_max_body_bytes", "_meter", "_metrics", "_spools")

    def __init__(
        self,
        *,
        balancer: Balancer,
        forwarder: Forwarder,
        limits: Limits,
        meter: Meter,
        metrics: Metrics,
        spools: Spools,
        max_body_bytes: int,
    ) -> None:
        self._balancer = balancer
        self._forwarder = forwarder
        self._limits = limits
        self._meter = meter
        self._metrics = metrics
        self._spools = spools
        self._max_body_bytes = max_body_bytes

    async def handle(self, exchange: Exchange, request_body: RequestBody) -> None:
        """Serves one exchange to its end, and settles it whatever happens. Raises only what is nobody's
        answer: cancellation when the client has gone, and faults of our own."""
        try:
            await self._serve(exchange, request_body)
        except Refused as refused:
            self._refuse(exchange, refused)
        except asyncio.CancelledError:
            exchange.status = CLIENT_GONE
            raise
        except Exception:
            exchange.status = 500
            raise
        finally:
            if exchange.form is not None:
                exchange.form.close()
            self._meter.settle(exchange)
            if exchange.reservation is not None:
                if exchange.attempts:
                    exchange.reservation.settle(exchange.usage)
                else:  # refused, or gone before anything was sent: it consumes nothing
                    exchange.reservation.release()

    async def _serve(self, exchange: Exchange, request_body: RequestBody) -> None:
        view = exchange.view
        caller = exchange.caller = authenticate(view, exchange.headers, exchange.accepted_unix)
        if exchange.headers.hops >= MAX_HOPS:
            raise Refused(400, "too_many_hops", "the request came through too many gateways in a row")
        # No name in this frame may hold on to the body: it is let go while a long answer is under way.
        exchange.release_body = request_body.release
        boundary = form_boundary(exchange.headers.raw) if exchange.endpoint.takes_forms else None
        if boundary is None:
            exchange.body = await request_body.read(self._max_body_bytes)
            exchange.peek = peek(exchange.body)
        else:
            await read_form(exchange, request_body, boundary, self._max_body_bytes, self._spools)
        assert exchange.peek is not None
        exchange.frontend = authorise(view, caller, exchange.peek.model)
        self._limits.admit(exchange)
        route(exchange, self._balancer)
        if exchange.endpoint.keeps_state:
            refuse_kept_state(exchange)
        await self._forwarder.forward(exchange)

    def _refuse(self, exchange: Exchange, refused: Refused) -> None:
        exchange.status = refused.status
        exchange.code = refused.code
        if exchange.caller is not None:
            exchange.refusal = _REFUSALS.get(refused.code)
        self._metrics.rejected(refused.code or str(refused.status), attributed=exchange.caller is not None)
        refusals.answer(exchange.downstream, refused, exchange.endpoint.dialect)
