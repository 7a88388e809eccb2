"""Which operation a request means, and the steps that all of them go through: over a real socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import msgspec
import pytest
from starlette.responses import PlainTextResponse, Response

from fastllm_control.api.meta import ROUTES as META
from fastllm_control.dispatch import OperationRoutes
from fastllm_control.errors import Conflict, TooMany
from fastllm_control.operations import VERSION_HEADER, Call, Operation
from tests.fakes.control_plane import ControlPlane
from tests.fakes.edge import eventually


class Echo(msgspec.Struct):
    route: str
    id: str | None = None
    body: str | None = None


class Body(msgspec.Struct, forbid_unknown_fields=True):
    text: str


def echo(route: str) -> Operation:
    async def handler(call: Call) -> Echo:
        body = call.body.text if call.body is not None else None
        return Echo(route, call.path.get("id"), body)

    method, path = route.split(" ")
    kind = Body if method == "POST" else None
    return Operation(
        method="POST" if method == "POST" else "GET",
        path=path,
        requires="public",
        summary=route,
        handler=handler,
        body=kind,
        result=Echo,
        max_body_bytes=1000,
    )


def failing(path: str, error: Exception) -> Operation:
    async def handler(call: Call) -> None:
        raise error

    return Operation(
        method="GET", path=path, requires="public", summary=path, handler=handler, transaction=False
    )


async def write_then_fail(call: Call) -> None:
    call.tx.audit("test.write", "test")
    call.tx.content_changed()
    raise Conflict("no", "after the write")


async def write(call: Call) -> None:
    call.tx.audit("test.write", "test")
    call.tx.content_changed()


async def plain(call: Call) -> Response:
    call.response_headers["x-extra"] = "1"
    return PlainTextResponse("as it is", 418)


def write_operation(path: str, handler: object) -> Operation:
    return Operation(method="POST", path=path, requires="public", summary=path, handler=handler)  # type: ignore[arg-type]


OPERATIONS = (
    *META,
    echo("GET /things"),
    echo("POST /things"),
    echo("GET /things/{id}"),
    echo("GET /things/{id}/parts"),
    echo("GET /things/register"),
    failing("/defect", ZeroDivisionError("secret detail")),
    failing("/refused", ConnectionRefusedError("nobody listens")),
    failing("/slow", TimeoutError()),
    failing("/many", TooMany("slow_down", "wait", 7)),
    write_operation("/write", write),
    write_operation("/write-then-fail", write_then_fail),
    Operation(method="GET", path="/plain", requires="public", summary="plain", handler=plain),
)


@pytest.fixture
async def routes(database_url: str) -> AsyncIterator[ControlPlane]:
    async with ControlPlane.start(database_url, operations=OPERATIONS) as plane:
        yield plane


async def test_paths_are_matched_as_they_were_sent(routes: ControlPlane) -> None:
    for path, route, identity in (
        ("/things", "GET /things", None),
        ("/things/a", "GET /things/{id}", "a"),
        ("/things/a/b", "GET /things/{id}", "a/b"),
        ("/things/a%2Fb", "GET /things/{id}", "a/b"),
        ("/things/register", "GET /things/register", None),
        ("/things/regist%65r", "GET /things/{id}", "register"),
        ("/things/a/parts", "GET /things/{id}/parts", "a"),
        ("/things/a/b/parts", "GET /things/{id}/parts", "a/b"),
        ("/things/a%2Fparts", "GET /things/{id}", "a/parts"),
        ("/things/%E2%82%AC%20%3F", "GET /things/{id}", "€ ?"),
        ("/things/..", "GET /things/{id}", ".."),
        ("/things/a+b", "GET /things/{id}", "a+b"),
    ):
        answer = await routes.call("GET", path, token=None)
        assert answer.status == 200, (path, answer.body)
        assert (answer.json["route"], answer.json["id"]) == (route, identity), path


async def test_what_is_nowhere(routes: ControlPlane) -> None:
    for path in ("/", "/thing", "/things/", "/thingsx", "//things", "/admin", "/things/" + "x" * 9000):
        answer = await routes.call("GET", path, token=None)
        assert (answer.status, answer.error["code"]) == (404, "not_found"), path


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions",
        "/chat/completions",
        "/v1/models",
        "/v1",
        "/v1/messages",
        "/embeddings",
        "/models/x",
    ],
)
async def test_llm_clients_are_sent_to_the_proxy(routes: ControlPlane, path: str) -> None:
    answer = await routes.call("POST", path, {"model": "x"}, token="sk-any")
    assert (answer.status, answer.error["code"]) == (404, "wrong_port")
    assert "proxy's port" in answer.error["message"]


async def test_other_methods(routes: ControlPlane) -> None:
    answer = await routes.call("DELETE", "/things", token=None)
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD, POST")
    head = await routes.call("HEAD", "/things/a", token=None)
    assert (head.status, head.body) == (200, b"")
    assert int(head.headers["content-length"]) > 0


async def test_a_defect_is_logged_and_not_told(routes: ControlPlane) -> None:
    answer = await routes.call("GET", "/defect", token=None, headers={"x-request-id": "find-me"})
    assert (answer.status, answer.error["code"], answer.error["request_id"]) == (
        500,
        "internal_error",
        "find-me",
    )
    assert b"secret detail" not in answer.body
    (entry,) = routes.log.events("request failed")
    assert entry["request_id"] == "find-me"
    assert "secret detail" in str(entry["exc_info"])


@pytest.mark.parametrize("path", ["/refused", "/slow"])
async def test_a_database_that_is_away_is_503(routes: ControlPlane, path: str) -> None:
    answer = await routes.call("GET", path, token=None)
    assert (answer.status, answer.error["code"]) == (503, "database_unavailable")
    assert routes.log.events("database away")
    assert not routes.log.events("request failed")


async def test_retry_after(routes: ControlPlane) -> None:
    answer = await routes.call("GET", "/many", token=None)
    assert (answer.status, answer.headers["retry-after"]) == (429, "7")


async def test_a_write_tells_its_version_and_a_refused_one_leaves_nothing(routes: ControlPlane) -> None:
    done = await routes.call("POST", "/write", token=None)
    assert done.status == 200
    assert done.version is not None
    failed = await routes.call("POST", "/write-then-fail", token=None)
    assert (failed.status, failed.version) == (409, None)
    async with routes.services.database.engine.connect() as connection:
        count = await connection.exec_driver_sql(
            "SELECT count(*) FROM audit_events WHERE action = 'test.write'"
        )
        version = await connection.exec_driver_sql("SELECT version FROM config")
        assert (count.scalar(), version.scalar()) == (1, done.version)


async def test_an_answer_of_ones_own(routes: ControlPlane) -> None:
    answer = await routes.call("GET", "/plain", token=None)
    assert (answer.status, answer.body, answer.headers["x-extra"]) == (418, b"as it is", "1")
    assert VERSION_HEADER not in answer.headers


async def test_bodies_in_pieces_are_limited_as_well(routes: ControlPlane) -> None:
    answer = await routes.call("POST", "/things", {"text": "x" * 900}, token=None)
    assert (answer.status, answer.json["body"]) == (200, "x" * 900)
    host, port = urlsplit(routes.url).hostname, urlsplit(routes.url).port
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"POST /things HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(40):
        writer.write(b"64\r\n" + b" " * 100 + b"\r\n")
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.split(b" ")[1] == b"413"
    writer.close()
    await writer.wait_closed()


async def test_a_client_that_goes_while_sending_is_no_defect(routes: ControlPlane) -> None:
    host, port = urlsplit(routes.url).hostname or "", urlsplit(routes.url).port or 0
    with socket.create_connection((host, port)) as connection:
        connection.sendall(b"POST /things HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n\r\n{")
    await eventually(lambda: 499 in [entry["status"] for entry in routes.log.events("request")])
    assert not routes.log.events("request failed")


def test_two_operations_of_one_route_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="GET /things"):
        OperationRoutes([echo("GET /things"), echo("GET /things")], None)  # type: ignore[arg-type]


async def test_a_member_given_twice_is_refused(routes: ControlPlane) -> None:
    answer = await routes.call("POST", "/things", token=None, raw=b'{"text":"a","text":"b"}')
    assert (answer.status, answer.error["code"], answer.error["field"]) == (400, "repeated_field", "text")


async def test_bodies_that_say_they_are_something_else_are_refused(routes: ControlPlane) -> None:
    for headers, code in (
        ({"content-type": "application/yaml"}, "unsupported_content_type"),
        ({"content-encoding": "gzip"}, "unsupported_encoding"),
    ):
        answer = await routes.call("POST", "/things", token=None, raw=b'{"text":"a"}', headers=headers)
        assert (answer.status, answer.error["code"]) == (400, code)
    for kind in ("application/x-www-form-urlencoded", "application/json"):
        headers = {"content-type": kind}
        answer = await routes.call("POST", "/things", token=None, raw=b'{"text":"a"}', headers=headers)
        assert answer.status == 200
