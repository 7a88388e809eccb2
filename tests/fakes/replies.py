"""What an engine usually answers: OpenAI's and Anthropic's shapes, complete enough for their SDKs."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import msgspec

from tests.fakes.answers import Answer, Reply
from tests.fakes.media_replies import form_fields, media_routes

CREATED = 1_700_000_000
DIMENSIONS = 8

Json = dict[str, Any]


ROUTES = frozenset(
    {
        "/models",
        "/health",
        "/chat/completions",
        "/completions",
        "/embeddings",
        "/messages",
        "/messages/count_tokens",
        *media_routes(),
    }
)
"""Paths without their `/v1` that have a usual reply."""


def usual_reply(path: str, body: bytes, answer: Answer, models: tuple[str, ...]) -> Reply:
    """The usual reply to one of `ROUTES`; anything else gets an empty object."""
    if path == "/models":
        return _json({"object": "list", "data": [_model(name) for name in models]})
    if path == "/health":
        return _json({"status": "ok"})
    try:
        request = form_fields(body) if body.startswith(b"--") else json.loads(body or b"{}")
    except ValueError:
        request = {}
    if not isinstance(request, dict):
        request = {}
    asked = str(request.get("model", models[0] if models else "fake-model"))
    routes = {
        "/chat/completions": _chat,
        "/completions": _completion,
        "/embeddings": _embeddings,
        "/messages": _messages,
        "/messages/count_tokens": _count_tokens,
        **media_routes(),
    }
    route = routes.get(path)
    return _json({}) if route is None else route(asked, request, answer)


def error_reply(message: str, kind: str = "invalid_request_error", code: str | None = None) -> Reply:
    """OpenAI's error shape."""
    return _json({"error": {"message": message, "type": kind, "param": None, "code": code}})


def vllm_metrics(
    model: str, *, running: int, waiting: int, generated: int, prompted: int, served: int
) -> str:
    """The families that a vLLM engine publishes and a gateway reads, in Prometheus' text format."""
    label = f'{{engine="0",model_name="{model}"}}'
    finished = f'{{engine="0",finished_reason="stop",model_name="{model}"}}'
    lines = []
    for name, kind, value in (
        ("vllm:num_requests_running", "gauge", running),
        ("vllm:num_requests_waiting", "gauge", waiting),
        ("vllm:kv_cache_usage_perc", "gauge", min(1.0, running / 16)),
        ("vllm:prompt_tokens_total", "counter", prompted),
        ("vllm:generation_tokens_total", "counter", generated),
        ("vllm:iteration_tokens_total_sum", "counter", prompted + generated),
        ("vllm:iteration_tokens_total_count", "counter", generated),
    ):
        lines += [f"# TYPE {name} {kind}", f"{name}{label} {value}"]
    lines += ["# TYPE vllm:request_success_total counter", f"vllm:request_success_total{finished} {served}"]
    return "\n".join(lines) + "\n"


def sse(data: Json | str, event: str | None = None) -> bytes:
    """One event as it stands on the wire."""
    text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {text}\n\n".encode()


def _json(value: Json) -> Reply:
    return Reply("application/json", json.dumps(value, separators=(",", ":")).encode())


def _events(events: list[bytes]) -> Reply:
    return Reply("text/event-stream; charset=utf-8", events=tuple(events))


def _model(name: str) -> Json:
    return {"id": name, "object": "model", "created": CREATED, "owned_by": "fake", "max_model_len": 4096}


def _usage(answer: Answer, usual: Json) -> Json | None:
    return usual if answer.usage is msgspec.UNSET else answer.usage


def _openai_usage(answer: Answer) -> Json | None:
    count = len(answer.words)
    return _usage(answer, {"prompt_tokens": 7, "completion_tokens": count, "total_tokens": 7 + count})


def _tool_of(request: Json) -> str | None:
    """The name of the first tool offered, in either dialect."""
    tools = request.get("tools")
    if not tools or request.get("tool_choice") == "none":
        return None
    tool = tools[0]
    return str(tool.get("function", tool).get("name", "tool"))


def _with_usage(value: Json, usage: Json | None) -> Json:
    return value if usage is None else {**value, "usage": usage}


def _wants_usage(request: Json) -> bool:
    return bool((request.get("stream_options") or {}).get("include_usage"))


def _chat(model: str, request: Json, answer: Answer) -> Reply:
    tool = _tool_of(request)
    call = {"id": "call_1", "type": "function", "function": {"name": tool, "arguments": '{"city":"Rome"}'}}
    finish = "stop" if tool is None else "tool_calls"
    usage = _openai_usage(answer)
    if not request.get("stream"):
        message: Json = {"role": "assistant", "content": "".join(answer.words)}
        if tool is not None:
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
        whole = {"id": "chatcmpl-1", "object": "chat.completion", "created": CREATED, "model": model}
        return _json(_with_usage({**whole, "choices": [choice]}, usage))

    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": CREATED, "model": model}

    def chunk(delta: Json, reason: str | None = None) -> bytes:
        return sse({**base, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})

    deltas: list[Json] = [{"content": word} for word in answer.words]
    if tool is not None:
        deltas = [{"tool_calls": [{"index": 0, **call}]}]
    events = [chunk({"role": "assistant", "content": ""}), *map(chunk, deltas), chunk({}, finish)]
    if _wants_usage(request) and usage is not None:
        events.append(sse({**base, "choices": [], "usage": usage}))
    return _events([*events, sse("[DONE]")])


def _completion(model: str, request: Json, answer: Answer) -> Reply:
    base = {"id": "cmpl-1", "object": "text_completion", "created": CREATED, "model": model}
    usage = _openai_usage(answer)

    def choice(text: str, reason: str | None) -> Json:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}

    if not request.get("stream"):
        return _json(_with_usage({**base, "choices": [choice("".join(answer.words), "stop")]}, usage))
    events = [sse({**base, "choices": [choice(word, None)]}) for word in answer.words]
    events.append(sse({**base, "choices": [choice("", "stop")]}))
    if _wants_usage(request) and usage is not None:
        events.append(sse({**base, "choices": [], "usage": usage}))
    return _events([*events, sse("[DONE]")])


def _embeddings(model: str, request: Json, answer: Answer) -> Reply:
    given = request.get("input", "")
    inputs = given if isinstance(given, list) else [given]
    rows = []
    for index, _ in enumerate(inputs):
        vector = [float(index + place) for place in range(DIMENSIONS)]
        packed = base64.b64encode(struct.pack(f"<{DIMENSIONS}f", *vector)).decode()
        value: object = packed if request.get("encoding_format") == "base64" else vector
        rows.append({"object": "embedding", "index": index, "embedding": value})
    usage = _usage(answer, {"prompt_tokens": 3 * len(inputs), "total_tokens": 3 * len(inputs)})
    return _json(_with_usage({"object": "list", "data": rows, "model": model}, usage))


def _count_tokens(model: str, request: Json, answer: Answer) -> Reply:
    return _json({"input_tokens": 7})


def _messages(model: str, request: Json, answer: Answer) -> Reply:
    tool = _tool_of(request)
    text = "".join(answer.words)
    usage = _usage(answer, {"input_tokens": 7, "output_tokens": len(answer.words)})
    block: Json = {"type": "text", "text": text}
    if tool is not None:
        block = {"type": "tool_use", "id": "toolu_1", "name": tool, "input": {"city": "Rome"}}
    message: Json = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [block],
    }
    message |= {"stop_reason": "end_turn" if tool is None else "tool_use", "stop_sequence": None}
    if not request.get("stream"):
        return _json(_with_usage(message, usage))
    return _events(_message_events(message, block, answer, usage))


def _message_events(message: Json, block: Json, answer: Answer, usage: Json | None) -> list[bytes]:
    opening = {**message, "content": [], "stop_reason": None}
    started = None if usage is None else {**usage, "output_tokens": 1}
    if block["type"] == "text":
        empty: Json = {"type": "text", "text": ""}
        deltas = [{"type": "text_delta", "text": word} for word in answer.words]
    else:
        empty = {**block, "input": {}}
        deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
    ending: Json = {"delta": {"stop_reason": message["stop_reason"], "stop_sequence": None}}

    def event(kind: str, **fields: object) -> bytes:
        return sse({"type": kind, **fields}, kind)

    return [
        event("message_start", message=_with_usage(opening, started)),
        event("content_block_start", index=0, content_block=empty),
        event("ping"),
        *(event("content_block_delta", index=0, delta=delta) for delta in deltas),
        event("content_block_stop", index=0),
        event("message_delta", **_with_usage(ending, usage)),
        event("message_stop"),
    ]
