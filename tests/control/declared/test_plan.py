"""From one document to another: which steps, in which order. Pure."""

from __future__ import annotations

from typing import Any

import pytest

from fastllm_control.access import Permission
from fastllm_control.declared.document import (
    BackendReference,
    DeclaredBackend,
    DeclaredFrontend,
    DeclaredLimits,
    DeclaredMember,
    DeclaredModel,
    DeclaredPool,
    DeclaredPrincipal,
    DeclaredProvider,
    DeclaredRole,
    Document,
)
from fastllm_control.declared.export import Current
from fastllm_control.declared.plan import Plan, Step, plan

EMPTY = Document(
    format=1,
    providers=(),
    provider_models=(),
    pools=(),
    frontend_models=(),
    fallback_model=None,
    roles=(),
    principals=(),
)
LEASED = DeclaredMember(
    backend=BackendReference(provider="node-1", provider_model="m", upstream_model="m"), weight=2
)


def there(document: Document = EMPTY, **more: Any) -> Current:
    plain: dict[str, Any] = {
        "sealed": {},
        "leased": frozenset(),
        "leased_backends": frozenset(),
        "leased_members": {},
        "backend_ids": {},
        "learned_lengths": frozenset(),
        "built_in": frozenset(),
        "keys": {},
    }
    return Current(document=document, **(plain | more))


def printed(current: Current, wanted: Document, *, prune: bool = False) -> list[str]:
    return [str(step) for step in plan(current, wanted, {}, prune=prune)]


WHOLE = Document(
    format=1,
    providers=(DeclaredProvider(name="p", api_base="http://p/v1"),),
    provider_models=(DeclaredModel(name="m", backends=(DeclaredBackend(provider="p", upstream_model="u"),)),),
    pools=(DeclaredPool(name="x", members=(DeclaredMember(provider_model="m"),)),),
    frontend_models=(DeclaredFrontend(name="f"),),
    fallback_model="f",
    roles=(DeclaredRole(name="r", permissions=(Permission("usage:read"), Permission("config:read"))),),
    principals=(DeclaredPrincipal(name="a", roles=("r", "viewer")),),
)


def test_what_is_referred_to_comes_first_and_goes_last() -> None:
    assert printed(there(), WHOLE) == [
        "+ provider p",
        "+ provider model m",
        "+ pool x",
        "+ frontend model f",
        "+ role r",
        "+ principal a",
        "~ fallback model f",
    ]
    assert printed(there(WHOLE), EMPTY, prune=True) == [
        "~ fallback model (cleared)",
        "- principal a",
        "- role r",
        "- frontend model f",
        "- pool x",
        "- provider model m (with 1 backend)",
        "- provider p (with its backends of m)",
    ]
    assert printed(there(WHOLE), WHOLE, prune=True) == []
    assert printed(there(WHOLE), Document(format=1), prune=True) == []


def test_what_means_the_same_is_the_same() -> None:
    again = Document(
        format=1,
        providers=(DeclaredProvider(name="p", api_base="http://p/v1/"),),
        roles=(DeclaredRole(name="r", permissions=(Permission("config:read"), Permission("usage:read"))),),
        principals=(DeclaredPrincipal(name="a", roles=("viewer", "r", "r"), limits=DeclaredLimits()),),
    )
    assert printed(there(WHOLE), again) == []


def test_a_name_that_moves_between_pools_and_models_is_free_first() -> None:
    wanted = Document(format=1, provider_models=(DeclaredModel(name="x"),), pools=(DeclaredPool(name="m"),))
    assert printed(there(WHOLE), wanted, prune=True) == [
        "- pool x",
        "- provider model m (with 1 backend)",
        "+ provider model x",
        "+ pool m",
    ]


def test_backends_are_told_apart_by_provider_and_upstream_name() -> None:
    backends = (
        DeclaredBackend(provider="p", upstream_model="u", unhealthy_after=2, state="draining"),
        DeclaredBackend(provider="p", upstream_model="v"),
    )
    wanted = Document(format=1, provider_models=(DeclaredModel(name="m", backends=backends),))
    assert printed(there(WHOLE), wanted) == [
        "~ backend p/m as u: unhealthy_after, state",
        "+ backend p/m as v",
    ]
    assert printed(there(WHOLE), Document(format=1, provider_models=(DeclaredModel(name="m"),))) == [
        "- backend p/m as u"
    ]


def test_secrets_change_as_the_caller_says() -> None:
    wanted = Document(format=1, providers=WHOLE.providers)
    (step,) = plan(there(WHOLE), wanted, {"p": ("upstream_api_key",)}, prune=False)
    assert step == Step("update", "provider", "p", ("upstream_api_key",))


def test_leased_members_and_learned_lengths_are_nobodys_difference() -> None:
    current = there(WHOLE, leased_members={"x": (LEASED,)}, learned_lengths=frozenset({"m"}))
    assert printed(current, WHOLE, prune=True) == []
    # A file may name one, where it likes.
    named = Document(
        format=1, pools=(DeclaredPool(name="x", members=(LEASED, DeclaredMember(provider_model="m"))),)
    )
    assert printed(current, named) == []
    heavier = DeclaredMember(backend=LEASED.backend, weight=3)
    moved = Document(format=1, pools=(DeclaredPool(name="x", members=(heavier,)),))
    assert printed(current, moved) == ["~ pool x: members"]
    length = Document(format=1, provider_models=(DeclaredModel(name="m", context_length=5),))
    assert "~ provider model m: context_length" in printed(current, length)


@pytest.mark.parametrize(("keys", "note"), [(0, ""), (1, " (with 1 key)"), (3, " (with 3 keys)")])
def test_a_principal_takes_its_keys_along_and_the_plan_says_so(keys: int, note: str) -> None:
    current = there(WHOLE, keys={"a": keys})
    assert printed(current, Document(format=1, principals=()), prune=True) == [f"- principal a{note}"]


def test_models_that_leased_providers_serve_stay() -> None:
    current = there(WHOLE, leased_backends=frozenset({("node-1", "m", "m")}))
    assert printed(current, Document(format=1, provider_models=()), prune=True) == []


def test_a_plan_as_it_is_printed() -> None:
    assert Plan().printed() == "= nothing to change\n"
    found = Plan((Step("update", "pool", "x", ("policy", "members")),), ("it rains",))
    assert found.printed() == "~ pool x: policy, members\n! it rains\n"
