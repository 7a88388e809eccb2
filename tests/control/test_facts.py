"""Who sent a request, and whether another site's page did."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from starlette.datastructures import Headers

from fastllm_control.errors import Forbidden
from fastllm_control.facts import Facts, facts_of, refuse_other_sites

TRUSTED = (ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("fd00::/8"))


def facts(peer: str, trusted: bool = True, scheme: str = "http", **headers: str) -> Facts:
    lines = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope: dict[str, Any] = {"client": (peer, 1), "headers": lines, "scheme": scheme}
    return facts_of(scope, TRUSTED if trusted else ())


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("203.0.113.9", "198.51.100.1", "203.0.113.9"),
        ("10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "198.51.100.1, 10.2.2.2", "198.51.100.1"),
        ("10.0.0.1", "6.6.6.6, 198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "10.3.3.3, 10.2.2.2", "10.3.3.3"),
        ("10.0.0.1", "made up, 10.2.2.2", "10.2.2.2"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("fd00::1", "2001:db8::1", "2001:db8::1"),
        ("not an address", "198.51.100.1", "not an address"),
    ],
)
def test_the_client_is_the_last_hop_that_nobody_trusts(peer: str, forwarded: str, client: str) -> None:
    assert facts(peer, x_forwarded_for=forwarded).address == client


def test_nobody_is_trusted_unless_named() -> None:
    found = facts("10.0.0.1", trusted=False, x_forwarded_for="198.51.100.1", x_forwarded_proto="https")
    assert (found.address, found.secure) == ("10.0.0.1", False)


def test_tls_may_have_ended_at_a_trusted_proxy() -> None:
    assert facts("10.0.0.1", x_forwarded_proto="https").secure
    assert not facts("10.0.0.1", scheme="https", x_forwarded_proto="http").secure
    assert facts("10.0.0.1", scheme="https").secure
    assert not facts("203.0.113.9", x_forwarded_proto="https").secure


@pytest.mark.parametrize("given", ["abc-123", "A" * 128, "a.b_c:d"])
def test_a_sane_request_id_is_kept(given: str) -> None:
    assert facts("10.0.0.1", x_request_id=given).request_id == given


@pytest.mark.parametrize("given", ["", "a b", "A" * 129, "a\x1b[31m", "ü"])
def test_any_other_is_replaced(given: str) -> None:
    assert facts("10.0.0.1", x_request_id=given).request_id != given


SITE = Facts("r", "10.0.0.1", "gate.example:4001", secure=False)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://gate.example:4001"},
        {"origin": "https://GATE.example:4001"},
        {"sec-fetch-site": "same-origin", "origin": "http://gate.example:4001"},
        {"sec-fetch-site": "none"},
    ],
)
def test_own_pages_and_programs_pass(headers: dict[str, str]) -> None:
    refuse_other_sites(Headers(headers), SITE)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://gate.example"},
        {"origin": "http://gate.example:4002"},
        {"origin": "http://gate.example:4001.evil.example"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": ""},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site", "origin": "http://gate.example:4001"},
        {"sec-fetch-site": "same-origin", "origin": "http://evil.example"},
    ],
)
def test_pages_of_other_sites_do_not(headers: dict[str, str]) -> None:
    with pytest.raises(Forbidden):
        refuse_other_sites(Headers(headers), SITE)


def test_default_ports_may_be_left_out() -> None:
    site = Facts("r", "10.0.0.1", "gate.example", secure=True)
    refuse_other_sites(Headers({"origin": "https://gate.example:443"}), site)
    refuse_other_sites(Headers({"origin": "https://gate.example"}), site)
    with_port = Facts("r", "10.0.0.1", "gate.example:443", secure=True)
    refuse_other_sites(Headers({"origin": "https://gate.example"}), with_port)
    with pytest.raises(Forbidden):
        refuse_other_sites(Headers({"origin": "https://gate.example:80"}), site)


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("::ffff:10.0.0.1", "203.0.113.7", "203.0.113.7"),
        ("::ffff:10.0.0.1", "203.0.113.7, ::ffff:10.0.0.2", "203.0.113.7"),
        ("10.0.0.1", "::ffff:203.0.113.7", "203.0.113.7"),
        ("::ffff:198.51.100.1", "203.0.113.7", "198.51.100.1"),
        ("fd00::0001", "2001:DB8::0007", "2001:db8::7"),
    ],
)
def test_an_address_has_one_form_on_a_socket_of_both_families(peer: str, forwarded: str, client: str) -> None:
    assert facts(peer, x_forwarded_for=forwarded).address == client
