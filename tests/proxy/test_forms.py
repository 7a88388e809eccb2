from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastllm_proxy.errors import Refused
from fastllm_proxy.forms import IN_MEMORY_BYTES, Form, form_boundary, peek_of
from fastllm_proxy.multipart import FormScanner
from fastllm_proxy.peek import Peek
from tests.fakes.edge import eventually
from tests.fakes.engine import Answer, FakeEngine, Fault
from tests.fakes.forms import BOUNDARY, Field, audio, encode_form, form_type
from tests.proxy.fleet import apart
from tests.proxy.form_readers import TOKENS, Damage, damaged, models_by_aiohttp, models_by_email
from tests.proxy.parts import exchange
from tests.proxy.rig import KEY, MODEL, UPSTREAM_MODEL, Gateway, gateway

PATH = "/audio/transcriptions"
FORM = {"content-type": form_type()}
SMALL = Field("file", audio(5_000), "a.wav", b"Content-Type: audio/wav\r\n")
LARGE = Field("file", audio(IN_MEMORY_BYTES + 700_001), "a.wav", b"Content-Type: audio/wav\r\n")
NAME = Field("model", MODEL.encode())


def seen(*fields: Field) -> Peek:
    scanner = FormScanner(BOUNDARY)
    scanner.feed(encode_form(*fields))
    scanner.finish()
    return peek_of(scanner.parts)


def renamed(body: bytes) -> bytes:
    return body.replace(b'"model"\r\n\r\n' + MODEL.encode(), b'"model"\r\n\r\n' + UPSTREAM_MODEL.encode())


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine.start() as running:
        running.script(PATH, Answer(body=b'{"text":"hello"}'))
        yield running


@pytest.fixture
async def proxy(tmp_path: Path, engine: FakeEngine) -> AsyncIterator[Gateway]:
    async with gateway(tmp_path, engine) as running:
        yield running
        assert running.spools.open_files == 0
        assert running.server._budget.held == 0


@pytest.mark.parametrize("file", [SMALL, LARGE], ids=("memory", "disk"))
@pytest.mark.parametrize("last", [False, True], ids=("model first", "model last"))
async def test_a_form_arrives_as_it_was_but_for_the_model(
    proxy: Gateway, engine: FakeEngine, file: Field, last: bool
) -> None:
    fields = [file, Field("language", "français".encode())]
    body = encode_form(*fields, NAME) if last else encode_form(NAME, *fields)
    answer = await proxy.post("/v1" + PATH, body, FORM)
    assert (answer.status, answer.body) == (200, b'{"text":"hello"}')
    sent = engine.requests[0]
    assert sent.body == renamed(body)
    assert sent.header("content-type") == form_type()
    assert sent.header("content-length") == str(len(sent.body))
    event = await proxy.events.get()
    assert (event.model, event.endpoint, event.stream) == (MODEL, PATH, False)


@pytest.mark.parametrize("file", [SMALL, LARGE], ids=("memory", "disk"))
async def test_each_attempt_sends_all_of_it_under_its_own_name(tmp_path: Path, file: Field) -> None:
    body = encode_form(file, NAME)
    async with contextlib.AsyncExitStack() as stack:
        first, second, third = [await stack.enter_async_context(FakeEngine.start()) for _ in range(3)]
        proxy = await stack.enter_async_context(gateway(tmp_path, first, second, third))
        apart(proxy)
        third.script(PATH, Answer(body=b"{}"))
        entry = proxy.backend(2).entry
        proxy.backend(2).entry = type(entry)(
            entry.id, "provider-2", "model-1", upstream_model="longer-name/of-it"
        )
        first.script(PATH, Answer(status=500))
        second.script(PATH, Answer(fault=Fault("reset", "mid_head")))
        assert (await proxy.post("/v1" + PATH, body, FORM)).status == 200
        assert first.requests[0].body == third.requests[0].body == renamed(body)
        assert second.requests[0].body == body.replace(b"\r\n\r\nassistant", b"\r\n\r\nlonger-name/of-it")
        assert proxy.spools.open_files == 0


@pytest.mark.parametrize("early", [Answer(status=413, early=True, body=b'{"error":{"message":"too long"}}')])
async def test_an_engine_that_will_not_have_it_is_heard(
    proxy: Gateway, engine: FakeEngine, early: Answer
) -> None:
    engine.script(PATH, early)
    answer = await proxy.post("/v1" + PATH, encode_form(Field("file", audio(3_000_000), "a"), NAME), FORM)
    assert (answer.status, answer.body) == (413, early.body)


@given(
    st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 6), st.integers(0, len(TOKENS) - 1)), max_size=4)
)
@settings(max_examples=400)
async def test_what_is_accepted_names_the_same_model_to_every_reader(damages: list[Damage]) -> None:
    form = damaged(
        encode_form(Field("file", b"\0\r\n--\r\nx", "a.wav"), NAME, Field("prompt", b"hi")), damages
    )
    scanner = FormScanner(BOUNDARY)
    try:
        scanner.feed(form)
        scanner.finish()
        start, end = peek_of(scanner.parts).model_span
    except Refused:
        return
    assert models_by_email(form) == [form[start:end]]
    with contextlib.suppress(ValueError):  # it takes no more than it likes
        assert await models_by_aiohttp(form) == [form[start:end]]


REFUSED: Sequence[tuple[Sequence[Field], str, str]] = [
    ([SMALL], "missing_required_parameter", "model"),
    ([NAME, NAME], "ambiguous_parameter", "model"),
    ([NAME, SMALL, Field("model", b"")], "ambiguous_parameter", "model"),
    ([NAME, Field("stream", b"true"), Field("stream", b"false")], "ambiguous_parameter", "stream"),
    ([Field("model", b"\xff")], "missing_required_parameter", "model"),
    ([Field("model", b"m", "file")], "invalid_multipart", "model must be a plain field"),
    (
        [Field("model", b"bQ==", headers=b"Content-Transfer-Encoding: base64\r\n")],
        "invalid_multipart",
        "model",
    ),
    (
        [Field("model", b"m", headers=b"Content-Type: text/plain; charset=utf-16\r\n")],
        "invalid_multipart",
        "model",
    ),
    ([Field("model", b"m" * 70_000)], "invalid_multipart", "model must be a plain field"),
    ([NAME, Field("stream", b"true", "file")], "invalid_multipart", "stream must be a plain field"),
    ([NAME, Field("_charset_", b"utf-16")], "invalid_multipart", "UTF-8"),
]


@pytest.mark.parametrize(("fields", "code", "word"), REFUSED)
def test_fields_that_are_no_basis_for_a_decision_are_refused(
    fields: Sequence[Field], code: str, word: str
) -> None:
    with pytest.raises(Refused) as refusal:
        seen(*fields)
    assert (refusal.value.status, refusal.value.code) == (400, code)
    assert word in refusal.value.message or word == refusal.value.param


@pytest.mark.parametrize(
    ("text", "stream"), [(b"true", True), (b"True", True), (b"TRUE", True), (b"false", False), (b"", False)]
)
def test_stream_is_a_word(text: bytes, stream: bool) -> None:
    found = seen(Field("stream", text), NAME, Field("n", b"2"), Field("_charset_", b"UTF-8"))
    assert found.stream is stream
    assert found.model == MODEL
    assert bytes(found.members["n"]) == b"2"
    assert "file" not in seen(SMALL, NAME).members


async def test_the_refusal_of_a_bad_form_names_what_is_wrong(proxy: Gateway, engine: FakeEngine) -> None:
    for body, message in (
        (encode_form(SMALL, NAME)[:-5], "it has no closing boundary"),
        (encode_form(LARGE, NAME)[:-5], "it has no closing boundary"),
        (b'{"model":"assistant"}', "it does not start with its boundary"),
    ):
        answer = await proxy.post("/v1" + PATH, body, FORM)
        assert (answer.status, answer.code) == (400, "invalid_multipart")
        assert answer.json()["error"]["message"] == f"the form is not valid: {message}"
    answer = await proxy.post("/v1" + PATH, encode_form(NAME), {"content-type": "multipart/form-data"})
    assert (
        answer.json()["error"]["message"] == "the form is not valid: its Content-Type must name one boundary"
    )
    assert engine.requests == []


async def test_json_is_json_on_these_paths_too(proxy: Gateway, engine: FakeEngine) -> None:
    body = b'{ "model" : "assistant", "file":"data" }'
    assert (await proxy.post("/v1" + PATH, body)).status == 200
    assert engine.requests[0].body == body.replace(b"assistant", UPSTREAM_MODEL.encode())
    assert (await proxy.post("/v1" + PATH, encode_form(NAME))).code == "invalid_json"
    assert (await proxy.post("/v1/chat/completions", encode_form(NAME), FORM)).code == "invalid_json"


def test_two_content_types_are_refused() -> None:
    line = (b"Content-Type", form_type().encode())
    assert form_boundary((line,)) == BOUNDARY
    assert form_boundary(()) is None
    with pytest.raises(Refused):
        form_boundary((line, (b"content-type", b"application/json")))


async def test_a_client_that_leaves_takes_its_file_with_it(proxy: Gateway, engine: FakeEngine) -> None:
    body = encode_form(LARGE, NAME)
    client = await proxy.connect()
    client.writer.write(head(len(body)) + body[:-1_000])
    await eventually(lambda: proxy.spools.open_files == 1)
    client.close()
    await eventually(lambda: proxy.spools.open_files == 0 and proxy.server.inflight == 0)
    assert engine.connections == []


async def test_a_file_is_kept_no_longer_than_another_attempt_may_need_it(
    proxy: Gateway, engine: FakeEngine
) -> None:
    events = (b"data: {}\n\n", b"data: [DONE]\n\n")
    engine.script(PATH, Answer(events=events, gap=0.3))
    client = await proxy.connect()
    body = encode_form(LARGE, NAME, Field("stream", b"true"))
    client.writer.write(head(len(body)) + body)
    assert (await client.head())[0] == 200
    assert proxy.spools.open_files == 0
    assert await client.piece() == events[0]
    assert await client.piece() == events[1]
    client.close()
    assert (await proxy.events.get()).stream


async def test_no_room_on_disk_is_503(proxy: Gateway, engine: FakeEngine, tmp_path: Path) -> None:
    proxy.spools._folder = str(tmp_path / "absent")
    answer = await proxy.post("/v1" + PATH, encode_form(LARGE, NAME), FORM)
    assert (answer.status, answer.code) == (503, "overloaded")
    assert (await proxy.post("/v1" + PATH, encode_form(SMALL, NAME), FORM)).status == 200


async def test_small_forms_count_as_what_the_worker_holds(proxy: Gateway, engine: FakeEngine) -> None:
    engine.script(PATH, Answer(delay_to_head=0.2))
    body = encode_form(SMALL, NAME)
    asked = asyncio.create_task(proxy.post("/v1" + PATH, body, FORM))
    await engine.arrived(1)
    assert proxy.server._budget.held == len(body)
    await asked


def form_exchange(text_bytes: int, model: str = MODEL) -> Any:
    made = exchange()
    made.body = b""
    made.peek = seen(Field("model", model.encode()), Field("prompt", b"hello"))
    made.form = Form(30_000_000, text_bytes, None)
    return made


def test_files_are_no_tokens_and_uploads_stay_together() -> None:
    assert form_exchange(400).prompt_tokens() == 100
    assert form_exchange(1).conversation() == form_exchange(2).conversation()
    assert form_exchange(1).conversation() != form_exchange(1, "other").conversation()


def head(length: int) -> bytes:
    return (
        f"POST /v1{PATH} HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {KEY}\r\n"
        f"content-type: {form_type()}\r\ncontent-length: {length}\r\n\r\n"
    ).encode()
