"""The snapshot's wire form: what a control plane encodes is what a proxy decodes, and nothing else is."""

from __future__ import annotations

import msgspec
import pytest

from fastllm_shared.snapshot import (
    BackendEntry,
    Conditions,
    FrontendModelEntry,
    KeyEntry,
    PoolEntry,
    PoolMember,
    PrincipalEntry,
    ProviderEntry,
    ProviderModelEntry,
    RuleEntry,
    Snapshot,
    TargetEntry,
    decode_snapshot,
    encode_snapshot,
    etag_of,
)

WHOLE = Snapshot(
    version=7,
    history="h",
    created_at=1.5,
    keys=(KeyEntry(digest=b"\x00" * 32, id="k", principal_id="p", prefix="sk-abc", expires_at=9.0),),
    principals=(PrincipalEntry(id="p", name="team", kind="service_account", models=("a/b",)),),
    providers=(ProviderEntry(id="pr", name="gpu", kind="static", api_base="http://127.0.0.1:1/v1"),),
    backends=(BackendEntry(id="b", provider_id="pr", provider_model_id="m", upstream_model="up"),),
    provider_models=(ProviderModelEntry(id="m", name="qwen", backends=("b",)),),
    pools=(PoolEntry(id="po", name="pool", policy="least-loaded", members=(PoolMember("b", 2),)),),
    frontend_models=(
        FrontendModelEntry(
            id="f",
            name="a/b",
            created_at=1.0,
            rules=(RuleEntry(position=0, when=Conditions(stream=False), action="deny", deny_status=403),),
            targets=(TargetEntry("qwen", 3),),
        ),
    ),
    fallback_model="a/b",
)


def test_round_trip_keeps_everything() -> None:
    assert decode_snapshot(encode_snapshot(WHOLE)) == WHOLE


def test_a_providers_secrets_are_not_shown() -> None:
    secret = ProviderEntry(
        "pr", "gpu", "static", "http://h/v1", credential="canary-1", extra_headers=(("x-key", "canary-2"),)
    )
    assert "canary" not in repr(msgspec.structs.replace(WHOLE, providers=(secret,)))


def test_fields_that_a_later_release_adds_are_ignored() -> None:
    raw = msgspec.msgpack.decode(encode_snapshot(WHOLE))
    raw["something_new"] = {"a": 1}
    raw["backends"][0]["something_new"] = 2
    assert decode_snapshot(msgspec.msgpack.encode(raw)) == WHOLE


@pytest.mark.parametrize("broken", [b"", b"\x81", encode_snapshot(WHOLE)[:-1], msgspec.msgpack.encode([1])])
def test_what_is_no_snapshot_is_refused(broken: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_snapshot(broken)


def test_a_delta_is_not_taken_for_the_whole() -> None:
    raw = msgspec.msgpack.decode(encode_snapshot(WHOLE))
    raw["type"] = "delta"
    with pytest.raises(msgspec.ValidationError):
        decode_snapshot(msgspec.msgpack.encode(raw))


def test_etag_is_a_quoted_version() -> None:
    assert etag_of(42) == '"42"'
