"""What an engine usually answers beside chat: responses, audio, images, ranking, in OpenAI's and vLLM's
shapes. Each takes the model that was asked for, the request's members or form fields, and the answer's
wishes."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import msgspec

from tests.fakes.answers import Answer, Reply

CREATED = 1_700_000_000
Json = dict[str, Any]
Made = Callable[[str, Json, Answer], Reply]

PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(range(64))).decode()
SPOKEN = bytes(range(256)) * 64
"""What `/audio/speech` says: no text, with every byte value."""


def form_fields(body: bytes) -> Json:
    """The text fields of a form, as far as a fake needs to know them."""
    boundary = body.split(b"\r\n", 1)[0]
    fields: Json = {}
    for part in body.split(boundary)[1:-1]:
        head, _, value = part.removesuffix(b"\r\n").partition(b"\r\n\r\n")
        if b"filename" not in head:
            fields[head.split(b'name="')[1].split(b'"')[0].decode()] = value.decode("utf-8", "replace")
    return fields


def json_reply(value: Json) -> Reply:
    return Reply("application/json", json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())


def typed_events(*events: Json) -> Reply:
    """Events that are named after their `type`."""
    return Reply(
        "text/event-stream; charset=utf-8",
        events=tuple(
            f"event: {event['type']}\ndata: {json.dumps(event, separators=(',', ':'))}\n\n".encode()
            for event in events
        ),
    )


def _usage(answer: Answer, usual: Json) -> Json:
    given = usual if answer.usage is msgspec.UNSET else answer.usage
    return {} if given is None else {"usage": given}


def _streams(request: Json) -> bool:
    return str(request.get("stream", "")).lower() == "true"


def _responses(model: str, request: Json, answer: Answer) -> Reply:
    text = "".join(answer.words)
    part: Json = {"type": "output_text", "text": text, "annotations": []}
    item: Json = {
        "id": "msg_1",
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [part],
    }
    base: Json = {"id": "resp_1", "object": "response", "created_at": CREATED, "model": model, "error": None}
    base |= {"incomplete_details": None, "instructions": None, "metadata": {}, "parallel_tool_calls": True}
    base |= {"temperature": 1.0, "tool_choice": "auto", "tools": [], "top_p": 1.0}
    count = len(answer.words)
    usage = {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 2},
        "output_tokens": count,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 7 + count,
    }
    whole = {**base, "status": "completed", "output": [item], **_usage(answer, usage)}
    if not request.get("stream"):
        return json_reply(whole)
    begun = {**base, "status": "in_progress", "output": [], "usage": None}
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    events: list[Json] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**item, "status": "in_progress", "content": []},
        },
        {"type": "response.content_part.added", **place, "part": {**part, "text": ""}},
        *(
            {"type": "response.output_text.delta", **place, "delta": word, "logprobs": []}
            for word in answer.words
        ),
        {"type": "response.output_text.done", **place, "text": text, "logprobs": []},
        {"type": "response.content_part.done", **place, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]
    return typed_events(*({**event, "sequence_number": number} for number, event in enumerate(events)))


def _transcription(model: str, request: Json, answer: Answer) -> Reply:
    text = "".join(answer.words)
    count = len(answer.words)
    kind = request.get("response_format", "json")
    tokens = {"type": "tokens", "input_tokens": 14, "input_token_details": {"audio_tokens": 14}}
    tokens |= {"output_tokens": count, "total_tokens": 14 + count}
    if kind in ("text", "srt", "vtt"):
        return Reply("text/plain; charset=utf-8", (text + "\n").encode())
    if _streams(request):
        deltas = [{"type": "transcript.text.delta", "delta": word} for word in answer.words]
        return typed_events(*deltas, {"type": "transcript.text.done", "text": text, **_usage(answer, tokens)})
    if kind == "verbose_json":
        seconds = {"type": "duration", "seconds": 3}
        whole = {"task": "transcribe", "language": "english", "duration": 2.7, "text": text, "segments": []}
        return json_reply({**whole, **_usage(answer, seconds)})
    return json_reply({"text": text, **_usage(answer, tokens)})


def _translation(model: str, request: Json, answer: Answer) -> Reply:
    return json_reply({"text": "".join(answer.words)})


def _speech(model: str, request: Json, answer: Answer) -> Reply:
    if request.get("stream_format") == "sse":
        sound = base64.b64encode(SPOKEN[:256]).decode()
        usage = {"input_tokens": 4, "output_tokens": 9, "total_tokens": 13}
        done = {"type": "speech.audio.done", **_usage(answer, usage)}
        return typed_events({"type": "speech.audio.delta", "audio": sound}, done)
    return Reply("audio/mpeg", SPOKEN)


def _images(model: str, request: Json, answer: Answer) -> Reply:
    details = {"text_tokens": 10, "image_tokens": 40}
    usage = {"total_tokens": 100, "input_tokens": 50, "output_tokens": 50, "input_tokens_details": details}
    whole = {"created": CREATED, "data": [{"b64_json": PIXEL}] * int(request.get("n", 1))}
    return json_reply({**whole, **_usage(answer, usage)})


def _moderation(model: str, request: Json, answer: Answer) -> Reply:
    names = ("harassment", "harassment/threatening", "hate", "violence")
    result = {
        "flagged": False,
        "categories": dict.fromkeys(names, False),
        "category_scores": dict.fromkeys(names, 0.01),
        "category_applied_input_types": {name: ["text"] for name in names},
    }
    return json_reply({"id": "modr-1", "model": model, "results": [result]})


def _rerank(model: str, request: Json, answer: Answer) -> Reply:
    documents = request.get("documents") or []
    rows = [
        {"index": at, "document": {"text": text}, "relevance_score": 1.0 - at / 10}
        for at, text in enumerate(documents)
    ]
    usage = {"total_tokens": 9 * len(rows)}
    return json_reply({"id": "rerank-1", "model": model, **_usage(answer, usage), "results": rows})


def _score(model: str, request: Json, answer: Answer) -> Reply:
    row = {"index": 0, "object": "score", "score": 0.87}
    whole = {"id": "score-1", "object": "list", "created": CREATED, "model": model, "data": [row]}
    usage = {"prompt_tokens": 12, "total_tokens": 12, "completion_tokens": 0, "prompt_tokens_details": None}
    return json_reply({**whole, **_usage(answer, usage)})


def media_routes() -> dict[str, Made]:
    return {
        "/responses": _responses,
        "/audio/transcriptions": _transcription,
        "/audio/translations": _translation,
        "/audio/speech": _speech,
        "/images/generations": _images,
        "/images/edits": _images,
        "/moderations": _moderation,
        "/rerank": _rerank,
        "/score": _score,
    }
