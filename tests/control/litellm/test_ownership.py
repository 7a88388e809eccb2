"""What imports made."""

from __future__ import annotations

import pytest

from fastllm_control.access import Actor
from fastllm_control.declared.document import DeclaredFrontend, DeclaredProvider, Document, SecretReference
from fastllm_control.errors import Conflict
from fastllm_control.litellm import ownership
from fastllm_control.litellm.ownership import Owned
from fastllm_control.transaction import Database

JOB = Actor(name="import", via="job")


def document(*names: str) -> Document:
    return Document(format=1, frontend_models=tuple(DeclaredFrontend(name=name) for name in names))


def test_what_vanished_and_what_is_owned_then() -> None:
    owned = Owned({"frontend_model": ("a", "b"), "role": ("r",)}, ("00",))
    vanished = list(owned.vanished(document("b", "c")))
    assert vanished == [("role", "r"), ("frontend_model", "a")]
    after = owned.after(document("b", "c"), vanished[1:])
    assert {kind: names for kind, names in after.items() if names} == {
        "frontend_model": ("b", "c"), "role": ("r",),
    }  # fmt: skip


async def test_it_is_remembered(database: Database) -> None:
    async with database.read() as session:
        assert await ownership.read(session) == Owned()
    for names in (("a",), ("b", "c")):
        async with database.begin(JOB) as tx:
            await ownership.write(tx.session, Owned({"role": names}))
        async with database.read() as session:
            assert await ownership.read(session) == Owned({"role": names})


def test_what_others_made_is_refused_unless_it_is_the_same() -> None:
    there = document("mine", "same", "theirs")
    changed = Document(
        format=1,
        frontend_models=(
            DeclaredFrontend(name="mine", policy="cheapest"),
            DeclaredFrontend(name="same"),
            DeclaredFrontend(name="theirs", policy="cheapest"),
        ),
    )
    with pytest.raises(Conflict, match="frontend model theirs"):
        ownership.refuse_others(Owned({"frontend_model": ("mine",)}), changed, there)
    ownership.refuse_others(Owned({"frontend_model": ("mine", "theirs")}), changed, there)


def test_a_credential_is_never_put_into_what_others_made() -> None:
    entry = DeclaredProvider(name="p", api_base="http://a", upstream_api_key=SecretReference(env="A"))
    same = Document(format=1, providers=(entry,))
    with pytest.raises(Conflict, match="provider p"):
        ownership.refuse_others(Owned(), same, same)
