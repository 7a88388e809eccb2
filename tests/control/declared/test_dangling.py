"""Names that outlive what they name: a file says them too, and the plan warns of each."""

from __future__ import annotations

import pytest

from fastllm_control.transaction import Database
from tests.fakes.access import Access
from tests.fakes.declared import CLOSED, Files

FILE = f"""\
format: 1
providers:
- {{name: p, api_base: '{CLOSED}'}}
provider_models:
- {{name: m, backends: [{{provider: p, upstream_model: u}}]}}
pools:
- name: local
  members: [{{provider_model: m}}, {{provider_model: gone model, weight: 2}}]
frontend_models:
- name: assistant
  targets: [{{target: local}}, {{target: gone target}}]
  rules:
  - {{action: jump, jump: gone, tag: t}}
  - {{targets: [{{target: m}}], when: {{roles: [gone role], principals: [gone principal]}}}}
fallback_model: gone fallback
roles:
- {{name: r, permissions: [{{verb: "model:invoke", resource: model/gone}}]}}
"""
WARNINGS = (
    "the provider p does not answer: the connection is refused",
    "the pool local has the member gone model, which is not there (yet)",
    "the frontend model assistant has the target gone target, which is not there (yet)",
    "the frontend model assistant jumps to gone, which is not there (yet)",
    "the fallback is gone fallback, which is not there (yet)",
)


@pytest.fixture
def files(database: Database) -> Files:
    return Files(database)


async def test_into_an_empty_database_and_out_again(files: Files) -> None:
    assert (await files.apply(FILE)).warnings == WARNINGS
    text = await files.export()
    for name in ("gone model", "jump: gone\n", "fallback_model: gone fallback"):
        assert name in text
    again = await files.apply(text, prune=True, dry_run=True)
    assert [step for step in again.steps if step.kind != "principal"] == []
    assert again.warnings == WARNINGS[1:]


async def test_what_comes_later_is_led_to(files: Files) -> None:
    await files.apply(FILE)
    later = "format: 1\nfrontend_models: [{name: gone}, {name: gone fallback}]\n"
    await files.apply(later + "provider_models: [{name: gone model}]\n")
    assert (await files.apply(FILE)).warnings == (WARNINGS[2],)
    served = await files.served()
    assert served["fallback_model"] == "gone fallback"


async def test_a_jump_that_comes_to_lead_somewhere_closes_no_circle(files: Files, access: Access) -> None:
    await files.apply(FILE)
    events = await access.audited()
    circle = "format: 1\nfrontend_models: [{name: gone, rules: [{action: jump, jump: assistant}]}]\n"
    with pytest.raises(Exception, match="these jumps would lead in a circle: gone → assistant → gone"):
        await files.apply(circle)
    assert await access.audited() == events


async def test_what_the_file_prunes_may_still_be_named(files: Files) -> None:
    await files.apply(FILE)
    gone = FILE.replace("- {name: m, backends: [{provider: p, upstream_model: u}]}", "- {name: n}")
    plan = await files.apply(gone, prune=True)
    assert "- provider model m (with 1 backend)" in plan.printed().splitlines()
    assert "the pool local has the member m, which is not there (yet)" in plan.warnings
