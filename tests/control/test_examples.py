"""The examples are bodies that their operations take."""

from __future__ import annotations

import msgspec
import pytest

from fastllm_control.api.everything import OPERATIONS
from fastllm_control.decoding import decode_body
from fastllm_control.examples import EXAMPLES

BY_NAME = {f"{one.method} {one.path}": one for one in OPERATIONS}


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_is_taken(name: str) -> None:
    decode_body(msgspec.json.Decoder(BY_NAME[name].body), msgspec.json.encode(EXAMPLES[name]))


def test_every_body_of_the_admin_api_has_one() -> None:
    needed = {name for name, one in BY_NAME.items() if one.body is not None and one.requires != "proxy"}
    assert needed <= EXAMPLES.keys()
