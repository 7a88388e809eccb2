"""The admin API's one way in: a route is an `Operation`, and all of them are run alike.

Order: find the caller → check `requires` → decode path, query and body strictly → `handler` inside one
transaction → encode. `api/<domain>.py` exports `ROUTES`, a tuple of operations; `openapi` reads the same
tuples. A handler is `async def handler(call: Call) -> Struct | None`, and reaches the rest of the process
through `call.services` only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from fastllm_control.access import Actor, Requirement

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from fastllm_control.app import Services
    from fastllm_control.transaction import Transaction

VERSION_HEADER = "X-FastLLM-Snapshot-Version"
"""Of every answer to a write that changed content: the version that proxies report once they serve it."""

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


class Call:
    """One call of one operation.

    `path` holds the decoded path parameters (a name may contain `/`), `query` an instance of the
    operation's `query` struct, `body` one of its `body` struct. `tx` is the transaction of a write; reads
    and operations with `transaction=False` have none and take what they need from `services`.
    """

    __slots__ = (
        "_requires",
        "_tx",
        "actor",
        "body",
        "path",
        "query",
        "request",
        "response_headers",
        "services",
    )

    def __init__(
        self,
        services: Services,
        actor: Actor,
        request: Request,
        path: Mapping[str, str],
        query: Any,
        body: Any,
        tx: Transaction | None,
        requires: Requirement,
    ) -> None:
        self.services = services
        self.actor = actor
        self.request = request
        self.path = path
        self.query = query
        self.body = body
        self.response_headers: dict[str, str] = {}
        self._tx = tx
        self._requires = requires

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Transaction]:
        """A transaction for an operation that was declared without one, since it does first what takes time,
        such as dialling. The caller is looked up again: what let it in may be gone by now."""
        facts = self.request.state.facts
        actor = await self.services.callers.find(self.request, facts, self._requires)
        async with self.services.database.begin(actor) as tx:
            yield tx
        self.report_version(tx)

    def report_version(self, tx: Transaction) -> None:
        """Tell the caller the version that a committed transaction made. Only for operations that open
        their own transaction (`transaction=False`): for all others it is done for them."""
        if tx.version is not None:
            self.response_headers[VERSION_HEADER] = str(tx.version)

    @property
    def tx(self) -> Transaction:
        if self._tx is None:
            raise RuntimeError("this operation was declared without a transaction")
        return self._tx


class Deleted(msgspec.Struct, frozen=True):
    """What every deletion answers."""

    deleted: bool = True


Handler = Callable[[Call], Awaitable["msgspec.Struct | Response | None"]]


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One route. `status` is the answer's status on success; `errors` are those it documents beyond the ones
    that the document adds by itself: 400 and 500; 401, 403 and 503 of what is not public; 404 of paths with
    parameters; 403, 409 and 413 of writes. What is set below `errors` is for the document alone, apart from
    `transaction` and `max_body_bytes`.

    `description` is what a caller should know beyond the summary; `media` the content types of an answer that
    is no `result`; `also` further statuses that are no errors, and what they mean; `request_headers` and
    `response_headers` names of headers with what they are for.
    """

    method: Method
    path: str
    requires: Requirement
    summary: str
    handler: Handler
    body: Any = None
    query: type[msgspec.Struct] | None = None
    result: Any = None
    status: int = 200
    errors: tuple[int, ...] = ()
    transaction: bool = True
    max_body_bytes: int = 1 << 20
    description: str = ""
    media: tuple[str, ...] = ("application/json",)
    also: Mapping[int, str] = {}
    request_headers: Mapping[str, str] = {}
    response_headers: Mapping[str, str] = {}
