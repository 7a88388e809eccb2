"""Which addresses may be dialled. Pure: nothing here resolves a name or opens a socket.

An upstream's URL is judged twice. `AddressPolicy.check_url` judges the text when it is written; a host that
is an address in any spelling is judged at once. `AddressPolicy.problem` judges the address that a name
resolved to, at every connect, and the caller dials the very address that it asked about: a name that
pointed elsewhere a moment ago gains nothing.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Literal

import msgspec

Scheme = Literal["http", "https"]
Address = IPv4Address | IPv6Address

_DEFAULT_PORTS: dict[str, int] = {"http": 80, "https": 443}
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<rest>.*)", re.DOTALL)
_AUTHORITY = re.compile(r"(?:\[(?P<v6>[^\[\]]*)\]|(?P<name>[^:\[\]]*))(?::(?P<port>[0-9]{1,5}))?")
_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")
# What the C library reads as a number in an IPv4 address: hexadecimal, octal or decimal.
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]*|[0-9]+")

_METADATA_NAMES = frozenset(
    {
        "instance-data",
        "instance-data.ec2.internal",
        "metadata",
        "metadata.azure.com",
        "metadata.azure.internal",
        "metadata.goog",
        "metadata.google.internal",
        "metadata.packet.net",
        "metadata.platformequinix.com",
        "metadata.tencentyun.com",
    }
)
_METADATA_V4 = frozenset(map(IPv4Address, ("100.100.100.200", "168.63.129.16", "192.0.0.192")))
_METADATA_V6 = (
    IPv6Network("fd00:ec2::/32"),  # AWS keeps metadata, DNS, time and pod identity in here
    IPv6Network("fd20:ce::254/128"),
    IPv6Network("fd00:c1::a9fe:a9fe/128"),
)
_THIS_NETWORK = IPv4Network("0.0.0.0/8")
_LINK_LOCAL_V4 = IPv4Network("169.254.0.0/16")
_LINK_LOCAL_V6 = IPv6Network("fe80::/10")
_BROADCAST = IPv4Address("255.255.255.255")
_PRIVATE_V4 = tuple(map(IPv4Network, ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16")))
_PRIVATE_V6 = (IPv6Network("fc00::/7"), IPv6Network("fec0::/10"))

_NAT64 = IPv6Network("64:ff9b::/96")
_NAT64_LOCAL = IPv6Network("64:ff9b:1::/48")
_SIX_TO_FOUR = IPv6Network("2002::/16")
_TEREDO = IPv6Network("2001::/32")
_COMPATIBLE = IPv6Network("::/96")
_MAPPED = IPv6Network("::ffff:0:0/96")
_TRANSLATED = IPv6Network("::ffff:0:0:0/96")
_ISATAP_MARKS = frozenset({0x00005EFE, 0x02005EFE})


class AddressRefused(ValueError):
    """An address or URL that may not be dialled; the text says why, without the address itself."""


class UpstreamUrl(msgspec.Struct, frozen=True):
    """An upstream's URL in parts. `host` is lower case and without brackets or a final dot; `path` has no
    slash at its end and is empty for the root."""

    scheme: Scheme
    host: str
    port: int
    path: str

    @property
    def host_header(self) -> str:
        """The value of `Host`: the port only where it is not the scheme's own."""
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return shown if self.port == _DEFAULT_PORTS[self.scheme] else f"{shown}:{self.port}"


def parse_url(text: str) -> UpstreamUrl:
    """The parts of an upstream's URL; raises `AddressRefused` for anything but a plain http(s) URL."""
    _refuse_characters(text)
    match = _URL.fullmatch(text)
    if match is None:
        raise AddressRefused("must be a URL such as http://host:8000/v1")
    scheme = match["scheme"].lower()
    if scheme not in _DEFAULT_PORTS:
        raise AddressRefused("scheme must be http or https")
    if "@" in match["authority"]:
        raise AddressRefused("must not carry a user name or password")
    if "#" in match["rest"]:
        raise AddressRefused("must not carry a fragment")
    if "?" in match["rest"]:
        raise AddressRefused("must not carry a query")
    host, port = _host_and_port(match["authority"])
    return UpstreamUrl(
        scheme="https" if scheme == "https" else "http",
        host=host,
        port=_DEFAULT_PORTS[scheme] if port is None else port,
        path=match["rest"].rstrip("/"),
    )


def read_address(text: str) -> Address | None:
    """The address that `text` spells, or `None` if it is a name.

    Reads what resolvers read, not only the usual form: `2130706433`, `0x7f.1`, `0177.0.0.1` are 127.0.0.1.
    A zone (`%eth0`) is left out. Raises `AddressRefused` for what looks like an address and is none.
    """
    bare = text.partition("%")[0]
    if ":" in bare:
        try:
            return IPv6Address(bare)
        except ValueError:
            raise AddressRefused("is not a valid IPv6 address") from None
    return _read_v4(bare)


class AddressPolicy(msgspec.Struct, frozen=True):
    """What may be dialled, beyond what nobody may dial.

    `own_ports` are the ports that FastLLM itself listens on: refused on loopback and on `own_addresses`
    (this machine's others, canonical text), since a gateway that is its own upstream loops. The same port on
    another machine is fine.
    """

    allow_loopback: bool = True
    deny_private: bool = False
    own_ports: frozenset[int] = frozenset()
    own_addresses: frozenset[str] = frozenset()

    def problem(self, ip: str, port: int | None = None) -> str | None:
        """Why the address `ip` (as a resolver gives it) may not be dialled, or `None` if it may."""
        try:
            address = read_address(ip)
        except AddressRefused as refused:
            return str(refused)
        if address is None:
            return "is not an address"
        return self._problem_of(address, port)

    def check_url(self, text: str) -> str | None:
        """Why the URL may not be an upstream's, or `None` if it may so far as its text tells."""
        try:
            url = parse_url(text)
            address = read_address(url.host)
        except AddressRefused as refused:
            return str(refused)
        if address is not None:
            return self._problem_of(address, url.port)
        if url.host in _METADATA_NAMES:
            return "is a cloud metadata name"
        if _is_localhost(url.host):
            return self._problem_of(IPv4Address("127.0.0.1"), url.port)
        return None

    def _problem_of(self, address: Address, port: int | None) -> str | None:
        for meant in (address, *embedded_addresses(address)):
            problem = _never(meant) or self._not_here(meant, port)
            if problem is not None:
                return problem
        return None

    def _not_here(self, address: Address, port: int | None) -> str | None:
        own = address.is_loopback or str(address) in self.own_addresses
        if own and port is not None and port in self.own_ports:
            return "is one of FastLLM's own ports"
        if address.is_loopback:
            return None if self.allow_loopback else "is a loopback address"
        networks = _PRIVATE_V4 if isinstance(address, IPv4Address) else _PRIVATE_V6
        if self.deny_private and any(address in network for network in networks):
            return "is a private address, which --deny-private-upstreams refuses"
        return None


def embedded_addresses(address: Address) -> tuple[IPv4Address, ...]:
    """The IPv4 addresses that an IPv6 address may stand for on its way (mapped, NAT64, 6to4, …)."""
    if isinstance(address, IPv4Address):
        return ()
    value = int(address)
    low = IPv4Address(value & 0xFFFF_FFFF)
    found: list[IPv4Address] = []
    if address in _COMPATIBLE:
        # `::` and `::1` lie in this range and are judged as themselves.
        return (low,) if value > 0xFFFF else ()
    if any(address in network for network in (_MAPPED, _TRANSLATED, _NAT64)):
        found.append(low)
    if address in _NAT64_LOCAL:
        found += _locally_translated(value)
    if address in _SIX_TO_FOUR:
        found.append(IPv4Address((value >> 80) & 0xFFFF_FFFF))
    if address in _TEREDO:
        found += [IPv4Address((value >> 64) & 0xFFFF_FFFF), IPv4Address(~value & 0xFFFF_FFFF)]
    if (value >> 32) & 0xFFFF_FFFF in _ISATAP_MARKS:
        found.append(low)
    return tuple(found)


def _locally_translated(value: int) -> list[IPv4Address]:
    """The readings by RFC 6052 of an address in the local NAT64 range, whose prefix may have 48, 56, 64 or 96
    bits. A reading that does not apply finds zeros at its front, and is left out."""
    readings = (
        ((value >> 64) & 0xFFFF) << 16 | ((value >> 40) & 0xFFFF),
        ((value >> 64) & 0xFF) << 24 | ((value >> 32) & 0xFF_FFFF),
        (value >> 24) & 0xFFFF_FFFF,
        value & 0xFFFF_FFFF,
    )
    return [IPv4Address(reading) for reading in readings if reading >> 24]


def _never(address: Address) -> str | None:
    """What is refused whatever the policy says."""
    if isinstance(address, IPv4Address):
        if address in _LINK_LOCAL_V4:
            return "is a link-local address"
        if address in _METADATA_V4:
            return "is a cloud metadata address"
        if address in _THIS_NETWORK:
            return "is an unspecified address"
        return (
            "is a multicast or broadcast address" if address.is_multicast or address == _BROADCAST else None
        )
    if address in _LINK_LOCAL_V6:
        return "is a link-local address"
    if any(address in network for network in _METADATA_V6):
        return "is a cloud metadata address"
    if address.is_unspecified:
        return "is an unspecified address"
    return "is a multicast or broadcast address" if address.is_multicast else None


def _refuse_characters(text: str) -> None:
    if any(not "\x20" < character < "\x7f" for character in text):
        raise AddressRefused("must not carry control characters, spaces or characters outside ASCII")
    if "<" in text or ">" in text:
        raise AddressRefused("carries a <placeholder> that is still to be filled in")
    if "\\" in text:
        raise AddressRefused("must not carry a backslash")


def _host_and_port(authority: str) -> tuple[str, int | None]:
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        raise AddressRefused("has no valid host and port")
    port = None if match["port"] is None else int(match["port"])
    if port is not None and not 1 <= port <= 65535:
        raise AddressRefused("port must be within 1…65535")
    if match["v6"] is not None:
        if "%" in match["v6"]:
            raise AddressRefused("must not carry an IPv6 zone")
        return str(ip_address(_v6(match["v6"]))), port
    host = match["name"].lower().removesuffix(".")
    if not _NAME.fullmatch(host):
        raise AddressRefused("has no valid host name")
    return host, port


def _v6(text: str) -> IPv6Address:
    try:
        return IPv6Address(text)
    except ValueError:
        raise AddressRefused("is not a valid IPv6 address") from None


def _read_v4(text: str) -> IPv4Address | None:
    """IPv4 as `inet_aton` reads it: one to four numbers, the last filling all the bytes that are left."""
    parts = text.removesuffix(".").split(".")
    if not _NUMBER.fullmatch(parts[-1]):
        return None
    numbers = [_read_number(part) for part in parts]
    if len(parts) > 4 or any(number is None for number in numbers):
        # The last label of a name is never a number: this can only be a misspelt address.
        raise AddressRefused("is not a valid IPv4 address")
    *heads, last = (number or 0 for number in numbers)
    if any(head > 0xFF for head in heads) or last >= 1 << (8 * (4 - len(heads))):
        raise AddressRefused("is not a valid IPv4 address")
    value = last
    for place, head in enumerate(heads):
        value |= head << (24 - 8 * place)
    return IPv4Address(value)


def _read_number(text: str) -> int | None:
    if not _NUMBER.fullmatch(text):
        return None
    try:
        if text[:2] in ("0x", "0X"):
            return int(text[2:] or "0", 16)
        return int(text, 8 if len(text) > 1 and text[0] == "0" else 10)
    except ValueError:  # an 8 or 9 after a leading zero, or more digits than Python converts
        return None


def _is_localhost(host: str) -> bool:
    return host == "localhost" or host.endswith((".localhost", ".localdomain")) or host in _LOOPBACK_NAMES


_LOOPBACK_NAMES = frozenset({"ip6-localhost", "ip6-loopback", "loopback"})
