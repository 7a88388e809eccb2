"""The database as a file: everything that a file can say, and nothing that is secret."""

from __future__ import annotations

import pytest

from fastllm_control.declared.export import current, export
from fastllm_control.declared.references import NoKeyring
from fastllm_control.declared.text import read
from fastllm_control.errors import Conflict
from fastllm_control.secrets import Keyring
from tests.fakes.access import Access
from tests.fakes.configuration import Stock
from tests.fakes.declared import Files


async def test_an_empty_database_is_a_file_of_empty_sections(files: Files) -> None:
    sections = ("providers", "provider_models", "pools", "frontend_models", "roles", "principals")
    text = await files.export()
    assert all(f"{name}: []\n" in text for name in sections)
    assert "fallback_model: null\n" in text
    # So a file that was exported manages everything.
    assert read(text).document.roles == ()


async def test_secrets_are_references_with_names_of_their_own(files: Files, stock: Stock) -> None:
    headers = {"X-Team": "canary-header"}
    await stock.provider("gpu 1", api_base="http://a/v1", upstream_api_key="canary-1", extra_headers=headers)
    await stock.provider("gpu-1", upstream_api_key="canary-2")
    await stock.provider("Ünlü", api_base="http://b/v1", upstream_api_key="canary-3")
    await stock.provider("open")
    text = await files.export()
    assert "canary" not in text
    document = read(text).document
    assert document.providers is not None
    references = {entry.name: entry.upstream_api_key for entry in document.providers}
    names = {name: reference and reference.env for name, reference in references.items()}
    assert names == {
        "gpu 1": "FASTLLM_CREDENTIAL_GPU_1",
        "gpu-1": "FASTLLM_CREDENTIAL_GPU_1_2",
        "Ünlü": "FASTLLM_CREDENTIAL_NL",
        "open": None,
    }
    assert "X-Team:\n      env: FASTLLM_HEADER_GPU_1_X_TEAM\n" in text


async def test_the_order_is_that_of_names(files: Files, stock: Stock) -> None:
    for name in ("b", "c", "a"):
        await stock.provider(name)
        await stock.model(f"model-{name}", *sorted({"b", name}, reverse=True))
        await stock.frontend(f"front-{name}", f"model-{name}")
    text = await files.export()
    document = read(text).document
    assert [entry.name for entry in document.providers or ()] == ["a", "b", "c"]
    assert [entry.name for entry in document.frontend_models or ()] == ["front-a", "front-b", "front-c"]
    models = {
        entry.name: [one.provider for one in entry.backends] for entry in document.provider_models or ()
    }
    assert models == {"model-b": ["b"], "model-c": ["b", "c"], "model-a": ["a", "b"]}
    assert await files.export() == text


async def test_what_registers_itself_is_left_out_and_known(files: Files, stock: Stock) -> None:
    await stock.provider("node-1", kind="dynamic")
    await stock.provider("gpu-1")
    await stock.model("qwen", "gpu-1", "node-1")
    text = await files.export()
    assert "node-1" not in text
    async with files.database.read() as session:
        found = await current(session)
    assert found.leased == {"node-1"}
    assert found.leased_backends == {("node-1", "qwen", "qwen")}
    assert set(found.backend_ids) == {("node-1", "qwen", "qwen"), ("gpu-1", "qwen", "qwen")}
    assert set(found.sealed) == {"gpu-1"}
    assert found.built_in == {"admin", "operator", "inference", "viewer"}


async def test_principals_without_their_keys_and_passwords(files: Files, access: Access) -> None:
    await access.admin("root")
    made = await access.key("root")
    text = await files.export()
    assert "- name: root\n  kind: user\n  roles:\n  - admin\n" in text
    assert made.key not in text
    assert "argon2" not in text
    async with files.database.read() as session:
        assert (await current(session)).keys == {"root": 1}


async def test_header_names_take_the_key_that_sealed_them(files: Files, stock: Stock) -> None:
    await stock.provider("gpu-1", extra_headers={"x-a": "canary"})
    for ring, what in (
        (NoKeyring(), "FASTLLM_ENCRYPTION_KEY is needed"),
        (Keyring.parse("cd" * 32), "gpu-1"),
    ):
        async with files.database.read() as session:
            with pytest.raises(Conflict, match=what):
                await export(session, ring)
