from __future__ import annotations

import pytest

from fastllm_proxy.authenticate import authenticate
from fastllm_proxy.client_headers import ClientHeaders
from fastllm_proxy.errors import Refused
from tests.fakes.edge import EXPIRED_KEY, KEY, NARROW_KEY, example_view

NOW = 2_000.0
KEY_BYTES = KEY.encode()


@pytest.mark.parametrize(
    "header",
    [
        (b"Authorization", b"Bearer " + KEY_BYTES),
        (b"authorization", b"bearer " + KEY_BYTES),
        (b"AUTHORIZATION", b"BEARER   " + KEY_BYTES),
        (b"x-api-key", KEY_BYTES),
        (b"X-Api-Key", KEY_BYTES),
        (b"api-key", KEY_BYTES),
        (b"Api-Key", KEY_BYTES),
    ],
)
def test_a_key_is_found_in_each_header(header: tuple[bytes, bytes]) -> None:
    caller = authenticate(example_view(), ClientHeaders(((b"Host", b"x"), header, (b"Accept", b"*/*"))), NOW)
    assert caller.key.id == "k1"


REFUSED: list[tuple[tuple[bytes, bytes], ...]] = [
    (),
    ((b"Authorization", b"Bearer sk-unknown"),),
    ((b"Authorization", b"Bearer " + EXPIRED_KEY.encode()),),
    ((b"Authorization", b"Bearer "),),
    ((b"Authorization", b""),),
    ((b"Authorization", KEY_BYTES),),
    ((b"Authorization", b"Basic " + KEY_BYTES),),
    ((b"Authorization", b"Bearer " + KEY_BYTES + b"x"),),
    ((b"x-api-key", b"Bearer " + KEY_BYTES),),
    ((b"x-api-key", b"\xff\xfe"),),
    ((b"x-goog-api-key", KEY_BYTES),),
    ((b"cookie", b"api-key=" + KEY_BYTES),),
    ((b"x-request-id", KEY_BYTES),),
]


def test_all_refusals_read_alike() -> None:
    view = example_view()
    seen = set()
    for headers in REFUSED:
        with pytest.raises(Refused) as refusal:
            authenticate(view, ClientHeaders(headers), NOW)
        refused = refusal.value
        seen.add((refused.status, refused.code, refused.message, refused.param, refused.headers))
    ((status, code, message, _, extra),) = seen
    assert (status, code, extra) == (401, "invalid_api_key", (("www-authenticate", "Bearer"),))
    assert "sk-" not in message


def test_the_first_known_of_several_keys_counts() -> None:
    headers = ClientHeaders(
        (
            (b"Authorization", b"Bearer placeholder"),
            (b"x-api-key", NARROW_KEY.encode()),
            (b"api-key", KEY_BYTES),
        )
    )
    assert authenticate(example_view(), headers, NOW).key.id == "k2"


def test_a_key_expires_at_its_second() -> None:
    headers = ClientHeaders(((b"api-key", EXPIRED_KEY.encode()),))
    assert authenticate(example_view(), headers, 999.999).key.id == "k3"
    with pytest.raises(Refused):
        authenticate(example_view(), headers, 1_000.0)
