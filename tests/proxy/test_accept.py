from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from fastllm_proxy.accept import EdgeSettings
from fastllm_proxy.authenticate import authenticate
from fastllm_proxy.body import RequestBody
from fastllm_proxy.endpoints import ENDPOINTS, spellings
from fastllm_proxy.errors import Refused
from fastllm_proxy.exchange import Exchange
from tests.fakes.edge import AUTH, JSON, KEY, Edge, eventually, get, post, running_edge


@pytest.mark.parametrize("path", [path for e in ENDPOINTS for path in spellings(e.path)])
async def test_every_spelling_of_an_endpoint_reaches_the_pipeline(path: str) -> None:
    async with running_edge() as edge:
        answer = await edge.ask(post(path, b"{}"))
        assert answer.status == 200
        canonical = path.removesuffix("/").removeprefix("/v1")
        assert answer.json()["endpoint"] == canonical  # type: ignore[index]


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/v2/chat/completions",
        "/v1/v1/chat/completions",
        "/v1/batches",
        "/v1/files",
        "/v1/chat/completions//",
        "//v1/chat/completions",
        "/v1/../v1/chat/completions",
        "//v1/../v1/models",
        "/v1/./models",
        "/v1/%63hat/completions",
        "/v1/chat%2Fcompletions",
        "/V1/chat/completions",
        "/v1/chat/completions;a=b",
        "/v1/chat/completions#part",
    ],
)
async def test_any_other_path_is_unknown(path: str) -> None:
    async with running_edge() as edge:
        answer = await edge.ask(post(path, b"{}"))
        assert answer.status == 404
        assert answer.error["code"] == "unknown_url"
        shown = path.replace("#", "?").replace(";", "?")
        assert answer.error["message"] == f"no route for POST {shown}"


async def test_the_message_repeats_no_query_and_only_the_beginning_of_a_path() -> None:
    async with running_edge() as edge:
        answer = await edge.ask(get("/v1/" + "x" * 5_000 + "?key=sk-secret", b""))
        assert answer.error["message"] == "no route for GET /v1/" + "x" * 196
        answer = await edge.ask(get('/v1/<script>"sk-secret"&', b""))
        assert answer.error["message"] == "no route for GET /v1/?script??sk-secret??"


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"])
async def test_a_wrong_method_is_told_the_right_one(method: str) -> None:
    async with running_edge() as edge:
        answer = await edge.ask(f"{method} /v1/messages HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert answer.status == 405
        assert answer.headers["allow"] == "POST"
        if method == "HEAD":
            assert answer.body == b""
            return
        error = answer.json()["error"]  # type: ignore[index]
        assert error["type"] == "invalid_request_error"
        answer = await edge.ask(f"{method} /v1/embeddings HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert answer.error["code"] == "method_not_allowed"


async def test_local_routes_take_get_and_head_only() -> None:
    async with running_edge() as edge:
        answer = await edge.ask(post("/v1/models", b""))
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
        answer = await edge.ask(b"HEAD /v1/models HTTP/1.1\r\nHost: x\r\n" + AUTH + b"\r\n")
        assert (answer.status, answer.body) == (200, b"")
        assert int(answer.headers["content-length"]) > 0


async def test_an_anthropic_endpoint_answers_in_anthropics_shape() -> None:
    async with running_edge() as edge:
        answer = await edge.ask(post("/v1/messages", b"{}", b"x-request-id: r-1\r\n"))
        assert answer.status == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json() == {
            "type": "error",
            "error": {
                "type": "authentication_error",
                "message": "no valid API key was given; send it as `Authorization: Bearer <key>`",
            },
            "request_id": "r-1",
        }


async def test_the_query_is_handed_on_and_the_target_may_name_a_host() -> None:
    async with running_edge() as edge:
        answer = await edge.ask(post("/v1/messages?beta=true&a=%20", b"{}"))
        assert answer.json()["query"] == "?beta=true&a=%20"  # type: ignore[index]
        answer = await edge.ask(post("/v1/messages?a=b#part", b"{}"))
        assert answer.json()["query"] == "?a=b"  # type: ignore[index]
        answer = await edge.ask(post("http://elsewhere:99/v1/embeddings?x=1", b"{}"))
        assert answer.json()["endpoint"] == "/embeddings"  # type: ignore[index]
        assert answer.json()["query"] == "?x=1"  # type: ignore[index]


@pytest.mark.parametrize("given", ["abc", "a" * 128, "3f2a/x.Y_z:1@host+2=~"])
async def test_a_safe_request_id_is_kept(given: str) -> None:
    async with running_edge() as edge:
        for request in (post("/v1/embeddings", b"{}"), get("/nowhere"), get("/livez")):
            answer = await edge.ask(request.replace(AUTH, AUTH + f"X-Request-ID: {given}\r\n".encode()))
            assert answer.headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "a" * 129, "a b", 'a"b', "a<b>", "a,b", "é", "a\tb"])
async def test_any_other_request_id_is_replaced(given: str) -> None:
    async with running_edge() as edge:
        seen = set()
        for request in (post("/v1/embeddings", b"{}"), get("/nowhere"), get("/livez")):
            answer = await edge.ask(request.replace(AUTH, AUTH + f"X-Request-ID: {given}\r\n".encode()))
            seen.add(answer.headers["x-request-id"])
            assert len(answer.headers["x-request-id"]) == 32
        assert len(seen) == 3


async def test_before_the_first_snapshot_nothing_is_served_but_life() -> None:
    async with running_edge() as edge:
        edge.views.current = None
        for request in (post("/v1/chat/completions", b"{}"), get("/v1/models"), get("/v1/models/assistant")):
            answer = await edge.ask(request)
            assert answer.status == 503
            assert answer.error["code"] == "not_ready"
            assert int(answer.headers["retry-after"]) > 0
        assert (await edge.ask(get("/livez", b""))).status == 200
        assert edge.metrics.unattributed == {"not_ready": 3}


async def test_no_answer_names_a_server() -> None:
    async with running_edge() as edge:
        for request in (post("/v1/chat/completions", b"{}"), get("/x"), get("/livez"), b"nonsense\r\n\r\n"):
            answer = await edge.ask(request)
            assert not {"server", "date", "x-powered-by"} & set(answer.headers)


async def test_above_max_inflight_requests_are_refused_and_below_it_served_again() -> None:
    async with running_edge(EdgeSettings(max_inflight=2)) as edge:
        release = asyncio.Event()

        async def wait(exchange: Exchange, body: RequestBody) -> None:
            await body.read(100)
            await release.wait()
            exchange.downstream.send_whole(200, JSON, b"{}")

        edge.handler = wait
        busy = [await edge.connect() for _ in range(2)]
        for client in busy:
            await client.send(post("/v1/embeddings", b"{}"))
        await eventually(lambda: edge.server.inflight == 2)
        answer = await edge.ask(post("/v1/embeddings", b"{}"))
        assert (answer.status, answer.error["code"]) == (503, "overloaded")
        assert int(answer.headers["retry-after"]) > 0
        assert (await edge.ask(get("/livez"))).status == 200
        release.set()
        for client in busy:
            assert (await client.answer()).status == 200
            client.raw.close()
        assert (await edge.ask(post("/v1/embeddings", b"{}"))).status == 200
        assert edge.server.inflight == 0


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/messages"])
async def test_a_fault_of_ours_is_a_plain_500_and_logged(path: str) -> None:
    async with running_edge() as edge:

        async def fail(exchange: Exchange, body: RequestBody) -> None:
            await body.read(100)
            raise LookupError("the inside of the gateway")

        edge.handler = fail
        async with await edge.connect() as client:
            await client.send(post(path, b"{}"))
            answer = await client.answer()
            assert answer.status == 500
            assert b"inside" not in answer.body
            assert b"Traceback" not in answer.body
            if path == "/v1/embeddings":
                assert answer.error["code"] == "internal_error"
            await client.send(get("/livez"))
            assert (await client.answer()).status == 200
        (entry,) = edge.captured.events("request failed")
        assert entry["request_id"] == answer.headers["x-request-id"]
        assert isinstance(entry["exc_info"], LookupError)


async def test_a_fault_after_the_start_cuts_the_answer() -> None:
    async with running_edge() as edge:

        async def fail(exchange: Exchange, body: RequestBody) -> None:
            exchange.downstream.start(200, JSON, None, b"begun")
            raise LookupError

        edge.handler = fail
        async with await edge.connect() as client:
            await client.send(post("/v1/embeddings", b"{}"))
            everything = await client.rest()
        assert everything.endswith(b"5\r\nbegun\r\n")
        assert len(edge.captured.events("request failed")) == 1


async def test_an_exchange_that_forgets_to_answer_is_a_fault() -> None:
    async with running_edge() as edge:

        async def forget(exchange: Exchange, body: RequestBody) -> None:
            await body.read(100)

        edge.handler = forget
        assert (await edge.ask(post("/v1/embeddings", b"{}"))).error["code"] == "internal_error"
        assert len(edge.captured.events("request failed")) == 1


async def test_a_refusal_that_a_pipeline_lets_out_is_answered() -> None:
    async with running_edge() as edge:

        async def refuse(exchange: Exchange, body: RequestBody) -> None:
            raise Refused(402, "budget_exceeded", "spent", headers=(("x-should-retry", "false"),))

        edge.handler = refuse
        answer = await edge.ask(post("/v1/embeddings", b"{}"))
        assert (answer.status, answer.headers["x-should-retry"]) == (402, "false")
        assert answer.error["code"] == "budget_exceeded"


async def test_each_request_of_a_connection_is_judged_by_its_own_headers() -> None:
    other = b"Authorization: Bearer sk-unknown\r\n"
    async with running_edge() as edge, await edge.connect() as client:
        for headers, status in ((AUTH, 200), (AUTH, 200), (other, 401), (AUTH, 200), (b"", 401)):
            await client.send(post("/v1/embeddings", b"{}", headers))
            assert (await client.answer()).status == status
        await client.send(post("/v1/embeddings", b"{}", AUTH + b"X-Own: 1\r\n"))
        assert b'"1"' in (await client.answer()).body


async def test_draining_answers_close_and_new_connections_are_served() -> None:
    async with running_edge() as edge:
        async with await edge.connect() as client:
            await client.send(post("/v1/embeddings", b"{}"))
            assert "connection" not in (await client.answer()).headers
            edge.server.draining = True
            await client.send(post("/v1/embeddings", b"{}"))
            assert (await client.answer()).headers["connection"] == "close"
            assert await client.rest() == b""
        assert (await edge.ask(get("/livez"))).headers["connection"] == "close"


async def test_finishing_closes_the_idle_waits_for_the_busy_and_cuts_the_late() -> None:
    async with running_edge() as edge:
        release = asyncio.Event()
        cancelled = 0

        async def wait(exchange: Exchange, body: RequestBody) -> None:
            nonlocal cancelled
            try:
                if (await body.read(100)) == b"slow":
                    await asyncio.sleep(60)
                await release.wait()
            except asyncio.CancelledError:
                cancelled += 1
                raise
            exchange.downstream.send_whole(200, JSON, b"{}")

        edge.handler = wait
        idle, quick, slow = [await edge.connect() for _ in range(3)]
        await quick.send(post("/v1/embeddings", b"quick"))
        await slow.send(post("/v1/embeddings", b"slow"))
        await eventually(lambda: edge.server.inflight == 2)
        finishing = asyncio.create_task(edge.server.finish(0.3))
        assert await idle.rest() == b""
        release.set()
        answer = await quick.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await finishing == 1
        assert await slow.rest() == b""
        assert cancelled == 1
        assert edge.server.inflight == 0
        for client in (idle, quick, slow):
            client.raw.close()


async def test_a_body_that_is_under_way_is_still_read_while_finishing() -> None:
    async with running_edge() as edge, await edge.connect() as client, await edge.connect() as beginning:
        request = post("/v1/embeddings", b"x" * 200_000)
        await client.send(request[:100_000])
        await beginning.send(request[:50])
        await eventually(lambda: edge.server.inflight == 1)
        finishing = asyncio.create_task(edge.server.finish(5))
        await asyncio.sleep(0.02)
        await beginning.send(request[50:])
        await asyncio.sleep(0.02)
        await client.send(request[100_000:])
        for each in (client, beginning):
            answer = await each.answer()
            assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await finishing == 0


async def test_what_is_cut_is_settled_when_finishing_returns() -> None:
    settled: list[str] = []

    async def wait(exchange: Exchange, body: RequestBody) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            settled.append(exchange.request_id)

    async with running_edge() as edge, await edge.connect() as client:
        edge.handler = wait
        await client.send(post("/v1/embeddings", b"{}"))
        await eventually(lambda: edge.server.inflight == 1)
        assert await edge.server.finish(0) == 1
        assert len(settled) == 1


async def test_finishing_returns_as_soon_as_all_is_done() -> None:
    async with running_edge() as edge:
        assert await edge.server.finish(60) == 0


async def test_what_the_edge_answers_itself_is_counted_and_logged_once() -> None:
    async with running_edge() as edge:
        await edge.ask(get("/nowhere?secret=1", b""))
        await edge.ask(get("/v1/embeddings", b""))
        await edge.ask(get("/v1/models"))
        await edge.ask(get("/v1/models", b""))
        await edge.ask(get("/livez"))
        await edge.ask(b"nonsense\r\n\r\n")
        assert [(r.endpoint, r.status, r.code) for r in edge.access_records()] == [
            ("other", 404, "unknown_url"),
            ("/embeddings", 405, "method_not_allowed"),
            ("/models", 200, None),
            ("other", 401, "invalid_api_key"),
            ("other", 400, "malformed_request"),
        ]
        assert edge.metrics.rejections == {
            "unknown_url": 1,
            "method_not_allowed": 1,
            "invalid_api_key": 1,
            "malformed_request": 1,
        }


async def test_a_key_never_comes_back_in_an_answer_or_a_log(edge: Edge) -> None:
    secret = KEY.encode()
    requests = [
        get("/nowhere"),
        get("/v1/models/" + "x"),
        b"GET /nowhere HTTP/1.1\r\nHost: x\r\nbroken " + AUTH + b"\r\n",
        AUTH + b"\r\n",
        b"GET / HTTP/1.1\r\n" + AUTH * 3000 + b"\r\n",
        b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n" + AUTH + b"\r\nzz\r\n",
        post("/v1/embeddings", b"{}", AUTH + b"Content-Encoding: " + secret + b"\r\n"),
        post("/v1/embeddings", b"{}", b"Authorization: Basic " + secret + b"\r\n"),
        post("/v1/embeddings", b"{}", AUTH + b"X-Request-ID: Bearer " + secret + b"\r\n"),
        b"BEARER " + secret + b"\r\n\r\n",
    ]
    edge.handler = _say_nothing
    for request in requests:
        answer = await edge.ask(request)
        assert KEY not in repr(answer)
    assert secret.decode() not in repr((edge.captured.entries, edge.access_records()))


async def _say_nothing(exchange: Exchange, body: RequestBody) -> None:
    authenticate(exchange.view, exchange.headers, exchange.accepted_unix)
    await body.read(100)
    exchange.downstream.send_whole(200, JSON, b"{}")


@pytest.fixture
async def edge() -> AsyncIterator[Edge]:
    async with running_edge() as running:
        yield running


async def test_whoever_only_connects_makes_room_for_those_who_ask() -> None:
    async with (
        running_edge(EdgeSettings(max_inflight=9, max_connections=3)) as edge,
        AsyncExitStack() as open_,
    ):
        asking = await open_.enter_async_context(await edge.connect())
        await asking.send(post("/v1/embeddings", b"{}"))
        assert (await asking.answer()).status == 200
        strangers = [await open_.enter_async_context(await edge.connect()) for _ in range(6)]
        for stranger in strangers[:4]:
            assert await stranger.rest() == b""
        await asking.send(post("/v1/embeddings", b"{}"))
        assert (await asking.answer()).status == 200
        await strangers[5].send(post("/v1/embeddings", b"{}"))
        assert (await strangers[5].answer()).status == 200
        assert len(edge.server.connections) == 3
        assert [entry["most"] for entry in edge.captured.events("too many client connections")] == [3]


async def test_no_request_is_cut_to_make_room() -> None:
    async with (
        running_edge(EdgeSettings(max_inflight=9, max_connections=2)) as edge,
        AsyncExitStack() as open_,
    ):
        release = asyncio.Event()

        async def wait(exchange: Exchange, body: RequestBody) -> None:
            await body.read(100)
            await release.wait()
            exchange.downstream.send_whole(200, JSON, b"{}")

        edge.handler = wait
        busy = [await open_.enter_async_context(await edge.connect()) for _ in range(2)]
        await busy[0].send(post("/v1/embeddings", b"{}"))
        await busy[1].send(post("/v1/embeddings", b"{}")[:20])
        await eventually(lambda: not any(connection.idle for connection in edge.server.connections))
        refused = await open_.enter_async_context(await edge.connect())
        assert await refused.rest() == b""
        release.set()
        await busy[1].send(post("/v1/embeddings", b"{}")[20:])
        assert [(await client.answer()).status for client in busy] == [200, 200]


async def test_among_those_who_asked_an_idle_one_makes_room() -> None:
    async with (
        running_edge(EdgeSettings(max_inflight=9, max_connections=2)) as edge,
        AsyncExitStack() as open_,
    ):
        clients = []
        for _ in range(3):
            clients.append(await open_.enter_async_context(await edge.connect()))
            await clients[-1].send(post("/v1/embeddings", b"{}"))
            assert (await clients[-1].answer()).status == 200
        assert await clients[0].rest() == b""
        for client in clients[1:]:
            await client.send(post("/v1/embeddings", b"{}"))
            assert (await client.answer()).status == 200
