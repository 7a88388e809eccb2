"""What is wrong with documents of the right shape: all of it, with line and field, and nothing is done."""

from __future__ import annotations

import pytest

from fastllm_control.declared.checking import provider_form
from fastllm_control.declared.document import DeclaredProvider
from fastllm_control.declared.problems import Broken
from fastllm_control.repositories import providers
from fastllm_shared.ids import uuid7
from tests.fakes.access import Access
from tests.fakes.declared import CLOSED, Files

PROVIDER = f"format: 1\nproviders:\n- name: p\n  api_base: {CLOSED}\n"
MODEL = PROVIDER + "provider_models:\n- name: m\n  backends:\n  - {provider: p, upstream_model: u}\n"
FRONTEND = "format: 1\nfrontend_models:\n- name: f\n"
RULE = FRONTEND + "  rules:\n  - "

BROKEN: dict[str, tuple[str, str]] = {
    "id for a name": (
        f"format: 1\nroles:\n- name: {uuid7()}\n",
        "line 3, roles[0].name: a name of a UUID's shape could be taken for an id: choose another",
    ),
    "name twice": (
        "format: 1\nroles:\n- name: a\n- name: b\n- name: a\n",
        "line 5, roles[2].name: 'a' is the name of roles[0] already",
    ),
    "name of a model and a pool": (
        MODEL + "pools:\n- name: m\n",
        "line 10, pools[0].name: 'm' is the name of provider_models[0] already",
    ),
    "forbidden address": (
        "format: 1\nproviders:\n- name: p\n  api_base: http://169.254.169.254/v1\n",
        "line 4, providers[0].api_base: the address",
    ),
    "no address": (
        "format: 1\nproviders:\n- name: p\n  api_base: gpu-1\n",
        "line 4, providers[0].api_base: the",
    ),
    "password in an address": (
        "format: 1\nproviders:\n- name: p\n  api_base: http://u:canary@p/v1\n",
        "line 4, providers[0].api_base: the address",
    ),
    "certificate": (PROVIDER + "  ca: none\n", "line 5, providers[0].ca: must be one or more certificates"),
    "credential as header": (
        PROVIDER + "  extra_headers:\n    Authorization: {env: A}\n",
        "line 6, providers[0].extra_headers.Authorization: that header carries the credential",
    ),
    "secret that is nowhere": (
        PROVIDER + "  upstream_api_key: {env: NOWHERE}\n",
        "line 5, providers[0].upstream_api_key: the environment variable NOWHERE is not set",
    ),
    "header that is nowhere": (
        PROVIDER + "  extra_headers:\n    x-a: {file: nowhere}\n",
        "line 6, providers[0].extra_headers.x-a: the file nowhere is not set",
    ),
    "unknown provider": (
        MODEL.replace("provider: p", "provider: q"),
        "line 8, provider_models[0].backends[0].provider: there is no provider 'q'",
    ),
    "backend twice": (
        MODEL + "  - {provider: p, upstream_model: u}\n",
        "line 9, provider_models[0].backends[1].upstream_model: p serves this model as 'u' already",
    ),
    "id as a member": (
        f"format: 1\npools:\n- name: x\n  members:\n  - provider_model: {uuid7()}\n",
        "line 5, pools[0].members[0].provider_model: there is no provider model",
    ),
    "pool in a pool": (
        "format: 1\npools:\n- name: x\n  members:\n  - provider_model: y\n- name: y\n",
        "line 5, pools[0].members[0].provider_model: 'y' is a pool",
    ),
    "unknown backend": (
        MODEL
        + "pools:\n- name: x\n  members:\n  - backend: {provider: p, provider_model: m, upstream_model: v}\n",
        "line 12, pools[0].members[0].backend: 'p' does not serve 'm' as 'v'",
    ),
    "member twice": (
        MODEL + "pools:\n- name: x\n  members:\n  - provider_model: m\n  - provider_model: m\n",
        "line 13, pools[0].members[1]: it is a member already: give it one weight",
    ),
    "target twice": (
        FRONTEND + "  targets:\n  - target: a\n  - target: a\n",
        "line 6, frontend_models[0].targets[1].target: 'a' is a target already",
    ),
    "reserved name": (
        "format: 1\nfrontend_models:\n- name: '*'\n",
        "line 3, frontend_models[0].name: a grant on `model/*` means every model",
    ),
    "jump without a destination": (
        RULE + "action: jump\n",
        "line 5, frontend_models[0].rules[0].jump: a rule",
    ),
    "deny without status": (
        RULE + "action: deny\n",
        "line 5, frontend_models[0].rules[0].deny_status: a rule",
    ),
    "status without deny": (
        RULE + "{deny_status: 403, targets: [{target: a}]}\n",
        "line 5, frontend_models[0].rules[0].deny_status: is for rules whose action is `deny`",
    ),
    "jump to an id": (
        RULE + f"{{action: jump, jump: {uuid7()}}}\n",
        "line 5, frontend_models[0].rules[0].jump: there is no frontend model",
    ),
    "jump to itself": (
        RULE + "{action: jump, jump: f}\n",
        "line 5, frontend_models[0].rules[0].jump: these jumps would lead in a circle: f → f",
    ),
    "conditions that nothing fulfils": (
        RULE + "targets: [{target: a}]\n    when:\n      min_prompt_tokens: 5\n      max_prompt_tokens: 4\n",
        "line 7, frontend_models[0].rules[0].when.min_prompt_tokens: is above max_prompt_tokens",
    ),
    "unknown zone": (
        RULE + "targets: [{target: a}]\n    when: {after: 22:00, timezone: Mars/Base}\n",
        "line 6, frontend_models[0].rules[0].when.timezone: not a zone",
    ),
    "id as the fallback": (
        f"format: 1\nfallback_model: {uuid7()}\n",
        "line 2, fallback_model: there is no frontend model",
    ),
    "built-in role": (
        "format: 1\nroles:\n- name: admin\n",
        "line 3, roles[0].name: 'admin' is one of the built-in",
    ),
    "permission on what it is not on": (
        "format: 1\nroles:\n- name: r\n  permissions:\n  - {verb: 'config:read', resource: model/a}\n",
        "line 5, roles[0].permissions[0].resource: config:read is held on `*`",
    ),
    "unknown role": (
        "format: 1\nprincipals:\n- name: a\n  roles: [viewer, nobody]\n",
        "line 4, principals[0].roles[1]: there is no role 'nobody'",
    ),
    "budget without a cap": (
        "format: 1\nprincipals:\n- name: a\n  budget: {window: daily}\n",
        "line 4, principals[0].budget.tokens_total: a budget caps tokens_total",
    ),
    "budget in no zone": (
        "format: 1\nprincipals:\n- name: a\n  budget: {tokens_total: 5, timezone: Mars/Base}\n",
        "line 4, principals[0].budget.timezone: not a time zone",
    ),
    "kind of a principal": (
        "format: 1\nprincipals:\n- name: standing\n  kind: user\n",
        "line 4, principals[0].kind: 'standing' is of the kind service_account, which cannot be changed",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_what_is_broken_is_refused_and_changes_nothing(name: str, files: Files, access: Access) -> None:
    await access.principal("standing", kind="service_account")
    before = (await access.audited(), await access.version(), await files.export())
    text, message = BROKEN[name]
    with pytest.raises(Exception, match="line ") as refused:
        await files.apply(text)
    assert message in str(refused.value)
    assert "canary" not in str(refused.value)
    assert (await access.audited(), await access.version(), await files.export()) == before


async def test_all_that_can_be_found_together_is_said_together(files: Files) -> None:
    text = MODEL.replace("provider: p", "provider: q") + f"fallback_model: {uuid7()}\nroles:\n- name: admin\n"
    with pytest.raises(Broken) as refused:
        await files.apply(text)
    assert [problem.line for problem in refused.value.problems] == [8, 9, 11]


async def test_what_is_to_be_pruned_is_not_there_to_be_referred_to(files: Files) -> None:
    await files.apply(MODEL)
    text = MODEL.replace("name: p", "name: other")
    await files.apply(text, dry_run=True)
    with pytest.raises(Broken, match="there is no provider 'p'"):
        await files.apply(text, prune=True)


async def test_leased_providers_are_not_declared(files: Files) -> None:
    await files.apply(PROVIDER)
    async with files.database.begin(files.actor) as tx:
        row = await providers.find(tx.session, "p")
        assert row is not None
        row.kind = "dynamic"
    with pytest.raises(Broken) as refused:
        await files.apply(MODEL)
    assert [problem.field for problem in refused.value.problems] == [
        "providers[0].name",
        "provider_models[0].backends[0].provider",
    ]


async def test_a_kind_of_provider_stays(files: Files) -> None:
    await files.apply(PROVIDER)
    with pytest.raises(Broken, match=r"line 5, providers\[0\].kind: a static provider cannot become cloud"):
        await files.apply(PROVIDER + "  kind: cloud\n")


def test_a_form_holds_all_that_a_file_can_say() -> None:
    entry = DeclaredProvider(name="p", api_base="http://p/", state="disabled", auth_scheme="")
    form = provider_form(entry, "key", {"x-a": "b"})
    assert (form.upstream_api_key, form.extra_headers) == ("key", {"x-a": "b"})
    assert (form.state, form.auth_scheme) == ("disabled", "")
