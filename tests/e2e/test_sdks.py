"""The SDKs that people call the gateway with: what they ask for is what they get."""

from __future__ import annotations

import asyncio

import anthropic
import openai
import pytest
from anthropic.types import MessageParam, ToolParam
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import Gateway

CHAT = "/chat/completions"
SAID = "Hello from the fake engine."
PROMPT: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
ASKED: list[MessageParam] = [{"role": "user", "content": "hi"}]
WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
WEATHER_TOOL: ToolParam = {
    "name": "weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def never_saw_the_key(engine: FakeEngine, gateway: Gateway) -> bool:
    return not any(gateway.api_key.encode() in one.head + one.body for one in engine.requests)


async def test_chat(client: openai.AsyncOpenAI, model: str, engine: FakeEngine, gateway: Gateway) -> None:
    answer = await client.chat.completions.create(model=model, messages=PROMPT, temperature=0)
    assert answer.choices[0].message.content == SAID
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 13
    seen = await engine.arrived(1)
    assert engine.hits(CHAT) == 1
    sent = next(one for one in engine.requests if one.route == CHAT)
    assert sent.json() == {"model": "fake-model", "messages": PROMPT, "temperature": 0}
    assert sent.header("authorization") == "Bearer sk-of-the-engine"
    assert seen is not None
    assert never_saw_the_key(engine, gateway)


async def test_chat_streamed(client: openai.AsyncOpenAI, model: str, engine: FakeEngine) -> None:
    stream = await client.chat.completions.create(model=model, messages=PROMPT, stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == SAID
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert all(chunk.usage is None for chunk in chunks)
    sent = next(one for one in engine.requests if one.route == CHAT)
    assert sent.json()["stream_options"] == {"include_usage": True}


async def test_chat_streamed_with_the_usage_that_was_asked_for(
    client: openai.AsyncOpenAI, model: str
) -> None:
    stream = await client.chat.completions.create(
        model=model, messages=PROMPT, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert [chunk.choices for chunk in chunks if chunk.usage is not None] == [[]]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 6


async def test_tools(client: openai.AsyncOpenAI, model: str, engine: FakeEngine) -> None:
    answer = await client.chat.completions.create(
        model=model, messages=PROMPT, tools=[WEATHER], tool_choice="auto"
    )
    assert answer.choices[0].finish_reason == "tool_calls"
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].type == "function"
    assert (calls[0].function.name, calls[0].function.arguments) == ("weather", '{"city":"Rome"}')
    sent = next(one for one in engine.requests if one.route == CHAT)
    assert sent.json()["tools"] == [WEATHER]


async def test_tools_streamed(client: openai.AsyncOpenAI, model: str) -> None:
    async with client.chat.completions.stream(model=model, messages=PROMPT, tools=[WEATHER]) as stream:
        answer = await stream.get_final_completion()
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].function.name == "weather"
    assert calls[0].function.arguments == '{"city":"Rome"}'


async def test_text_completions(client: openai.AsyncOpenAI, model: str) -> None:
    answer = await client.completions.create(model=model, prompt="hi")
    assert answer.choices[0].text == SAID
    stream = await client.completions.create(model=model, prompt="hi", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == SAID


@pytest.mark.parametrize("encoding", ["float", "base64", None])
async def test_embeddings(client: openai.AsyncOpenAI, model: str, encoding: str | None) -> None:
    extra = {} if encoding is None else {"encoding_format": encoding}
    answer = await client.embeddings.create(model=model, input=["one", "two"], extra_body=extra)
    assert len(answer.data) == 2
    if encoding != "base64":
        assert answer.data[1].embedding == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert answer.usage.total_tokens == 6


async def test_models(client: openai.AsyncOpenAI, model: str) -> None:
    listed = [one.id async for one in await client.models.list()]
    assert model in listed
    assert "fake-model" not in listed
    assert not [name for name in listed if name.endswith("-served")]
    assert (await client.models.retrieve(model)).id == model


async def test_with_an_option_per_call(client: openai.AsyncOpenAI, model: str, engine: FakeEngine) -> None:
    answer = await client.chat.completions.with_raw_response.create(
        model=model,
        messages=PROMPT,
        extra_body={"chat_template_kwargs": {"enable_thinking": False}},
        extra_headers={"x-request-id": "mine-1", "x-api-key": "sk-other", "cookie": "a=b"},
        extra_query={"beta": "true"},
    )
    assert answer.headers["x-request-id"] == "mine-1"
    sent = next(one for one in engine.requests if one.route == CHAT)
    assert sent.json()["chat_template_kwargs"] == {"enable_thinking": False}
    assert sent.header("x-request-id") == "mine-1"
    assert sent.header("x-api-key") is None
    assert sent.header("cookie") is None
    assert sent.target.endswith("/v1/chat/completions?beta=true")


async def test_many_at_once_on_one_client(client: openai.AsyncOpenAI, model: str) -> None:
    async def one(stream: bool) -> str:
        if not stream:
            answer = await client.chat.completions.create(model=model, messages=PROMPT)
            return answer.choices[0].message.content or ""
        chunks = await client.chat.completions.create(model=model, messages=PROMPT, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

    assert set(await asyncio.gather(*(one(bool(number % 2)) for number in range(40)))) == {SAID}


# Anthropic's SDK.


async def test_messages(
    claude: anthropic.AsyncAnthropic, model: str, engine: FakeEngine, gateway: Gateway
) -> None:
    answer = await claude.messages.create(model=model, max_tokens=64, messages=ASKED, system="be brief")
    assert answer.content[0].type == "text"
    assert answer.content[0].text == SAID
    assert answer.stop_reason == "end_turn"
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (7, 6)
    sent = next(one for one in engine.requests if one.route == "/messages")
    assert sent.json()["model"] == "fake-model"
    assert sent.header("anthropic-version") == claude.default_headers["anthropic-version"]
    assert never_saw_the_key(engine, gateway)


async def test_messages_streamed(claude: anthropic.AsyncAnthropic, model: str) -> None:
    async with claude.messages.stream(model=model, max_tokens=64, messages=ASKED) as stream:
        said = [text async for text in stream.text_stream]
        answer = await stream.get_final_message()
    assert "".join(said) == SAID
    assert len(said) == 6
    assert answer.usage.output_tokens == 6


async def test_messages_with_tools(claude: anthropic.AsyncAnthropic, model: str) -> None:
    whole = await claude.messages.create(model=model, max_tokens=64, messages=ASKED, tools=[WEATHER_TOOL])
    async with claude.messages.stream(
        model=model, max_tokens=64, messages=ASKED, tools=[WEATHER_TOOL]
    ) as stream:
        streamed = await stream.get_final_message()
    for reason, block in ((whole.stop_reason, whole.content[0]), (streamed.stop_reason, streamed.content[0])):
        assert reason == "tool_use"
        assert block.type == "tool_use"
        assert (block.name, block.input) == ("weather", {"city": "Rome"})


async def test_a_bearer_token_serves_as_well(gateway: Gateway, model: str) -> None:
    async with anthropic.AsyncAnthropic(
        base_url=gateway.proxy_url, api_key=None, auth_token=gateway.api_key, max_retries=0
    ) as claude:
        answer = await claude.messages.create(model=model, max_tokens=64, messages=ASKED)
    assert answer.stop_reason == "end_turn"
