from __future__ import annotations

import pytest

from fastllm_proxy.authorise import authorise, nameable
from fastllm_proxy.errors import Refused
from fastllm_proxy.view import Caller
from fastllm_shared.keys import digest_of
from tests.fakes.edge import KEY, NARROW_KEY, example_view

VIEW = example_view()


def _caller(key: str) -> Caller:
    return VIEW.callers[digest_of(key)]


def test_a_granted_model_is_returned() -> None:
    assert authorise(VIEW, _caller(KEY), "assistant") is VIEW.models["assistant"]
    assert authorise(VIEW, _caller(KEY), "org/model") is VIEW.models["org/model"]
    assert authorise(VIEW, _caller(NARROW_KEY), "org/model") is VIEW.models["org/model"]


def test_without_a_grant_it_is_403() -> None:
    with pytest.raises(Refused) as refusal:
        authorise(VIEW, _caller(NARROW_KEY), "assistant")
    assert (refusal.value.status, refusal.value.code) == (403, "model_access_denied")
    assert refusal.value.param == "model"


@pytest.mark.parametrize("model", ["", "nothing", "qwen", "Assistant", "assistant ", "org%2Fmodel", "*"])
@pytest.mark.parametrize("key", [KEY, NARROW_KEY])
def test_any_other_name_is_404_and_tells_nothing(key: str, model: str) -> None:
    with pytest.raises(Refused) as refusal:
        authorise(VIEW, _caller(key), model)
    assert (refusal.value.status, refusal.value.code) == (404, "model_not_found")
    assert refusal.value.message == "the requested model does not exist"


def test_nameable_models_come_by_name() -> None:
    assert [model.name for model in nameable(VIEW, _caller(KEY))] == ["assistant", "org/model"]
    assert [model.name for model in nameable(VIEW, _caller(NARROW_KEY))] == ["org/model"]
