"""Every spelling by which somebody might reach what must not be dialled."""

from __future__ import annotations

import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastllm_shared.addresses import AddressPolicy, AddressRefused, UpstreamUrl, parse_url, read_address

OPEN = AddressPolicy()
CLOSED = AddressPolicy(allow_loopback=False, deny_private=True)

LINK_LOCAL = "is a link-local address"
METADATA = "is a cloud metadata address"
METADATA_NAME = "is a cloud metadata name"
UNSPECIFIED = "is an unspecified address"
MULTICAST = "is a multicast or broadcast address"
LOOPBACK = "is a loopback address"
PRIVATE = "is a private address, which --deny-private-upstreams refuses"
NOT_V4 = "is not a valid IPv4 address"
CHARACTERS = "must not carry control characters, spaces or characters outside ASCII"

ALWAYS_REFUSED = [
    ("169.254.169.254", LINK_LOCAL),
    ("169.254.0.0", LINK_LOCAL),
    ("169.254.255.255", LINK_LOCAL),
    ("2852039166", LINK_LOCAL),
    ("0xa9fea9fe", LINK_LOCAL),
    ("0XA9FEA9FE", LINK_LOCAL),
    ("025177524776", LINK_LOCAL),
    ("0251.0376.0251.0376", LINK_LOCAL),
    ("0xa9.0xfe.0xa9.0xfe", LINK_LOCAL),
    ("169.254.43518", LINK_LOCAL),
    ("169.16689662", LINK_LOCAL),
    ("0xa9.254.0251.254", LINK_LOCAL),
    ("00000251.254.169.254", LINK_LOCAL),
    ("169.254.169.254.", LINK_LOCAL),
    ("fe80::1", LINK_LOCAL),
    ("febf::1", LINK_LOCAL),
    ("fe80::a9fe:a9fe", LINK_LOCAL),
    ("::ffff:169.254.169.254", LINK_LOCAL),
    ("::ffff:a9fe:a9fe", LINK_LOCAL),
    ("0:0:0:0:0:ffff:a9fe:a9fe", LINK_LOCAL),
    ("::169.254.169.254", LINK_LOCAL),
    ("::ffff:0:169.254.169.254", LINK_LOCAL),
    ("64:ff9b::169.254.169.254", LINK_LOCAL),
    ("64:ff9b::a9fe:a9fe", LINK_LOCAL),
    ("64:ff9b:1::a9fe:a9fe", LINK_LOCAL),
    ("64:ff9b:1:a9fe:a9:fe00::", LINK_LOCAL),
    ("64:ff9b:1:a9:fe:a9fe::", LINK_LOCAL),
    ("64:ff9b:1:0:a9:fea9:fe00:0", LINK_LOCAL),
    ("2002:a9fe:a9fe::1", LINK_LOCAL),
    ("2001:0:a9fe:a9fe::1", LINK_LOCAL),
    ("2001:0:808:808:0:0:5601:5601", LINK_LOCAL),
    ("2001:db8::5efe:a9fe:a9fe", LINK_LOCAL),
    ("2001:db8::200:5efe:169.254.169.254", LINK_LOCAL),
    ("100.100.100.200", METADATA),
    ("1684301000", METADATA),
    ("::ffff:100.100.100.200", METADATA),
    ("168.63.129.16", METADATA),
    ("0xa83f8110", METADATA),
    ("64:ff9b::168.63.129.16", METADATA),
    ("192.0.0.192", METADATA),
    ("2002:c000:c0::", METADATA),
    ("fd00:ec2::254", METADATA),
    ("fd00:0ec2:0000::0254", METADATA),
    ("FD00:EC2::23", METADATA),
    ("fd20:ce::254", METADATA),
    ("fd00:c1::a9fe:a9fe", METADATA),
    ("0.0.0.0", UNSPECIFIED),
    ("0", UNSPECIFIED),
    ("0x0", UNSPECIFIED),
    ("0x", UNSPECIFIED),
    ("00", UNSPECIFIED),
    ("0.1.2.3", UNSPECIFIED),
    ("::", UNSPECIFIED),
    ("::ffff:0.0.0.0", UNSPECIFIED),
    ("224.0.0.1", MULTICAST),
    ("255.255.255.255", MULTICAST),
    ("ff02::1", MULTICAST),
]


def as_url(host: str) -> str:
    return f"http://[{host}]:8000/v1" if ":" in host else f"http://{host}:8000/v1"


@pytest.mark.parametrize(("spelling", "reason"), ALWAYS_REFUSED)
def test_is_refused_in_every_spelling_whatever_the_policy(spelling: str, reason: str) -> None:
    for policy in (OPEN, CLOSED):
        assert policy.problem(spelling) == reason
        assert policy.check_url(as_url(spelling)) == reason


@pytest.mark.parametrize("zone", ["fe80::1%eth0", "fe80::1%1"])
def test_a_resolved_address_with_a_zone_is_judged_without_it(zone: str) -> None:
    assert OPEN.problem(zone) == LINK_LOCAL


@pytest.mark.parametrize(
    "name",
    [
        "metadata.google.internal",
        "METADATA.Google.Internal",
        "metadata.google.internal.",
        "metadata.goog",
        "metadata",
        "instance-data",
        "instance-data.ec2.internal",
        "metadata.tencentyun.com",
    ],
)
def test_metadata_names_are_refused(name: str) -> None:
    assert OPEN.check_url(f"http://{name}/computeMetadata/v1") == METADATA_NAME


LOOPBACKS = [
    "127.0.0.1",
    "127.9.9.9",
    "127.1",
    "2130706433",
    "0x7f.1",
    "0177.0.0.1",
    "::1",
    "::ffff:127.0.0.1",
]


@pytest.mark.parametrize("spelling", [*LOOPBACKS, "0:0:0:0:0:0:0:1", "64:ff9b::7f00:1", "2002:7f00:1::"])
def test_loopback_is_for_those_who_may_have_it(spelling: str) -> None:
    assert OPEN.problem(spelling) is None
    assert OPEN.check_url(as_url(spelling)) is None
    assert CLOSED.problem(spelling) == LOOPBACK
    assert CLOSED.check_url(as_url(spelling)) == LOOPBACK


@pytest.mark.parametrize(
    "name", ["localhost", "LOCALHOST.", "engine.localhost", "localhost.localdomain", "ip6-localhost"]
)
def test_names_of_loopback_count_as_loopback(name: str) -> None:
    assert OPEN.check_url(f"http://{name}:8000") is None
    assert CLOSED.check_url(f"http://{name}:8000") == LOOPBACK


@pytest.mark.parametrize(
    "spelling",
    [
        *(
            "10.0.0.1",
            "10.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "fd12::1",
            "fec0::1",
        ),
        *("::ffff:10.0.0.1", "64:ff9b::192.168.1.1", "64:ff9b:1::10.0.0.5", "167772161"),
    ],
)
def test_private_ranges_are_where_engines_live_unless_denied(spelling: str) -> None:
    assert OPEN.problem(spelling) is None
    assert OPEN.check_url(as_url(spelling)) is None
    assert CLOSED.problem(spelling) == PRIVATE


@pytest.mark.parametrize(
    "spelling",
    ["8.8.8.8", "172.32.0.1", "168.63.129.17", "169.253.255.255", "2606:4700::1111", "::ffff:8.8.8.8"],
)
def test_public_addresses_pass(spelling: str) -> None:
    assert CLOSED.problem(spelling) is None
    assert CLOSED.check_url(as_url(spelling)) is None


@pytest.mark.parametrize("name", ["localhost", "example.org", "", "1.2.3.4.example"])
def test_only_addresses_are_dialled(name: str) -> None:
    assert OPEN.problem(name) == "is not an address"


OWN = AddressPolicy(own_ports=frozenset({4000, 4001}), own_addresses=frozenset({"192.168.1.9", "fd12::9"}))


@pytest.mark.parametrize(
    "host", [*map(as_url, LOOPBACKS), "http://localhost:8000", "http://192.168.1.9:8000"]
)
def test_own_ports_are_refused_on_this_machine(host: str) -> None:
    assert OWN.check_url(host) is None
    assert OWN.check_url(host.replace(":8000", ":4001")) == "is one of FastLLM's own ports"


def test_own_ports_on_another_machine_are_another_gateway() -> None:
    assert OWN.check_url("http://10.0.0.7:4000/v1") is None
    assert OWN.check_url("http://gateway.example:4000/v1") is None


def test_own_ports_are_refused_at_the_connect_too() -> None:
    assert OWN.problem("127.0.0.1", 4000) == "is one of FastLLM's own ports"
    assert OWN.problem("fd12::9", 4000) == "is one of FastLLM's own ports"
    assert OWN.problem("127.0.0.1", 9000) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must be a URL such as http://host:8000/v1"),
        ("gpu-1:8000/v1", "must be a URL such as http://host:8000/v1"),
        ("//gpu-1/v1", "must be a URL such as http://host:8000/v1"),
        ("http:/gpu-1/v1", "must be a URL such as http://host:8000/v1"),
        ("ftp://gpu-1/v1", "scheme must be http or https"),
        ("file:///etc/passwd", "scheme must be http or https"),
        ("gopher://gpu-1:70/_x", "scheme must be http or https"),
        ("javascript://gpu-1/%0aalert(1)", "scheme must be http or https"),
        ("http://user@gpu-1/v1", "must not carry a user name or password"),
        ("http://user:pass@gpu-1/v1", "must not carry a user name or password"),
        ("http://@gpu-1/v1", "must not carry a user name or password"),
        ("http://8.8.8.8:80@169.254.169.254/", "must not carry a user name or password"),
        ("http://gpu-1/v1#x", "must not carry a fragment"),
        ("http://gpu-1#@169.254.169.254/", "must not carry a fragment"),
        ("http://gpu-1/v1#", "must not carry a fragment"),
        ("http://gpu-1/v1?key=1", "must not carry a query"),
        ("http://gpu-1/v1?", "must not carry a query"),
        ("http://gpu-1/v1\r\nx: y", CHARACTERS),
        ("http://gpu-1/v1\n", CHARACTERS),
        ("http://gpu\t-1/v1", CHARACTERS),
        ("\x00http://gpu-1/v1", CHARACTERS),
        (" http://gpu-1/v1", CHARACTERS),
        ("http://gpu-1/v 1", CHARACTERS),
        ("http://gpu-1/v1\x7f", CHARACTERS),
        ("http://gpu-1/v1\x85", CHARACTERS),
        ("http://169｡254｡169｡254/", CHARACTERS),
        ("http://①⑥⑨.254.169.254/", CHARACTERS),
        ("http://gpu-1/\u202e", CHARACTERS),
        ("http://8.8.8.8\\@169.254.169.254/", "must not carry a user name or password"),
        ("http://gpu-1\\v1", "must not carry a backslash"),
        ("https://<resource>.example.com/v1", "carries a <placeholder> that is still to be filled in"),
        ("http://", "has no valid host name"),
        ("http:///v1", "has no valid host name"),
        ("http://:8000/v1", "has no valid host name"),
        ("http://./v1", "has no valid host name"),
        ("http://-gpu/v1", "has no valid host name"),
        ("http://%31%36%39.254.169.254/", "has no valid host name"),
        ("http://" + "a" * 254 + "/", "has no valid host name"),
        ("http://gpu-1:/v1", "has no valid host and port"),
        ("http://gpu-1:8000:1/v1", "has no valid host and port"),
        ("http://gpu-1:80a/v1", "has no valid host and port"),
        ("http://gpu-1:-1/v1", "has no valid host and port"),
        ("http://[::1/v1", "has no valid host and port"),
        ("http://::1/v1", "has no valid host and port"),
        ("http://[::1]x/v1", "has no valid host and port"),
        ("http://gpu-1:0/v1", "port must be within 1…65535"),
        ("http://gpu-1:65536/v1", "port must be within 1…65535"),
        ("http://[fe80::1%25eth0]/v1", "must not carry an IPv6 zone"),
        ("http://[::1%lo]/v1", "must not carry an IPv6 zone"),
        ("http://[gggg::1]/v1", "is not a valid IPv6 address"),
        ("http://[127.0.0.1]/v1", "is not a valid IPv6 address"),
        ("http://[]/v1", "is not a valid IPv6 address"),
        ("http://256.1.1.1/v1", NOT_V4),
        ("http://1.2.3.4.5/v1", NOT_V4),
        ("http://4294967296/v1", NOT_V4),
        ("http://1.16777216/v1", NOT_V4),
        ("http://0x100000000/v1", NOT_V4),
        ("http://089.1.1.1/v1", NOT_V4),
        ("http://1..1/v1", NOT_V4),
        ("http://gpu.1/v1", NOT_V4),
        ("http://" + "9" * 250 + "/v1", NOT_V4),
    ],
)
def test_urls_that_are_no_upstreams(text: str, reason: str) -> None:
    problem = OPEN.check_url(text)
    assert problem is not None
    if "\\@" in text:  # two faults at once: either reason will do
        assert problem in (reason, "must not carry a backslash")
    else:
        assert problem == reason


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("http://gpu-1:8000/v1", ("http", "gpu-1", 8000, "/v1", "gpu-1:8000")),
        ("HTTP://GPU-1/v1/", ("http", "gpu-1", 80, "/v1", "gpu-1")),
        ("https://api.example.com", ("https", "api.example.com", 443, "", "api.example.com")),
        ("https://api.example.com:80/", ("https", "api.example.com", 80, "", "api.example.com:80")),
        ("https://api.example.com:443/a//", ("https", "api.example.com", 443, "/a", "api.example.com")),
        ("http://under_score.svc.:8000/v1", ("http", "under_score.svc", 8000, "/v1", "under_score.svc:8000")),
        ("http://[FD12:0::1]:8000/v1", ("http", "fd12::1", 8000, "/v1", "[fd12::1]:8000")),
        ("http://[::1]", ("http", "::1", 80, "", "[::1]")),
        ("http://gpu/a@b/%2F", ("http", "gpu", 80, "/a@b/%2F", "gpu")),
    ],
)
def test_parts_of_a_url(text: str, parts: tuple[str, str, int, str, str]) -> None:
    url = parse_url(text)
    assert (url.scheme, url.host, url.port, url.path, url.host_header) == parts
    assert OPEN.check_url(text) is None


@given(st.integers(min_value=0, max_value=2**32 - 1), st.data())
def test_reads_ipv4_as_the_c_library_does(value: int, data: st.DataObject) -> None:
    """Whatever `inet_aton` makes of a spelling, this reads the same address from it."""
    count = data.draw(st.integers(min_value=1, max_value=4))
    heads = [(value >> (24 - 8 * place)) & 0xFF for place in range(count - 1)]
    numbers = [*heads, value & ((1 << (8 * (5 - count))) - 1)]
    styles = data.draw(
        st.lists(st.sampled_from(["{}", "0x{:x}", "0X{:X}", "0{:o}"]), min_size=count, max_size=count)
    )
    text = ".".join(style.format(number) for style, number in zip(styles, numbers, strict=True))
    assert str(read_address(text)) == socket.inet_ntoa(socket.inet_aton(text))


@given(st.text(alphabet="0123456789xXabcf.", max_size=14))
def test_never_misses_an_address_that_the_c_library_reads(text: str) -> None:
    try:
        expected = socket.inet_ntoa(socket.inet_aton(text))
    except OSError:
        return
    assert str(read_address(text)) == expected


@given(st.ip_addresses())
def test_the_usual_form_is_read_as_it_is(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    assert read_address(str(address)) == address


@given(st.text(max_size=60))
def test_any_text_is_judged_without_raising(text: str) -> None:
    for candidate in (text, f"http://{text}", f"http://gpu-1/{text}"):
        if OPEN.check_url(candidate) is None:
            assert isinstance(parse_url(candidate), UpstreamUrl)


def test_a_refusal_never_repeats_the_url() -> None:
    for text in ("http://user:hunter2@gpu/v1", "http://gpu/v1?key=hunter2", "ftp://hunter2/"):
        with pytest.raises(AddressRefused) as refused:
            parse_url(text)
        assert "hunter2" not in str(refused.value)
