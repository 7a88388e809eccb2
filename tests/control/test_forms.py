"""The shapes that callers send: what is secret in them does not show when they are printed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fastllm_control.forms import BackendPatch, NewProvider, ProviderPatch, TargetList

CANARY = "sk-canary"
SECRETS = {"upstream_api_key": CANARY, "extra_headers": {"x-key": CANARY}}


def test_forms_do_not_show_secrets() -> None:
    new = msgspec.convert({"name": "gpu", "api_base": "http://gpu/v1", **SECRETS}, NewProvider)
    patch = msgspec.convert(SECRETS, ProviderPatch)
    assert CANARY not in f"{new!r} {new} {patch!r} {patch}"
    assert (new.upstream_api_key, patch.upstream_api_key) == (CANARY, CANARY)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (ProviderPatch, {"auth_header": "Transfer-Encoding"}),
        (ProviderPatch, {"auth_header": "proxy-authorization"}),
        (ProviderPatch, {"auth_header": "x-key\n"}),
        (ProviderPatch, {"auth_header": "x:y"}),
        (ProviderPatch, {"upstream_api_key": " padded "}),
        (ProviderPatch, {"extra_headers": {f"x-{number}": "y" for number in range(51)}}),
        (ProviderPatch, {"ca": ""}),
        (BackendPatch, {"accept": False}),
        (BackendPatch, {"upstream_timeout_seconds": 86_401}),
        (TargetList, {"targets": [{"target": "a"}] * 1001}),
        (TargetList, {"targets": [{"target": "a\n"}]}),
    ],
)
def test_what_is_out_of_shape(kind: type[Any], body: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(body, kind)


@pytest.mark.parametrize("header", ["authorization", "X-Api-Key", "api-key", "x-goog-api-key", "hosted-by"])
def test_headers_that_carry_credentials(header: str) -> None:
    assert msgspec.convert({"auth_header": header}, ProviderPatch).auth_header == header


def test_absent_is_not_null() -> None:
    assert msgspec.convert({}, ProviderPatch).upstream_api_key is msgspec.UNSET
    assert msgspec.convert({"upstream_api_key": None}, ProviderPatch).upstream_api_key is None
