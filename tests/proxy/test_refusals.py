from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastllm_proxy import refusals
from fastllm_proxy.errors import Refused

OURS = [
    refusals.unknown_url("GET", "/x"),
    refusals.method_not_allowed("GET", "/x", "POST"),
    refusals.not_ready(),
    refusals.overloaded("full"),
    refusals.internal_error(),
    refusals.malformed(),
    refusals.headers_too_large(32_768, 256),
    refusals.request_too_large(10),
    refusals.request_timeout("slow"),
    refusals.unsupported_encoding(),
    refusals.undecodable_body(),
]


@pytest.mark.parametrize("refused", OURS, ids=lambda refused: refused.code)
def test_openai_shape_has_all_four_keys(refused: Refused) -> None:
    status, headers, body = refusals.render(refused, "openai", "r-1")
    assert status == refused.status
    assert headers.startswith(b"content-type: application/json\r\n")
    assert headers.endswith(b"\r\n")
    assert msgspec.json.decode(body) == {
        "error": {
            "message": refused.message,
            "type": refusals.error_type(refused.status, "openai"),
            "param": refused.param,
            "code": refused.code,
        }
    }


@pytest.mark.parametrize("refused", OURS, ids=lambda refused: refused.code)
def test_anthropic_shape(refused: Refused) -> None:
    _, _, body = refusals.render(refused, "anthropic", "r-1")
    kind = refusals.error_type(refused.status, "anthropic")
    assert msgspec.json.decode(body) == {
        "type": "error",
        "error": {"type": kind, "message": refused.message},
        "request_id": "r-1",
    }


@pytest.mark.parametrize(
    ("status", "openai", "anthropic"),
    [
        (400, "invalid_request_error", "invalid_request_error"),
        (401, "authentication_error", "authentication_error"),
        (402, "billing_error", "billing_error"),
        (403, "permission_error", "permission_error"),
        (404, "not_found_error", "not_found_error"),
        (405, "invalid_request_error", "invalid_request_error"),
        (413, "invalid_request_error", "request_too_large"),
        (429, "rate_limit_error", "rate_limit_error"),
        (500, "api_error", "api_error"),
        (502, "api_error", "api_error"),
        (503, "api_error", "overloaded_error"),
        (504, "timeout_error", "timeout_error"),
    ],
)
def test_types(status: int, openai: str, anthropic: str) -> None:
    assert refusals.error_type(status, "openai") == openai
    assert refusals.error_type(status, "anthropic") == anthropic


def test_extra_headers_and_param() -> None:
    refused = Refused(
        429, "rate_limit_exceeded", "wait", param="model", headers=(("retry-after", "7"), ("x-a", "b"))
    )
    _, headers, body = refusals.render(refused, "openai", "r")
    assert headers == b"content-type: application/json\r\nretry-after: 7\r\nx-a: b\r\n"
    assert msgspec.json.decode(body)["error"]["param"] == "model"


def test_an_error_without_code_says_null() -> None:
    _, _, body = refusals.render(Refused(400, None, "no"), "openai", "r")
    assert b'"code":null' in body


@given(st.text(max_size=400))
def test_what_is_shown_of_a_path_is_short_and_plain(path: str) -> None:
    shown = refusals.safe_path(path)
    assert len(shown) == min(len(path), 200)
    assert shown.isascii()
    assert not set(shown) & set("<>\"'&\\ {}|^`;#\r\n\0$()[]")
    for given_character, character in zip(path, shown, strict=False):
        assert character in (given_character, "?")


def test_an_ordinary_path_is_shown_as_it_is() -> None:
    assert refusals.safe_path("/v1/models/org%2Fname-1.5:latest") == "/v1/models/org%2Fname-1.5:latest"
