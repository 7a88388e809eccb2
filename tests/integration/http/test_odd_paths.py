"""Request targets and methods that are none of ours: an exact path or none. What an answer shows of a path is
short and plain, and nothing of a query."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import pytest

from fastllm_shared.snapshot import FrontendModelEntry, PrincipalEntry, TargetEntry
from tests.integration.http.hostile import (
    BODY,
    CHAT,
    HOST,
    UPSTREAM_BODY,
    check_error,
    refused,
    request,
    under_attack,
)
from tests.proxy.rig import MODEL

SAFE: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/._~-%:@+,=*")

UNKNOWN: Final = [
    b"/",
    b"/?canary=1",
    b"//",
    b"/v1",
    b"//v1/chat/completions",
    b"/v1//chat/completions",
    b"/v1/chat/completions//",
    b"//v1/../v1/models",
    b"/v1/../v1/models",
    b"/v1/../v1/chat/completions",
    b"/v1/./models",
    b"/v1/./chat/completions",
    b"/x/../v1/chat/completions",
    b"/v1/chat%2Fcompletions",
    b"/v1%2Fchat%2Fcompletions",
    b"/%76%31/chat/completions",
    b"/v1/%63hat/completions",
    b"/v1/chat/completions%00",
    b"/v1/chat/completions%20",
    b"/v1/chat/completions%3F",
    b"/v1/chat/completions%0d%0aX-Secret:%20a",
    b"/%2576%2531/chat/completions",
    b"/%252e%252e/v1/chat/completions",
    b"/..%2f..%2fetc/passwd",
    b"/%2e%2e/%2e%2e/etc/passwd",
    b"/v1/chat/completions;a=b",
    b"/v1;a=b/chat/completions",
    b"/v1/chat/completions#part",
    b"/v1/chat/completions#part?canary",
    b"/v1\\chat\\completions",
    b"/v1/..\\v1/chat/completions",
    b"/%c0%ae%c0%ae/v1/chat/completions",
    b"/v1%c0%afchat%c0%afcompletions",
    b"/%ff%fe/",
    b"/V1/chat/completions",
    b"/v1/Chat/Completions",
    b"/v1/chat/completions.json",
    b"/v1/chat/completions/..",
    b"/v1/chat/completions/more",
    b"/openai/v1/chat/completions",
    b"/admin/providers",
    b"/.env",
    b'/v1/<script>alert("x")</script>',
    b"/{}|^`'$&()!",
]


@pytest.mark.parametrize("method", [b"POST", b"GET"])
@pytest.mark.parametrize("path", UNKNOWN, ids=lambda path: path.decode())
async def test_any_other_path_is_unknown(tmp_path: Path, path: bytes, method: bytes) -> None:
    async with under_attack(tmp_path) as target, await target.connect() as client:
        await client.send(request(line=method + b" " + path + b" HTTP/1.1\r\n"))
        answer = await client.answer()
        check_error(answer, 404, "unknown_url")
        plain = path if b"#" not in path else path[: path.index(b"#")]
        words = (answer.error["message"] or "").encode()
        assert words.startswith(b"no route for " + method + b" ")
        shown = words.removeprefix(b"no route for " + method + b" ")
        # A fragment is either shown as part of the path or dropped; what is not plain is a question mark.
        spelled = bytes(c if c in SAFE else ord("?") for c in path.partition(b"?")[0])
        assert shown in (spelled, spelled[: len(plain)])
        await client.send(request())  # and the connection is usable
        assert (await client.answer()).status == 200
        target.expected = [UPSTREAM_BODY]


@pytest.mark.parametrize("size", [0, 1, 5_000])
async def test_a_long_path_is_shown_to_200_plain_characters(tmp_path: Path, size: int) -> None:
    path = b'/<"' + b"a" * 197 + b"canary" * size
    async with under_attack(tmp_path) as target, await target.connect() as client:
        await client.send(request(line=b"POST " + path + b" HTTP/1.1\r\n", body=b""))
        answer = await client.answer()
        check_error(answer, 404, "unknown_url")
        assert answer.error["message"] == "no route for POST /??" + "a" * 197


SERVED: Final = {
    b"/v1/chat/completions": b"/v1/chat/completions",
    b"/chat/completions": b"/v1/chat/completions",
    b"/v1/chat/completions/": b"/v1/chat/completions",
    b"/v1/chat/completions?": b"/v1/chat/completions?",
    b"/v1/chat/completions?a=b&a=b&%20=%2f": b"/v1/chat/completions?a=b&a=b&%20=%2f",
    b"/v1/chat/completions?a=b#part": b"/v1/chat/completions?a=b",
    b"/v1/chat/completions??#": b"/v1/chat/completions??",
    b"/v1/chat/completions?/../../v1/models": b"/v1/chat/completions?/../../v1/models",
    b"http://gateway/v1/chat/completions": b"/v1/chat/completions",
    b"http://elsewhere.example:99/v1/chat/completions?x=1": b"/v1/chat/completions?x=1",
    b"HTTPS://user:word@elsewhere.example/v1/chat/completions": b"/v1/chat/completions",
}


@pytest.mark.parametrize("path", SERVED, ids=lambda path: path.decode())
async def test_what_the_engine_is_asked_for_comes_from_the_route_and_the_query_alone(
    tmp_path: Path, path: bytes
) -> None:
    """A host in the target or in `Host` decides nothing."""
    async with under_attack(tmp_path) as target, await target.connect() as client:
        for host in (HOST, b"Host: elsewhere.example\r\n", b"Host: 127.0.0.1:1\r\n"):
            await client.send(request(line=b"POST " + path + b" HTTP/1.1\r\n", host=host))
            assert (await client.answer()).status == 200
            target.expected.append(UPSTREAM_BODY)
        assert {got.target.encode() for got in target.engine.requests} <= {SERVED[path], SERVED[path][:-1]}
        lines = target.gateway.log_text()
        assert "a=b" not in lines
        assert "x=1" not in lines
        assert "elsewhere" not in lines


def _models(*names: str) -> dict[str, Any]:
    """A snapshot with these frontend models, all granted."""
    models = tuple(
        FrontendModelEntry(f"frontend-{n}", name, created_at=0.0, targets=(TargetEntry("qwen"),))
        for n, name in enumerate(names)
    )
    principal = PrincipalEntry("principal-1", "team-a", "service_account", models=names)
    return {"frontend_models": models, "principals": (principal,)}


NAMES: Final = (MODEL, "org/model", "org/model/v2", "a b", "org%2Fmodel", "modèle", "..", "org/../x")

FOUND: Final = {
    b"assistant": MODEL,
    b"org/model": "org/model",
    b"org%2Fmodel": "org/model",
    b"org%2fmodel": "org/model",
    b"%6frg%2Fmodel": "org/model",
    b"org/model%2Fv2": "org/model/v2",
    b"a%20b": "a b",
    b"org%252Fmodel": "org%2Fmodel",
    b"mod%C3%A8le": "modèle",
    b"..": "..",
    b"%2e%2e": "..",
    b"org/../x": "org/../x",
    b"org/model?canary": "org/model",
}


async def test_a_model_is_found_by_its_name_plain_or_encoded_once(tmp_path: Path) -> None:
    async with under_attack(tmp_path, **_models(*NAMES)) as target, await target.connect() as client:
        for prefix in (b"/v1/models/", b"/models/"):
            for path, name in FOUND.items():
                await client.send(request(line=b"GET " + prefix + path + b" HTTP/1.1\r\n", body=None))
                answer = await client.answer()
                assert answer.status == 200, path
                assert json.loads(answer.body)["id"] == name


@pytest.mark.parametrize(
    "path",
    [
        b"canary",
        b"",
        b"/",
        b"org",
        b"org//model",
        b"/org/model",
        b"org\\model",
        b"org%5cmodel",
        b"org%00model",
        b"org/model%00",
        b"mod%E8le",
        b"%ff",
        b"%",
        b"%zz",
        b"..%2fmodels",
        b"..%2f..%2fcanary",
        b"../models",
        b"../../health",
        b"assistant;a=b",
        b"ASSISTANT",
        b"assistant%20",
        b"qwen",
    ],
    ids=lambda path: path.decode(),
)
async def test_a_model_by_any_other_name_is_not_found_and_not_named(tmp_path: Path, path: bytes) -> None:
    models = _models(*(name for name in NAMES if name != ".."))
    async with under_attack(tmp_path, **models) as target, await target.connect() as client:
        await client.send(request(line=b"GET /v1/models/" + path + b" HTTP/1.1\r\n", body=None))
        answer = await client.answer()
        if path == b"":
            assert answer.status == 200  # the list, by its path with a slash
            return
        check_error(answer, 404, "model_not_found")
        for name in ("canary", "qwen", "org/", "assistant"):
            assert name.encode() not in answer.body


METHODS: Final = [b"GET", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"TRACE", b"HEAD", b"PROPFIND", b"PURGE"]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.decode())
async def test_a_wrong_method_is_told_the_right_one_and_nothing_else(tmp_path: Path, method: bytes) -> None:
    """TRACE, above all, repeats nothing of the request."""
    async with under_attack(tmp_path) as target:
        for path, dialect in ((CHAT, "openai"), (b"/v1/messages", "anthropic")):
            async with await target.connect() as client:
                await client.send(request(line=method + b" " + path + b" HTTP/1.1\r\n", body=None))
                answer = await client.answer(head_only=method == b"HEAD")
                assert (answer.status, answer.headers["allow"]) == (405, "POST")
                if method != b"HEAD":
                    check_error(answer, 405, dialect=dialect)
                assert not [name for name in answer.headers if name.startswith("access-control")]
                await client.send(request())
                assert (await client.answer()).status == 200
                target.expected.append(UPSTREAM_BODY)


@pytest.mark.parametrize("method", [b"POST", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"TRACE"])
@pytest.mark.parametrize("path", [b"/v1/models", b"/v1/models/assistant", b"/livez", b"/readyz"])
async def test_what_is_only_to_be_read_takes_no_other_method(
    tmp_path: Path, path: bytes, method: bytes
) -> None:
    async with under_attack(tmp_path) as target, await target.connect() as client:
        await client.send(request(line=method + b" " + path + b" HTTP/1.1\r\n"))
        answer = await client.answer()
        check_error(answer, 405, "method_not_allowed")
        assert answer.headers["allow"] == "GET, HEAD"
        await client.send(request(body=BODY))
        assert (await client.answer()).status == 200
        target.expected = [UPSTREAM_BODY]


async def test_options_for_the_whole_server_is_no_route(tmp_path: Path) -> None:
    async with under_attack(tmp_path) as target:
        last = request(b"Connection: close\r\n", line=b"OPTIONS * HTTP/1.1\r\n", body=None)
        refused(await asyncio.wait_for(target.send(last), 5), 404, "unknown_url")
