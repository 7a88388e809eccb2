"""What goes wrong, as the SDKs show it: each class of error by its status, and death in the middle."""

from __future__ import annotations

import asyncio

import anthropic
import openai
import pytest
from anthropic.types import MessageParam
from openai.types.chat import ChatCompletionMessageParam

from tests.fakes.engine import Answer, FakeEngine, Fault
from tests.fakes.gateway import Gateway

CHAT = "/chat/completions"
SAID = "Hello from the fake engine."
PROMPT: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
ASKED: list[MessageParam] = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, openai.BadRequestError),
        (409, openai.ConflictError),
        (413, openai.APIStatusError),
        (422, openai.UnprocessableEntityError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
        (503, openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_engines_own_refusals_pass(
    client: openai.AsyncOpenAI,
    model: str,
    engine: FakeEngine,
    status: int,
    kind: type[openai.APIStatusError],
    stream: bool,
) -> None:
    headers = (("retry-after", "7"),) if status == 429 else ()
    engine.script(CHAT, Answer(status=status, headers=headers))
    with pytest.raises(kind) as caught:
        await client.chat.completions.create(model=model, messages=PROMPT, stream=stream)
    assert caught.value.status_code == status
    assert caught.value.type == "scripted_error"
    assert f"scripted {status}" in caught.value.message
    assert caught.value.request_id
    if status == 429:
        assert caught.value.response.headers["retry-after"] == "7"


async def test_the_sdk_tries_a_429_again(gateway: Gateway, model: str, engine: FakeEngine) -> None:
    engine.script(CHAT, Answer(status=429, headers=(("retry-after-ms", "10"),)), Answer())
    async with openai.AsyncOpenAI(
        base_url=f"{gateway.proxy_url}/v1", api_key=gateway.api_key, max_retries=2
    ) as client:
        answer = await client.chat.completions.create(model=model, messages=PROMPT)
    assert answer.choices[0].message.content == SAID
    assert engine.hits(CHAT) == 2


# What the gateway refuses.


async def test_a_key_that_is_none(gateway: Gateway, model: str) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"{gateway.proxy_url}/v1", api_key="sk-wrong", max_retries=0
    ) as stranger:
        with pytest.raises(openai.AuthenticationError) as caught:
            await stranger.chat.completions.create(model=model, messages=PROMPT)
        assert caught.value.code == "invalid_api_key"
        with pytest.raises(openai.AuthenticationError):
            await stranger.models.list()


async def test_a_model_that_is_not_granted(gateway: Gateway, model: str) -> None:
    async with gateway.admin() as api:
        principal = await api.call("POST", "/admin/principals", {"name": "nobody-in-particular"})
        key = await api.call("POST", "/admin/keys", {"principal_id": principal["id"], "name": "k"})
    await gateway.until_served(api.version)
    async with openai.AsyncOpenAI(
        base_url=f"{gateway.proxy_url}/v1", api_key=key["key"], max_retries=0
    ) as client:
        with pytest.raises(openai.PermissionDeniedError) as caught:
            await client.chat.completions.create(model=model, messages=PROMPT)
        assert caught.value.code == "model_access_denied"
        assert [one async for one in await client.models.list()] == []
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve(model)


async def test_names_that_are_none(client: openai.AsyncOpenAI, model: str) -> None:
    for name in ("no-such-model", "fake-model", f"{model}-served"):
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(model=name, messages=PROMPT)
        assert caught.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError) as caught:
        await client.files.list()
    assert caught.value.code == "unknown_url"


async def test_requests_that_are_none(client: openai.AsyncOpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model=model, messages=PROMPT, extra_body={"model": None})
    assert (caught.value.code, caught.value.param) == ("missing_required_parameter", "model")
    with pytest.raises(openai.BadRequestError) as caught:
        await client.post("/chat/completions", body=[1, 2], cast_to=object)
    assert caught.value.code == "invalid_json"


async def test_a_model_that_nothing_serves(gateway: Gateway, client: openai.AsyncOpenAI) -> None:
    async with gateway.admin() as api:
        await api.call(
            "POST", "/admin/frontend-models", {"name": "hollow", "targets": [{"target": "not-there-yet"}]}
        )
    await gateway.until_served(api.version)
    with pytest.raises(openai.InternalServerError) as caught:
        await client.chat.completions.create(model="hollow", messages=PROMPT)
    assert (caught.value.status_code, caught.value.code) == (503, "no_backend")


async def test_an_engine_that_cannot_be_reached(
    client: openai.AsyncOpenAI, model: str, engine: FakeEngine
) -> None:
    engine.accepting = "reset"
    for connection in engine.connections:
        connection.break_off("close")
    with pytest.raises(openai.InternalServerError) as caught:
        await client.chat.completions.create(model=model, messages=PROMPT)
    assert (caught.value.status_code, caught.value.code) == (502, "upstream_unavailable")
    assert f"no healthy backend for {model}" in caught.value.message


async def test_an_engine_that_rejects_the_gateways_credential(
    client: openai.AsyncOpenAI, model: str, engine: FakeEngine
) -> None:
    engine.api_key = "sk-another"
    with pytest.raises(openai.InternalServerError) as caught:
        await client.chat.completions.create(model=model, messages=PROMPT)
    assert (caught.value.status_code, caught.value.code) == (502, "upstream_rejected")
    assert "Incorrect API key" not in caught.value.message


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_says_nothing(
    gateway: Gateway, client: openai.AsyncOpenAI, model: str, engine: FakeEngine, stream: bool
) -> None:
    async with gateway.admin() as api:
        served = await api.call("GET", f"/admin/provider-models/{model}-served", None)
        patience = {"upstream_timeout_seconds": 1, "response_timeout_seconds": 1}
        await api.call("PATCH", f"/admin/backends/{served['backends'][0]['id']}", patience)
    await gateway.until_served(api.version)
    engine.script(CHAT, Answer(fault=Fault("stall")))
    with pytest.raises(openai.InternalServerError) as caught:
        await client.chat.completions.create(model=model, messages=PROMPT, stream=stream)
    assert (caught.value.status_code, caught.value.code) == (504, "upstream_timeout")
    assert caught.value.response.headers["x-should-retry"] == "false"
    stalled = next(one for one in engine.requests if one.route == CHAT)
    await asyncio.wait_for(stalled.settled.wait(), 1)
    assert stalled.aborted_at is not None


# Death in the middle.


@pytest.mark.parametrize("kind", ["close", "reset"])
@pytest.mark.parametrize("split", [False, True])
async def test_an_engine_that_dies_in_a_stream_is_an_error(
    client: openai.AsyncOpenAI, model: str, engine: FakeEngine, kind: str, split: bool
) -> None:
    fault = Fault(kind, at="mid_body", after=4, split=split)  # type: ignore[arg-type]
    engine.script(CHAT, Answer(fault=fault, gap=0.02))
    stream = await client.chat.completions.create(model=model, messages=PROMPT, stream=True)
    said: list[str] = []

    async def listen() -> None:
        async for chunk in stream:
            said.append(chunk.choices[0].delta.content or "")  # noqa: PERF401 - it ends by an error

    with pytest.raises(openai.APIError) as caught:
        await listen()
    assert caught.value.code == "upstream_disconnected"
    assert "".join(said).startswith("Hello from")


async def test_an_engine_that_dies_in_a_whole_answer_is_an_error(
    client: openai.AsyncOpenAI, model: str, engine: FakeEngine
) -> None:
    engine.script(CHAT, Answer(body=b'{"id":"' + b"x" * 3_000_000, declared_length=9_000_000, close=True))
    with pytest.raises(openai.APIConnectionError):
        await client.chat.completions.create(model=model, messages=PROMPT)


async def test_a_client_that_leaves_a_stream_frees_the_engine(
    client: openai.AsyncOpenAI, model: str, engine: FakeEngine
) -> None:
    engine.script(CHAT, Answer(fault=Fault("stall", at="mid_body", after=3)))
    stream = await client.chat.completions.create(model=model, messages=PROMPT, stream=True)
    await anext(aiter(stream))
    await stream.close()
    left = next(one for one in engine.requests if one.route == CHAT)
    await asyncio.wait_for(left.settled.wait(), 1)
    assert left.aborted_at is not None


# Anthropic's SDK.


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, anthropic.BadRequestError),
        (429, anthropic.RateLimitError),
        (500, anthropic.InternalServerError),
    ],
)
async def test_the_engines_own_refusals_pass_in_anthropics_dialect(
    claude: anthropic.AsyncAnthropic,
    model: str,
    engine: FakeEngine,
    status: int,
    kind: type[anthropic.APIStatusError],
) -> None:
    body = b'{"type":"error","error":{"type":"some_error","message":"said by the engine"}}'
    engine.script("/messages", Answer(status=status, body=body))
    with pytest.raises(kind) as caught:
        await claude.messages.create(model=model, max_tokens=64, messages=ASKED)
    assert caught.value.status_code == status
    assert "said by the engine" in str(caught.value)


async def test_the_gateways_refusals_in_anthropics_shape(
    claude: anthropic.AsyncAnthropic, gateway: Gateway, model: str
) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        await claude.messages.create(model="no-such-model", max_tokens=64, messages=ASKED)
    assert missing.value.body is not None
    assert '"type": "error"' in str(missing.value.response.text).replace('":"', '": "')
    async with anthropic.AsyncAnthropic(
        base_url=gateway.proxy_url, api_key="sk-wrong", max_retries=0
    ) as stranger:
        with pytest.raises(anthropic.AuthenticationError):
            await stranger.messages.create(model=model, max_tokens=64, messages=ASKED)


@pytest.mark.parametrize("kind", ["close", "reset"])
async def test_an_engine_that_dies_in_a_message_is_an_error(
    claude: anthropic.AsyncAnthropic, model: str, engine: FakeEngine, kind: str
) -> None:
    fault = Fault(kind, at="mid_body", after=5)  # type: ignore[arg-type]
    engine.script("/messages", Answer(fault=fault, gap=0.02))
    said: list[str] = []

    async def listen() -> None:
        async with claude.messages.stream(model=model, max_tokens=64, messages=ASKED) as stream:
            async for text in stream.text_stream:
                said.append(text)  # noqa: PERF401 - it ends by an error

    with pytest.raises(anthropic.APIError) as caught:
        await listen()
    assert "broke off" in str(caught.value)
    assert "".join(said).startswith("Hello")
