"""Frontend model → chain: the targets that this request may go to, in order. The deciding is done by
`fastllm_shared.chain`; here stand the facts of a request, each found out when a rule first asks for it, and
what is made of the decision.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fastllm_proxy.errors import Refused
from fastllm_shared.chain import inflight_of
from fastllm_shared.chain import route as find

if TYPE_CHECKING:
    from fastllm_proxy.balancer import Balancer
    from fastllm_proxy.exchange import Exchange
    from fastllm_proxy.view import Target


def route(exchange: Exchange, balancer: Balancer) -> tuple[Target, ...]:
    """Fills `rule`, `tag` and `chain`. Raises `Refused` for a rule that denies."""
    frontend, caller = exchange.frontend, exchange.caller
    assert frontend is not None
    assert caller is not None
    routes = exchange.view.routes
    if routes.fallback is None and not frontend.entry.rules:
        chain = exchange.chain = balancer.arrange(frontend.default, exchange)
        return chain
    found = find(
        routes,
        frontend.name,
        RequestFacts(exchange),
        exchange,
        balancer,
        caller.may_name,
        inflight_of(routes, exchange.dialect, time.monotonic()),
    )
    decision = found.decision
    exchange.rule, exchange.tag = decision.rule, decision.tag
    if decision.denied_status is not None:
        raise Refused(decision.denied_status, "denied_by_rule", decision.denied_message or "denied by a rule")
    exchange.chain = found.chain
    return found.chain


class RequestFacts:
    """What rules can ask of an exchange. Implements `conditions.Known`."""

    __slots__ = ("_exchange", "_headers")

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._headers: dict[str, str] | None = None

    @property
    def principal(self) -> str:
        assert self._exchange.caller is not None
        return self._exchange.caller.principal.name

    @property
    def roles(self) -> tuple[str, ...]:
        assert self._exchange.caller is not None
        return self._exchange.caller.principal.roles

    @property
    def stream(self) -> bool:
        assert self._exchange.peek is not None
        return self._exchange.peek.stream

    @property
    def now_unix(self) -> float:
        return self._exchange.accepted_unix

    @property
    def headers(self) -> Mapping[str, str]:
        """Those of one name together, as HTTP reads them: no rule can be led to see only one of two."""
        found = self._headers
        if found is None:
            found = self._headers = {}
            for raw_name, raw_value in self._exchange.headers.raw:
                name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
                found[name] = f"{found[name]}, {value}" if name in found else value
        return found

    @property
    def prompt_tokens(self) -> int:
        return self._exchange.prompt_tokens()

    @property
    def max_tokens(self) -> int | None:
        return self._exchange.requested_tokens()

    @property
    def budget_used_percent(self) -> float | None:
        return None  # not counted yet

    @property
    def inflight_per_backend(self) -> float | None:
        return None  # a matter of each rule's own backends
