"""Steps through services: what a refusal says, and that new states keep their reasons."""

from __future__ import annotations

import pytest

from fastllm_control.declared.performing import located
from fastllm_control.declared.problems import Lines
from fastllm_control.errors import Conflict, Invalid
from tests.fakes.access import Access
from tests.fakes.declared import CLOSED, Files

LINES = Lines({"": 1, "roles": 2, "roles[0]": 3, "roles[0].name": 4})


def test_a_refusal_keeps_its_kind_and_gets_line_and_field() -> None:
    found = located(Conflict("already_exists", "it is there", "name"), LINES, "roles[0]")
    assert (type(found), found.code, found.field) == (Conflict, "already_exists", "roles[0].name")
    assert found.message == "line 4, roles[0].name: it is there"
    assert located(Conflict("a", "b"), LINES, "roles[7]").message == "line 2, roles[7]: b"
    assert located(Conflict("a", "b"), Lines(), "").message == "b"


async def test_a_new_state_keeps_the_reason_that_the_file_says(files: Files, access: Access) -> None:
    text = (
        f"format: 1\nproviders:\n- {{name: p, api_base: '{CLOSED}', state: draining, state_reason: why}}\n"
        "provider_models:\n- name: m\n  backends:\n"
        "  - {provider: p, upstream_model: u, state: draining, state_reason: why}\n"
    )
    await files.apply(text)
    for state in ("disabled", "draining"):
        changed = text.replace("draining", state)
        await files.apply(changed)
        assert (await files.apply(changed)).steps == ()
        rows = await access.rows(
            "SELECT state, state_reason FROM providers UNION ALL SELECT state, state_reason FROM backends"
        )
        assert {tuple(row) for row in rows} == {(state, "why")}


async def test_a_provider_that_moves_takes_no_secret_along(files: Files, access: Access) -> None:
    text = f"format: 1\nproviders:\n- name: p\n  api_base: {CLOSED}\n  upstream_api_key: {{env: KEY}}\n"
    await files.apply(text, {"KEY": "canary"})
    moved = text.replace("127.0.0.1", "127.0.0.2")
    with pytest.raises(Invalid) as refused:
        await files.apply(moved)
    assert refused.value.message.startswith("line 5, providers[0].upstream_api_key: what is stored was given")
    plan = await files.apply(moved, {"KEY": "another"})
    assert plan.printed().splitlines()[0] == "~ provider p: api_base, upstream_api_key"
    events = await access.rows("SELECT changes FROM audit_events")
    assert "canary" not in repr(events)
    assert "another" not in repr(events)
