from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from fastllm_proxy.local import BackendHealth, EjectionDetail, Health
from fastllm_shared.health import LoopView
from tests.fakes.edge import (
    EXPIRED_KEY,
    KEY,
    NARROW_KEY,
    PROXY_TOKEN,
    Edge,
    get,
    running_edge,
)

ASSISTANT = {
    "id": "assistant",
    "object": "model",
    "created": 1_700_000_001,
    "owned_by": "fastllm",
    "max_model_len": 32_768,
    "context_length": 32_768,
}
ORG_MODEL = {
    "id": "org/model",
    "object": "model",
    "created": 1_700_000_002,
    "owned_by": "fastllm",
    "max_model_len": None,
    "context_length": None,
}


@pytest.fixture
async def edge() -> AsyncIterator[Edge]:
    async with running_edge() as running:
        yield running


def bearer(key: str) -> bytes:
    return f"Authorization: Bearer {key}\r\n".encode()


@pytest.mark.parametrize("path", ["/v1/models", "/models", "/v1/models/", "/models/", "/v1/models?limit=1"])
async def test_models_are_what_the_key_can_name(edge: Edge, path: str) -> None:
    answer = await edge.ask(get(path, bearer(KEY)))
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {"object": "list", "data": [ASSISTANT, ORG_MODEL]}
    answer = await edge.ask(get(path, bearer(NARROW_KEY)))
    assert answer.json() == {"object": "list", "data": [ORG_MODEL]}


@pytest.mark.parametrize("key", ["sk-unknown", EXPIRED_KEY, PROXY_TOKEN])
@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/assistant"])
async def test_models_want_a_valid_key(edge: Edge, key: str, path: str) -> None:
    answer = await edge.ask(get(path, bearer(key)))
    assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "path",
    ["/v1/models/org/model", "/v1/models/org%2Fmodel", "/models/org%2fmodel", "/v1/models/%6Frg/model?x=1"],
)
async def test_one_model_by_its_plain_or_encoded_name(edge: Edge, path: str) -> None:
    answer = await edge.ask(get(path, bearer(NARROW_KEY)))
    assert answer.json() == ORG_MODEL


@pytest.mark.parametrize(
    "name", ["assistant", "qwen", "nothing", "org", "org/model/", "org%252Fmodel", "../models", "%00", "%ff"]
)
async def test_a_model_that_the_key_cannot_name_does_not_exist(edge: Edge, name: str) -> None:
    answer = await edge.ask(get(f"/v1/models/{name}", bearer(NARROW_KEY)))
    assert answer.status == 404
    assert answer.error["code"] == "model_not_found"
    assert answer.error["param"] == "model"


@pytest.mark.parametrize("path", ["/livez", "/livez/", "/readyz", "/readyz/"])
async def test_life_and_readiness_tell_no_detail(edge: Edge, path: str) -> None:
    answer = await edge.ask(get(path, b""))
    assert (answer.status, answer.body) == (200, b'{"status":"ok"}')
    edge.status.ready = False
    answer = await edge.ask(get(path, b""))
    if path.startswith("/livez"):
        assert answer.status == 200
    else:
        assert (answer.status, answer.body) == (503, b'{"status":"not_ready"}')
        assert int(answer.headers["retry-after"]) > 0


async def test_health_fails_only_when_not_ready(edge: Edge) -> None:
    answer = await edge.ask(get("/health", b""))
    assert answer.status == 200
    assert answer.json() == {
        "status": "ok",
        "snapshot_version": 7,
        "snapshot_age_seconds": 1.5,
        "keys": 3,
        "backends": [],
        "loops": {},
    }
    edge.status.ready = False
    answer = await edge.ask(get("/health", b""))
    assert (answer.status, answer.json()["status"]) == (503, "not_ready")  # type: ignore[index]


@pytest.mark.parametrize(
    ("header", "detail"),
    [
        (b"", False),
        (bearer(KEY), False),
        (bearer(PROXY_TOKEN), True),
        (bearer("the-older-token"), True),
        (f"x-api-key: {PROXY_TOKEN}\r\n".encode(), True),
        (bearer(PROXY_TOKEN + "x"), False),
        (bearer(PROXY_TOKEN[:-1]), False),
        (b"Authorization: Bearer \r\n", False),
        (b"Authorization: Bearer \xff\r\n", False),
    ],
)
async def test_only_the_proxy_token_sees_the_detail(edge: Edge, header: bytes, detail: bool) -> None:
    assert (await edge.ask(get("/health", header))).status == 200
    assert edge.status.asked_for_detail == [detail]


def test_the_wire_form_of_a_backends_health() -> None:
    plain = BackendHealth("b1", "qwen", False, 2, EjectionDetail("probe", None))
    full = BackendHealth(
        "b1", "qwen", False, 2, EjectionDetail("traffic", 5.0, reason="timeout"), provider="gpu-1"
    )
    health = Health("degraded", 1, None, 0, (plain, full), {"probe": LoopView(1.0, 10.0)})
    assert msgspec.json.decode(msgspec.json.encode(health))["backends"] == [
        {
            "backend_id": "b1",
            "model": "qwen",
            "healthy": False,
            "inflight": 2,
            "ejected": {"path": "probe", "until": None},
        },
        {
            "backend_id": "b1",
            "model": "qwen",
            "healthy": False,
            "inflight": 2,
            "ejected": {"path": "traffic", "until": 5.0, "reason": "timeout"},
            "provider": "gpu-1",
        },
    ]


async def test_metrics(edge: Edge) -> None:
    answer = await edge.ask(get("/metrics", b""))
    assert answer.body == b"fastllm_up 1\n"
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
