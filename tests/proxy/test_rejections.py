"""What engines' and providers' errors are about."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastllm_proxy.rejections import Subject, names_missing_model, subject_of_event

NAME = "Qwen/Qwen2.5-7B-Instruct"


def _openai(message: str, kind: str = "invalid_request_error", code: object = None) -> object:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


MISSING = {
    "vllm": _openai(f"The model `{NAME}` does not exist.", "NotFoundError", 404),
    "vllm, older": {
        "object": "error",
        "message": f"The model `{NAME}` does not exist.",
        "type": "NotFoundError",
        "param": None,
        "code": 404,
    },
    "openai": _openai(
        "The model `gpt-9` does not exist or you do not have access to it.", code="model_not_found"
    ),
    "code alone": _openai("no.", code="model_not_found"),
    "type alone": {"error": "not here", "error_type": "model_not_found"},
    "llama.cpp": _openai("model 'qwen:7b' not found", "not_found_error", 404),
    "sglang": _openai(f"Model '{NAME}' not found", "NotFoundError", 404),
    "ollama": _openai('model "qwen3:8b" not found, try pulling it first', "api_error"),
    "ollama, its own": {"error": "model 'qwen3:8b' not found"},
    "tgi": {"error": "Model not found", "error_type": "not_found"},
    "detail": {"detail": f"Model {NAME} not found"},
    "detail, nested": {"detail": {"error": f"Model {NAME} not found"}},
    "anthropic": {"type": "error", "error": {"type": "not_found_error", "message": "model: claude-9"}},
    "google": [
        {
            "error": {
                "code": 404,
                "message": "models/gemini-9 is not found for API version v1main",
                "status": "NOT_FOUND",
            }
        }
    ],
    "azure": _openai("The API deployment for this resource does not exist.", code="DeploymentNotFound"),
    "azure, words": _openai("The API deployment for this resource does not exist. Wait 5 minutes."),
    "fireworks": _openai("Model not found, inaccessible, and/or not deployed", code="NOT_FOUND"),
    "router": _openai("No endpoints found for some/model.", code=404),
    "a gateway in front": _openai("Error code: 404 - The model `x` does not exist."),
    "unquoted": _openai(f"The model {NAME} does not exist"),
    "contraction": _openai("This model doesn't exist"),
    "unknown": _openai("Unknown model: x"),
    "no such": _openai("no such model"),
    "invalid": _openai("Invalid model name"),
    "name last": _openai("Model not found: x"),
    "colon": _openai("model: x not found"),
}

OTHERS = {
    "no such path": {"detail": "Not Found"},
    "llama.cpp's path": _openai("File Not Found", "not_found_error", 404),
    "a file": _openai("No such File object: model-notes.txt"),
    "a file in quotes": _openai("File 'the model does not exist.txt' was not found"),
    "a file called so": _openai("model.pdf not found"),
    "a file by its words": _openai("Model card file report.txt was not found"),
    "a file with the words": _openai("no such file: model not found.txt"),
    "an image": _openai("The image model_photo.png does not exist"),
    "a tool": _openai("Tool 'model_search' not found"),
    "a voice": _openai("Voice `model` not found"),
    "a response": _openai("Previous response with id 'resp_model' not found."),
    "a path": _openai("Invalid URL (POST /v1/models/x)"),
    "an id": _openai("Item with id 'model' not found.", "not_found_error"),
    "anthropic's other": {"type": "error", "error": {"type": "not_found_error", "message": "Not found"}},
    "a model that is here": _openai("The model refused to find this document"),
    "a model's own": _openai("This model's file was not found"),
    "validation": {"detail": [{"loc": ["body", "model"], "msg": "model not found"}]},
    "nothing": {},
    "null": None,
    "a number": 3,
    "wrong types": {"error": {"message": 7, "code": ["model_not_found"], "type": None}},
}


@pytest.mark.parametrize("name", MISSING)
def test_a_404_that_says_the_model_is_missing(name: str) -> None:
    assert names_missing_model(json.dumps(MISSING[name]).encode())


@pytest.mark.parametrize("name", OTHERS)
def test_a_404_about_something_else(name: str) -> None:
    assert not names_missing_model(json.dumps(OTHERS[name]).encode())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"model not found", True),
        (b"The model `x` does not exist.\n", True),
        (b"404 page not found", False),
        (b"<html><title>model not found</title></html>", False),
        (b"", False),
        (b"\xff\xfe", False),
        (b"[" * 5000, False),
        (b'{"error":{"message":"' + b"x" * 70_000 + b'model not found"}}', False),
    ],
)
def test_a_404_that_is_no_json(text: bytes, expected: bool) -> None:
    assert names_missing_model(text) is expected


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_any_text_can_be_read(text: bytes) -> None:
    names_missing_model(text)
    subject_of_event(b"data: " + text + b"\n\n")


@given(st.text(alphabet="`'\" \nmodel.:not found", max_size=2000))
def test_no_message_takes_long(text: str) -> None:
    names_missing_model(json.dumps({"error": text}).encode())


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ({"message": "Unauthorized", "code": 401}, "rejected"),
        ({"message": "x", "code": "402"}, "rejected"),
        ({"message": "x", "status": 403}, "rejected"),
        ({"message": "Incorrect API key", "code": "invalid_api_key"}, "rejected"),
        ({"type": "authentication_error", "message": "invalid x-api-key"}, "rejected"),
        ({"type": "permission_error", "message": "no"}, "rejected"),
        ({"message": "no", "status": "UNAUTHENTICATED"}, "rejected"),
        ({"message": "The model `x` does not exist.", "type": "NotFoundError", "code": 404}, "rejected"),
        ({"message": "no", "code": "model_not_found"}, "rejected"),
        ({"message": "slow down", "code": 429}, "busy"),
        ({"type": "rate_limit_error", "message": "slow down"}, "busy"),
        ({"type": "overloaded_error", "message": "Overloaded"}, "busy"),
        ({"message": "no", "type": "insufficient_quota"}, "busy"),
        ({"message": "CUDA out of memory", "code": 500}, "other"),
        ({"message": "the model is not available right now", "code": 503}, "other"),
        ({"message": "Invalid model output: x", "code": None}, "other"),
        ({"message": "This model's longest prompt is 10, more is not supported", "code": 400}, "other"),
        ({"message": "The model `x`: logprobs are not supported"}, "other"),
        ({"message": "The model does not support streaming", "code": None}, "other"),
        ({"message": "The model `x` does not exist.", "code": 400}, "rejected"),
        ({"message": "model is not loaded", "code": 404}, "rejected"),
        ({"message": "context too long", "type": "BadRequestError", "code": 400}, "other"),
    ],
)
def test_error_events(error: object, expected: Subject) -> None:
    data = json.dumps({"error": error}).encode()
    assert subject_of_event(b": hello\n\nevent: error\ndata: " + data + b"\n\ndata: more") == expected


def test_events_without_an_object() -> None:
    assert subject_of_event(b"event: error\ndata: rate limited\n\n") == "other"
    assert (
        subject_of_event(b'event: error\ndata: {"type":"error","code":"rate_limit_exceeded"}\n\n') == "busy"
    )
    assert subject_of_event(b": nothing\n\n") == "other"
