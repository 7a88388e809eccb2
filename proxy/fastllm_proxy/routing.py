"""Frontend model → chain: the targets that this request may go to, in order. The deciding is done by
`fastllm_shared.chain`; here stand the facts of a request, each found out when a rule first asks for it, and
what is made of the decision.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fastllm_proxy.errors import Refused
from fastllm_shared.chain import mean_inflight
from fastllm_shared.chain import route as find
from fastllm_shared.routing import DEFAULT_DENIAL

if TYPE_CHECKING:
    from fastllm_proxy.balancer import Balancer
    from fastllm_proxy.exchange import Exchange
    from fastllm_proxy.view import Target
    from fastllm_shared.routing import Rule


def route(exchange: Exchange, balancer: Balancer) -> tuple[Target, ...]:
    """Fills `rule`, `tag` and `chain`. Raises `Refused` for a rule that denies."""
    frontend, caller = exchange.frontend, exchange.caller
    assert frontend is not None
    assert caller is not None
    routes = exchange.view.routes
    if not frontend.entry.rules and (routes.fallback is None or not caller.may_name(routes.fallback.name)):
        chain = exchange.chain = balancer.arrange(frontend.default, exchange)
        return chain
    facts = RequestFacts(exchange)
    found = find(
        routes, frontend.name, facts, exchange, balancer, caller.may_name, facts.inflight, explain=False
    )
    decision = found.decision
    exchange.rule, exchange.tag = decision.rule, decision.tag
    if decision.denied_status is not None:
        raise Refused(decision.denied_status, "denied_by_rule", decision.denied_message or DEFAULT_DENIAL)
    exchange.chain = found.chain
    return found.chain


class RequestFacts:
    """What rules can ask of an exchange. Implements `conditions.Known`."""

    __slots__ = ("_exchange",)

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

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
        return None  # a matter of each rule's own backends: see `inflight`

    def header(self, name: str) -> str | None:
        """All of one name together, as HTTP reads them: no rule can be led to see only one of two."""
        wanted = name.encode("latin-1", "replace")
        found = [value for given, value in self._exchange.headers.raw if given.lower() == wanted]
        return b", ".join(found).decode("latin-1") if found else None

    def inflight(self, rule: Rule) -> float | None:
        """The figure of a rule that asks for one."""
        exchange = self._exchange
        return mean_inflight(exchange.view.routes, rule, exchange.dialect, time.monotonic())
