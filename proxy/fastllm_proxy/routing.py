"""Frontend model → chain: the targets that this request may go to, in order. The deciding is done by the pure
engine of `fastllm_shared.routing`; here stand the facts that it asks for and what its decision means for live
targets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastllm_proxy.balancer import affinity_key
from fastllm_proxy.errors import Refused
from fastllm_proxy.peek import requested_tokens
from fastllm_shared.conditions import Facts
from fastllm_shared.routing import Rule, arrange, decide

if TYPE_CHECKING:
    from fastllm_proxy.exchange import Exchange
    from fastllm_proxy.view import FrontendModel, Target

_BASE64 = b";base64,"


def route(exchange: Exchange) -> tuple[Target, ...]:
    """Fills `rule`, `tag`, `policy` and `chain`. Raises `Refused` for a rule that denies."""
    frontend = exchange.frontend
    assert frontend is not None
    targets = frontend.targets
    exchange.policy = frontend.policy
    if frontend.entry.rules:
        targets = _by_rules(exchange, frontend)
    if len(targets) > 1:
        targets = _fitting_first(exchange, arrange(targets, affinity_key(exchange)))
    exchange.chain = _with_fallback(exchange, targets)
    return exchange.chain


def prompt_tokens(exchange: Exchange) -> int:
    """An estimate: four bytes a token, embedded files and those of a form left out."""
    if exchange.form is not None:
        return exchange.form.text_bytes // 4
    body = exchange.body
    size = len(body)
    start = body.find(_BASE64)
    while start >= 0:
        end = body.find(b'"', start)
        if end < 0:
            break
        size -= end - start
        start = body.find(_BASE64, end)
    return size // 4


def _by_rules(exchange: Exchange, frontend: FrontendModel) -> tuple[Target, ...]:
    view = exchange.view

    def inflight(rule: Rule) -> float | None:
        owner = view.models[rule.model]
        targets = owner.rule_targets.get(rule.entry.position) or owner.targets
        counts = [member.backend.inflight for target in targets for member in target.members]
        return sum(counts) / len(counts) if counts else None

    decision = decide(view.rules, frontend.name, _facts(exchange), inflight)
    exchange.rule, exchange.tag, exchange.policy = decision.rule, decision.tag, decision.policy
    if decision.denied_status is not None:
        raise Refused(decision.denied_status, "denied_by_rule", decision.denied_message or "denied by a rule")
    owner = view.models[decision.model]
    return owner.targets if decision.position is None else owner.rule_targets.get(decision.position, ())


def _facts(exchange: Exchange) -> Facts:
    assert exchange.caller is not None
    assert exchange.peek is not None
    principal = exchange.caller.principal
    return Facts(
        principal=principal.name,
        roles=principal.roles,
        stream=exchange.peek.stream,
        now_unix=exchange.accepted_unix,
        headers={
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in exchange.headers.raw
        },
        prompt_tokens=prompt_tokens(exchange),
        max_tokens=requested_tokens(exchange.peek),
    )


def _fitting_first(exchange: Exchange, targets: tuple[Target, ...]) -> tuple[Target, ...]:
    """Targets whose context cannot hold the request go to the end: a reordering, since it is an estimate."""
    assert exchange.peek is not None
    smallest = min((t.context_length for t in targets if t.context_length is not None), default=None)
    requested = requested_tokens(exchange.peek) or 0
    if smallest is None or (len(exchange.body) // 4 + requested <= smallest and exchange.form is None):
        return targets
    needed = prompt_tokens(exchange) + requested
    return tuple(sorted(targets, key=lambda t: t.context_length is not None and t.context_length < needed))


def _with_fallback(exchange: Exchange, targets: tuple[Target, ...]) -> tuple[Target, ...]:
    fallback = exchange.view.fallback
    if fallback is None or fallback is exchange.frontend:
        return targets
    assert exchange.caller is not None
    if not exchange.caller.may_name(fallback.name):
        return targets
    known = {target.name for target in targets}
    return (*targets, *(target for target in fallback.targets if target.name not in known))
