"""The rest of OpenAI's SDK: responses, audio, images and moderations through a whole gateway."""

from __future__ import annotations

import io

import openai
import pytest

from tests.fakes.engine import FakeEngine
from tests.fakes.forms import audio
from tests.fakes.media_replies import PIXEL, SPOKEN

SAID = "Hello from the fake engine."
SMALL, LARGE = 20_000, 3_000_000


def recording(size: int) -> tuple[str, io.BytesIO, str]:
    return "tälk.wav", io.BytesIO(audio(size)), "audio/wav"


def sent_body(engine: FakeEngine, route: str) -> bytes:
    """Of the one request to a route."""
    [sent] = [request for request in engine.requests if request.route == route]
    assert sent.header("authorization") == "Bearer sk-of-the-engine"
    return bytes(sent.body)


@pytest.mark.parametrize("size", [SMALL, LARGE])
async def test_transcriptions(client: openai.AsyncOpenAI, model: str, engine: FakeEngine, size: int) -> None:
    answer = await client.audio.transcriptions.create(
        model=model, file=recording(size), language="nl", timestamp_granularities=["word"]
    )
    assert answer.text == SAID
    assert answer.usage is not None
    assert answer.usage.type == "tokens"
    assert answer.usage.output_tokens == 6
    body = sent_body(engine, "/audio/transcriptions")
    assert audio(size) in body
    assert b'name="model"\r\n\r\nfake-model\r\n' in body
    assert model.encode() not in body


async def test_transcriptions_as_text(client: openai.AsyncOpenAI, model: str) -> None:
    text = await client.audio.transcriptions.create(model=model, file=recording(9), response_format="text")
    assert text == SAID + "\n"


async def test_transcriptions_streamed(client: openai.AsyncOpenAI, model: str, engine: FakeEngine) -> None:
    stream = await client.audio.transcriptions.create(model=model, file=recording(SMALL), stream=True)
    events = [event async for event in stream]
    assert "".join(event.delta for event in events if event.type == "transcript.text.delta") == SAID
    assert events[-1].type == "transcript.text.done"
    assert events[-1].usage is not None
    assert b'name="stream"\r\n\r\ntrue\r\n' in sent_body(engine, "/audio/transcriptions")


async def test_translations(client: openai.AsyncOpenAI, model: str, engine: FakeEngine) -> None:
    with pytest.warns(DeprecationWarning, match="deprecated"):  # by the SDK only
        answer = await client.audio.translations.create(model=model, file=recording(SMALL), prompt="naïef")
    assert answer.text == SAID
    assert "naïef".encode() in sent_body(engine, "/audio/translations")


async def test_speech(client: openai.AsyncOpenAI, model: str) -> None:
    answer = await client.audio.speech.create(model=model, voice="alloy", input="hi")
    assert answer.content == SPOKEN
    assert answer.response.headers["content-type"] == "audio/mpeg"
    speech = client.audio.speech.with_streaming_response
    async with speech.create(model=model, voice="alloy", input="hi") as streamed:
        assert b"".join([piece async for piece in streamed.iter_bytes(1_000)]) == SPOKEN


async def test_images(client: openai.AsyncOpenAI, model: str, engine: FakeEngine) -> None:
    made = await client.images.generate(model=model, prompt="a cat", n=2, size="1024x1024")
    assert made.data is not None
    assert [image.b64_json for image in made.data] == [PIXEL, PIXEL]
    assert made.usage is not None
    assert made.usage.input_tokens_details.image_tokens == 40


@pytest.mark.parametrize("size", [SMALL, LARGE])
async def test_image_edits(client: openai.AsyncOpenAI, model: str, engine: FakeEngine, size: int) -> None:
    pictures = [(f"{n}.png", io.BytesIO(bytes([n]) + audio(size)), "image/png") for n in range(2)]
    edited = await client.images.edit(
        model=model, image=pictures, mask=("mask.png", io.BytesIO(audio(900)), "image/png"), prompt="a 🐈"
    )
    assert edited.data is not None
    assert edited.data[0].b64_json == PIXEL
    body = sent_body(engine, "/images/edits")
    assert all(bytes([n]) + audio(size) in body for n in range(2))
    assert b'name="model"\r\n\r\nfake-model\r\n' in body


async def test_moderations(client: openai.AsyncOpenAI, model: str) -> None:
    answer = await client.moderations.create(model=model, input="hi")
    assert answer.results[0].flagged is False


async def test_responses(client: openai.AsyncOpenAI, model: str, engine: FakeEngine) -> None:
    answer = await client.responses.create(model=model, input="hi", store=False, reasoning={"effort": "low"})
    assert answer.output_text == SAID
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (7, 6)
    assert b'"model":"fake-model"' in sent_body(engine, "/responses")
    later = await client.responses.create(model=model, input="and?", previous_response_id=answer.id)
    assert later.output_text == SAID  # one backend: it is the one that has it


async def test_responses_streamed(client: openai.AsyncOpenAI, model: str) -> None:
    async with client.responses.stream(model=model, input="hi") as stream:
        deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        answer = await stream.get_final_response()
    assert "".join(deltas) == answer.output_text == SAID
    assert answer.usage is not None
    assert answer.usage.output_tokens_details.reasoning_tokens == 1


async def test_a_form_without_a_model_is_told_so(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        await client.post(
            "/audio/transcriptions",
            body={},
            files=[("file", recording(9))],
            options={"headers": {"content-type": "multipart/form-data"}},
            cast_to=object,
        )
    assert refusal.value.code == "missing_required_parameter"
    assert refusal.value.param == "model"
