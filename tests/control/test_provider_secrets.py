from __future__ import annotations

import pytest

from fastllm_control.provider_secrets import open_credential, open_headers, seal_credential, seal_headers
from fastllm_control.secrets import Keyring, Undecryptable
from fastllm_shared.ids import uuid7

RING = Keyring.parse("ab" * 32)


def test_what_is_sealed_for_a_provider_opens_for_it() -> None:
    row = uuid7()
    sealed = seal_credential(RING, row, "sk-upstream")
    assert sealed is not None
    assert "sk-upstream" not in sealed
    assert open_credential(RING.open, row, sealed) == "sk-upstream"
    headers = {"x-org": "42", "x-key": "é"}
    assert open_headers(RING.open, row, seal_headers(RING, row, headers)) == headers


def test_nothing_is_stored_as_nothing() -> None:
    row = uuid7()
    assert seal_credential(RING, row, None) is None
    assert open_credential(RING.open, row, None) is None
    assert seal_headers(RING, row, {}) is None
    assert open_headers(RING.open, row, None) == {}


def test_neither_opens_for_another_row_or_as_the_other() -> None:
    row = uuid7()
    credential, headers = seal_credential(RING, row, "{}"), seal_headers(RING, row, {"a": "b"})
    with pytest.raises(Undecryptable):
        open_credential(RING.open, uuid7(), credential)
    with pytest.raises(Undecryptable):
        open_headers(RING.open, row, credential)
    with pytest.raises(Undecryptable):
        open_credential(RING.open, row, headers)
