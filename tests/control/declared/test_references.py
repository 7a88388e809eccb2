"""Where secrets come from, and what happens where they are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fastllm_control.declared.document import DeclaredProvider, SecretReference
from fastllm_control.declared.references import (
    EnvironmentSecrets,
    GivenSecrets,
    NoKeyring,
    Secrets,
    resolve,
)
from fastllm_control.errors import Conflict, Invalid
from fastllm_control.provider_secrets import seal_credential, seal_headers
from fastllm_control.secrets import Keyring
from fastllm_control.tables.configuration import Provider
from fastllm_shared.ids import uuid7
from tests.fakes.configuration import RING

KEY = SecretReference(env="KEY")
NOTHING = GivenSecrets({})


def entry(**fields: Any) -> DeclaredProvider:
    return DeclaredProvider(**{"name": "gpu-1", "api_base": "http://gpu-1:8000/v1", **fields})


def stored(key: str | None = None, headers: dict[str, str] | None = None, ring: Keyring = RING) -> Provider:
    identity = uuid7()
    return Provider(
        id=identity,
        name="gpu-1",
        api_base="http://gpu-1:8000/v1",
        credential=seal_credential(ring, identity, key),
        extra_headers=seal_headers(ring, identity, headers or {}),
    )


def test_the_command_line_reads_its_environment_and_files_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("  from-a-file\n")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    secrets = EnvironmentSecrets({"KEY": "from-the-environment", "EMPTY": ""}, tmp_path)
    assert secrets.resolve(KEY) == "from-the-environment"
    assert secrets.resolve(SecretReference(file="key")) == "from-a-file"
    assert secrets.resolve(SecretReference(file=str(tmp_path / "key"))) == "from-a-file"
    for absent in (SecretReference(env="EMPTY"), SecretReference(file="no"), SecretReference(file="empty")):
        assert secrets.resolve(absent) is None
    for unreadable in ("binary", "."):
        with pytest.raises(Invalid, match="cannot be read"):
            secrets.resolve(SecretReference(file=unreadable))


def test_a_call_brings_its_own_and_sees_nothing_of_the_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text("canary")
    monkeypatch.setenv("KEY", "canary")
    given = GivenSecrets({"OTHER": "a", "/run/key": "b"})
    assert given.resolve(KEY) is None
    assert given.resolve(SecretReference(file=str(tmp_path / "key"))) is None
    assert given.resolve(SecretReference(file="/run/key")) == "b"


def test_what_differs_from_what_is_stored_changes() -> None:
    given = GivenSecrets({"KEY": "k1"})
    assert resolve(entry(upstream_api_key=KEY), None, RING, given).changed == ("upstream_api_key",)
    assert resolve(entry(upstream_api_key=KEY), stored("k1"), RING, given).changed == ()
    assert resolve(entry(upstream_api_key=KEY), stored("k0"), RING, given).changed == ("upstream_api_key",)
    assert resolve(entry(), stored("k0"), RING, given).changed == ("upstream_api_key",)
    assert resolve(entry(), stored(), RING, given).changed == ()
    headers = {"x-a": KEY, "x-b": "plain"}
    both = {"x-a": "k1", "x-b": "plain"}
    assert resolve(entry(extra_headers=headers), stored(headers=both), RING, given).changed == ()
    found = resolve(entry(extra_headers=headers), stored(headers={"x-a": "k0"}), RING, given)
    assert (found.changed, found.extra_headers) == (("extra_headers",), both)
    assert resolve(entry(), stored(headers=both), RING, given).changed == ("extra_headers",)


def test_what_is_not_given_stays_as_it_is_stored_and_says_so() -> None:
    wanted = entry(upstream_api_key=KEY, extra_headers={"x-a": SecretReference(file="a"), "x-b": "new"})
    found = resolve(wanted, stored("k0", {"x-a": "a0", "x-b": "old"}), RING, NOTHING)
    assert found.changed == ("extra_headers",)
    assert found.extra_headers == {"x-a": "a0", "x-b": "new"}
    assert found.kept == (
        "the environment variable KEY is not set: the credential of gpu-1 stays as it is stored",
        "the file a is not set: the header x-a of gpu-1 stays as it is stored",
    )


@pytest.mark.parametrize(
    ("fields", "row", "secrets", "code", "field"),
    [
        ({"upstream_api_key": KEY}, None, NOTHING, "secret_missing", "upstream_api_key"),
        ({"upstream_api_key": KEY}, stored(), NOTHING, "secret_missing", "upstream_api_key"),
        ({"extra_headers": {"x-a": KEY}}, stored("k0"), NOTHING, "secret_missing", "extra_headers.x-a"),
        (
            {"extra_headers": {"x-a": KEY}, "api_base": "http://elsewhere:8000/v1"},
            stored(headers={"x-a": "k"}),
            NOTHING,
            "credential_for_another_host",
            "extra_headers.x-a",
        ),
        (
            {"upstream_api_key": KEY},
            None,
            GivenSecrets({"KEY": "canary\n"}),
            "invalid_value",
            "upstream_api_key",
        ),
        (
            {"extra_headers": {"x-a": KEY}},
            None,
            GivenSecrets({"KEY": "canary\x07"}),
            "invalid_value",
            "extra_headers.x-a",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_field_and_never_shown(
    fields: dict[str, Any], row: Provider | None, secrets: Secrets, code: str, field: str
) -> None:
    with pytest.raises(Invalid) as refused:
        resolve(entry(**fields), row, RING, secrets)
    assert (refused.value.code, refused.value.field) == (code, field)
    assert "canary" not in refused.value.message


def test_what_no_longer_opens_is_replaced_when_it_is_given() -> None:
    lost = stored("k0", {"x-a": "a0"}, Keyring.parse("cd" * 32))
    wanted = entry(upstream_api_key=KEY, extra_headers={"x-a": KEY})
    found = resolve(wanted, lost, RING, GivenSecrets({"KEY": "k0"}))
    assert found.changed == ("upstream_api_key", "extra_headers")
    with pytest.raises(Invalid, match="nothing is stored that could stay"):
        resolve(entry(extra_headers={"x-a": KEY}), lost, RING, NOTHING)


def test_the_encryption_key_is_asked_for_only_where_it_is_needed() -> None:
    none, given = NoKeyring(), GivenSecrets({"KEY": "k1"})
    assert resolve(entry(), stored(), none, given).changed == ()
    assert resolve(entry(upstream_api_key=KEY), stored("k0"), none, NOTHING).changed == ()
    for wanted in (entry(upstream_api_key=KEY), entry(extra_headers={"x-a": "b"})):
        with pytest.raises(Conflict, match="FASTLLM_ENCRYPTION_KEY is needed"):
            resolve(wanted, stored("k0", {"x-a": "a"}), none, given)


def test_secrets_are_in_no_repr() -> None:
    found = resolve(entry(upstream_api_key=KEY), None, RING, GivenSecrets({"KEY": "canary"}))
    assert found.given() == ("canary", {})
    assert "canary" not in repr(found)
