"""Every endpoint with bodies as clients write them: what the engine gets is the client's bytes but for the
splices, what the client gets is the engine's bytes, and what is counted is what the engine reported."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fastllm_proxy.endpoints import ENDPOINTS, spellings
from tests.fakes.engine import Answer, FakeEngine
from tests.fakes.forms import Field, audio, encode_form, form_type
from tests.proxy.rig import CREDENTIAL, MODEL, UPSTREAM_MODEL, Answered, Client, Gateway, gateway

OURS, THEIRS = b'"assistant"', b'"fake-model"'
JSON = {"content-type": "application/json"}
FORM = {"content-type": form_type()}

CHAT = """\t{ "messages" : [ {"role":"user","content":"é ☃ \\u0000 \\ud83d\\ude00 \\"model\\":\\"x\\""} ] ,
  "x" : {"model":"assistant","stream":true}, "mod\\u0065l_" : 1e400 ,\r\n "temperature":0.10,
  "model"\t: "assistant" , "chat_template_kwargs":{"enable_thinking": false} , "seed": 1234567890123456 }\n"""

BODIES: dict[str, bytes] = {
    "/chat/completions": CHAT.encode(),
    "/completions": '{"prompt":["a", "β"],\n\n"model":"assistant","logit_bias":{ "50256" : -100 }}'.encode(),
    "/responses": b'{"input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]}], "store":false,'
    b'"reasoning":{"effort":"low"},"previous_response_id":null,"background":false,  "model":"assistant"}',
    "/embeddings": '{ "model":"assistant","input":["één", "twee"],"truncate_prompt_tokens":-1 }'.encode(),
    "/rerank": b'{"query":"q","documents":["a","b",{"text":"c"}],"top_n":2,"model":  "assistant"}',
    "/score": b'{"model":"assistant","text_1":"a","text_2":["b","c"],"activation": true}\r\n',
    "/moderations": b"[]".join((b'{"input":[{"type":"text","text":"x"}],"tags":', b',"model":"assistant"}')),
    "/images/generations": '{"model":"assistant","prompt":"een kat 🐈","n":2,"size":"1024x1024"}'.encode(),
    "/audio/speech": b'{"input":"say \\u00e9","voice":"alloy","model":"assistant","speed":1.0000000000001}',
    "/messages": b'{"max_tokens":64,"system":[{"type":"text","cache_control":{"type":"ephemeral"}}],'
    b'"messages":[{"role":"user","content":"hi"}],"model":"assistant","thinking":{"type":"disabled"}}',
    "/messages/count_tokens": b'{"messages":[{"role":"user","content":"hi"}],  "model":"assistant"}',
}

SOUND = Field("file", audio(40_000), "tälk \r.wav".replace("\r", ""), b"Content-Type: audio/wav\r\n")
PICTURE = Field("image[]", b"\x89PNG\r\n\x1a\n" + audio(90_000), "a.png", b"Content-Type: image/png\r\n")
NAME = Field("model", b"assistant")
FORMS: dict[str, list[Field]] = {
    "/audio/transcriptions": [
        SOUND,
        Field("language", b"nl"),
        Field("timestamp_granularities[]", b"word"),
        NAME,
    ],
    "/audio/translations": [NAME, SOUND, Field("prompt", "naïef\r\n--\r\n".encode())],
    "/images/edits": [
        PICTURE,
        NAME,
        PICTURE,
        Field("mask", audio(2_000_000), "mask.png"),
        Field("prompt", b"cat"),
    ],
}

USAGE: dict[str, tuple[int | None, int | None]] = {
    "/chat/completions": (7, 6),
    "/completions": (7, 6),
    "/responses": (7, 6),
    "/embeddings": (6, 0),
    "/rerank": (27, 0),
    "/score": (12, 0),
    "/moderations": (None, None),
    "/images/generations": (50, 50),
    "/images/edits": (50, 50),
    "/audio/speech": (None, None),
    "/audio/transcriptions": (14, 6),
    "/audio/translations": (None, None),
    "/messages": (7, 6),
    "/messages/count_tokens": (None, None),
}


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine.start(api_key=CREDENTIAL) as running:
        yield running


@pytest.fixture
async def proxy(tmp_path: Path, engine: FakeEngine) -> AsyncIterator[Gateway]:
    async with gateway(tmp_path, engine) as running:
        yield running
        assert running.spools.open_files == 0
        assert running.inflight == 0


def renamed(body: bytes) -> bytes:
    """As the engine is to get it: the last one of these is the top-level member."""
    before, mark, after = body.rpartition(OURS)
    return before + mark.replace(OURS, THEIRS) + after


def renamed_form(fields: list[Field]) -> bytes:
    return encode_form(
        *(Field("model", UPSTREAM_MODEL.encode()) if field is NAME else field for field in fields)
    )


async def ask_engine(engine: FakeEngine, path: str, body: bytes, headers: dict[str, str]) -> Answered:
    """What the engine says to whoever asks it without a gateway."""
    client = Client(*await asyncio.open_connection("127.0.0.1", engine.port, limit=64 * 1024))
    client.send(path, body, {"authorization": f"Bearer {CREDENTIAL}", **headers})
    try:
        return await client.answer()
    finally:
        client.close()


def test_every_endpoint_has_a_body() -> None:
    assert {endpoint.path for endpoint in ENDPOINTS} == BODIES.keys() | FORMS.keys() == USAGE.keys()


@pytest.mark.parametrize("path", BODIES)
async def test_a_body_and_its_answer_pass_byte_for_byte(
    proxy: Gateway, engine: FakeEngine, path: str
) -> None:
    body, sent = BODIES[path], renamed(BODIES[path])
    answer = await proxy.post("/v1" + path, body, JSON)
    assert engine.requests[0].body == sent
    direct = await ask_engine(engine, "/v1" + path, sent, JSON)
    assert (answer.status, answer.body) == (direct.status, direct.body) == (200, direct.body)
    assert answer.headers["content-type"] == direct.headers["content-type"]
    event = await proxy.events.get()
    assert (event.endpoint, event.prompt_tokens, event.completion_tokens) == (path, *USAGE[path])
    assert event.usage_reported is (USAGE[path] != (None, None))


@pytest.mark.parametrize("path", FORMS)
async def test_a_form_and_its_answer_pass_byte_for_byte(
    proxy: Gateway, engine: FakeEngine, path: str
) -> None:
    body, sent = encode_form(*FORMS[path]), renamed_form(FORMS[path])
    answer = await proxy.post("/v1" + path, body, FORM)
    assert engine.requests[0].body == sent
    assert engine.requests[0].header("content-type") == form_type()
    direct = await ask_engine(engine, "/v1" + path, sent, FORM)
    assert (answer.status, answer.body) == (200, direct.body)
    event = await proxy.events.get()
    assert (event.endpoint, event.prompt_tokens, event.completion_tokens) == (path, *USAGE[path])


async def test_every_spelling_of_a_path_is_its_endpoint(proxy: Gateway, engine: FakeEngine) -> None:
    asked = [(path, spelling) for path in USAGE for spelling in spellings(path)]
    for path, spelling in asked:
        body, headers = (BODIES[path], JSON) if path in BODIES else (encode_form(NAME), FORM)
        assert (await proxy.post(spelling + "?beta=true", body, headers)).status == 200
    assert [request.target for request in engine.requests] == [f"/v1{path}?beta=true" for path, _ in asked]


STREAMS: dict[str, tuple[bytes, dict[str, str], tuple[int, int]]] = {
    "/responses": (b'{"input":"hi","stream":true,"model":"assistant"}', JSON, (7, 6)),
    "/audio/transcriptions": (encode_form(SOUND, NAME, Field("stream", b"True")), FORM, (14, 6)),
    "/audio/speech": (
        b'{"input":"hi","stream_format":"sse","stream":true,"model":"assistant"}',
        JSON,
        (4, 9),
    ),
    "/messages": (b'{"max_tokens":9,"messages":[],"stream":true,"model":"assistant"}', JSON, (7, 6)),
}


@pytest.mark.parametrize("path", STREAMS)
async def test_streams_pass_byte_for_byte_and_are_counted(
    proxy: Gateway, engine: FakeEngine, path: str
) -> None:
    body, headers, counted = STREAMS[path]
    answer = await proxy.post("/v1" + path, body, headers)
    sent = engine.requests[0].body
    assert sent == body.replace(b"assistant", UPSTREAM_MODEL.encode())
    direct = await ask_engine(engine, "/v1" + path, sent, headers)
    assert (answer.status, answer.body, answer.whole) == (200, direct.body, True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    event = await proxy.events.get()
    assert event.stream
    assert (event.prompt_tokens, event.completion_tokens) == counted


@pytest.mark.parametrize("stream", [True, False])
async def test_details_of_a_response_are_counted_however_long_it_is(
    proxy: Gateway, engine: FakeEngine, stream: bool
) -> None:
    engine.script("/responses", Answer(words=("word",) * 6_000))
    body = json.dumps({"model": MODEL, "input": "hi", "stream": stream}).encode()
    assert len((await proxy.post("/v1/responses", body, JSON)).body) > 24_000
    event = await proxy.events.get()
    assert (event.prompt_tokens, event.completion_tokens) == (7, 6_000)
    assert (event.cached_tokens, event.reasoning_tokens) == (2, 1)


REPORTS: list[tuple[str, bytes, tuple[int | None, int | None]]] = [
    ("/audio/transcriptions", b'{"text":"a","usage":{"type":"duration","seconds":9}}', (None, None)),
    ("/audio/transcriptions", b'{"text":"a"}', (None, None)),
    ("/rerank", b'{"results":[],"meta":{"billed_units":{"search_units":1}}}', (None, None)),
    ("/rerank", b'{"results":[],"meta":{"tokens":{"input_tokens":31,"output_tokens":0}}}', (31, 0)),
    ("/rerank", b'{"usage":{"total_tokens":31},"results":[],"meta":"x"}', (31, 0)),
    ("/score", b'{"data":[],"usage":{}}', (None, None)),
    ("/moderations", b'{"results":[{"categories":{"usage":true}}]}', (None, None)),
    ("/images/edits", b'{"data":[{"url":"https://x"}]}', (None, None)),
]


@pytest.mark.parametrize(("path", "reply", "counted"), REPORTS)
async def test_what_an_engine_does_not_report_is_unknown_and_never_nothing(
    proxy: Gateway, engine: FakeEngine, path: str, reply: bytes, counted: tuple[int | None, int | None]
) -> None:
    engine.script(path, Answer(body=reply))
    assert (await proxy.post("/v1" + path, b'{"model":"assistant"}', JSON)).body == reply
    event = await proxy.events.get()
    assert (event.prompt_tokens, event.completion_tokens) == counted
    assert event.usage_reported is (counted != (None, None))


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_megabytes_of_speech_arrive_byte_for_byte(
    proxy: Gateway, engine: FakeEngine, framing: str
) -> None:
    sound = audio(5_000_003)
    kind = (("content-type", "audio/mpeg"), ("x-voice", "alloy"))
    if framing == "length":
        engine.script("/audio/speech", Answer(body=sound, headers=kind))
    else:
        pieces = tuple(sound[at : at + 70_001] for at in range(0, len(sound), 70_001))
        engine.script("/audio/speech", Answer(events=pieces, headers=kind))
    answer = await proxy.post("/v1/audio/speech", BODIES["/audio/speech"], JSON)
    assert (answer.status, answer.body, answer.whole) == (200, sound, True)
    assert (answer.headers["content-type"], answer.headers["x-voice"]) == ("audio/mpeg", "alloy")
    assert (await proxy.events.get()).completion_tokens is None


@pytest.mark.parametrize(
    "failure",
    [
        b'event: response.failed\ndata: {"type":"response.failed","response":{"status":"failed"}}\n\n',
        b'data: {"type":"response.failed","response":{"error":{"code":"server_error"}}}\n\n',
        b'event: error\ndata: {"type":"error","code":"server_error","message":"x"}\n\n',
    ],
)
async def test_a_response_that_begins_by_failing_is_asked_for_elsewhere(
    tmp_path: Path, failure: bytes
) -> None:
    body = b'{"input":"hi","stream":true,"model":"assistant"}'
    async with (
        FakeEngine.start() as one,
        FakeEngine.start() as other,
        gateway(tmp_path, one, other) as proxy,
    ):
        for engine in (one, other):
            engine.script("/responses", Answer(events=(failure,)))
        await proxy.post("/v1/responses", body, JSON)
        assert (one.hits("/responses"), other.hits("/responses")) == (1, 1)


@pytest.mark.parametrize("member", ["previous_response_id", "conversation", "background"])
async def test_state_passes_to_one_backend_and_is_refused_over_several(tmp_path: Path, member: str) -> None:
    value = True if member == "background" else "abc"
    body = json.dumps({"model": MODEL, "input": "hi", member: value}).encode()
    async with FakeEngine.start() as one, FakeEngine.start() as other:
        async with gateway(tmp_path, one) as proxy:
            assert (await proxy.post("/v1/responses", body, JSON)).status == 200
            assert one.requests[0].body == renamed(body)
        async with gateway(tmp_path, one, other) as proxy:
            answer = await proxy.post("/v1/responses", body, JSON)
            assert (answer.status, answer.code) == (400, "unsupported_parameter")
            assert answer.json()["error"]["param"] == member
            assert (await proxy.post("/v1/chat/completions", body, JSON)).status == 200
        assert one.hits("/responses") + other.hits("/responses") == 1
