"""Names, and references by id or name."""

from __future__ import annotations

from uuid import uuid4

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastllm_control.errors import Invalid, NotFound
from fastllm_control.naming import Name, id_of, is_named, missing, refuse_uuid, required_id
from fastllm_control.tables.access import Role


@pytest.mark.parametrize("name", ["a", "a b", "org/model:tag", "x" * 200, "ü", "..", "a%2Fb", "🦙"])
def test_names(name: str) -> None:
    assert msgspec.convert(name, Name) == name


@pytest.mark.parametrize("name", ["", " a", "a ", "a\n", "\ta", "a\x7fb", "a\0b", "x" * 201, "\u2003a"])
def test_no_names(name: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(name, Name)


@given(st.text(max_size=30))
def test_a_name_survives_being_stripped(text: str) -> None:
    try:
        name = msgspec.convert(text, Name)
    except msgspec.ValidationError:
        return
    assert name == name.strip()
    assert "\0" not in name
    assert "\n" not in name


def test_a_name_that_reads_as_an_id_is_refused() -> None:
    with pytest.raises(Invalid) as refused:
        refuse_uuid(str(uuid4()).upper(), "new_name")
    assert refused.value.field == "new_name"
    refuse_uuid(uuid4().hex)


def test_references() -> None:
    identity = uuid4()
    assert id_of(str(identity)) == identity
    assert id_of("team-a") is None
    assert "roles.id" in str(is_named(str(identity), Role.id, Role.name))
    assert "roles.name" in str(is_named("team-a", Role.id, Role.name))
    assert required_id(str(identity), "key") == identity
    with pytest.raises(NotFound) as refused:
        required_id("team-a", "key")
    assert refused.value.code == "key_not_found"


def test_what_is_missing_is_named_in_few_words() -> None:
    refused = missing("provider model", "x" * 10_000, "target")
    assert (refused.code, refused.field) == ("provider_model_not_found", "target")
    assert len(refused.message) < 300
