from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from fastllm_proxy.tls import ListenerCertificate, client_context, server_context
from tests.fakes.certificates import Authority, Pair


def subjects(context: ssl.SSLContext) -> int:
    return context.cert_store_stats()["x509_ca"]


def test_what_is_trusted_adds_up(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one, two = Authority(tmp_path / "one"), Authority(tmp_path / "two")
    bundle = tmp_path / "bundle.pem"
    bundle.write_text(one.pem, encoding="utf-8")
    system = subjects(client_context(None))
    assert subjects(client_context(str(bundle))) == system + 1
    assert subjects(client_context(str(bundle), two.pem)) == system + 2


def test_certificates_and_names_are_checked() -> None:
    context = client_context(None)
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("bundle", "authority"), [("/no/such/file", None), (__file__, None), (None, "no PEM")]
)
def test_what_holds_no_certificate(bundle: str | None, authority: str | None) -> None:
    with pytest.raises(ValueError, match="certificate authority cannot be read"):
        client_context(bundle, authority)


# What clients see


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str = "gateway") -> ssl.SSLObject:
    """The client's end after a handshake without a socket."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = list(ends)
    while waiting:
        end = waiting.pop(0)
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            waiting.append(end)
    return ends[0]


def serial(end: ssl.SSLObject) -> int:
    certificate = end.getpeercert()
    assert certificate
    return int(str(certificate["serialNumber"]), 16)


def load(pair: Pair) -> ssl.SSLContext:
    return server_context(str(pair.certificate), str(pair.key))


def test_a_listener_speaks_http1_over_tls_12_and_above(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = load(authority.issue("gateway"))
    client = authority.client_context()
    client.set_alpn_protocols(["h2", "http/1.1"])
    assert handshake(context, client).selected_alpn_protocol() == "http/1.1"
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    assert handshake(context, client).version() == "TLSv1.2"
    client.set_alpn_protocols(["h2"])
    assert handshake(context, client).selected_alpn_protocol() is None
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_files_that_are_no_certificate_and_key_are_told_by_their_flag(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair, other = authority.issue("one"), authority.issue("two")
    encrypted = authority.issue("three", passphrase=b"secret")
    broken = tmp_path / "broken.crt"
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", encoding="utf-8")
    missing = tmp_path / "missing"
    for certificate, key, told in (
        (missing, pair.key, "--tls-cert: cannot be read: No such file or directory"),
        (pair.certificate, missing, "--tls-key: cannot be read: No such file or directory"),
        (tmp_path, pair.key, "--tls-cert: cannot be read: Is a directory"),
        (pair.key, pair.key, "--tls-cert: holds no certificate in PEM format"),
        (pair.certificate, pair.certificate, "--tls-key: holds no private key in PEM format"),
        (pair.certificate, other.key, "--tls-key: does not belong to the certificate of --tls-cert"),
        (encrypted.certificate, encrypted.key, "--tls-key: is encrypted; give the key without a passphrase"),
        (broken, pair.key, "--tls-cert, --tls-key: cannot be used: "),
    ):
        with pytest.raises(ValueError, match=told):
            server_context(str(certificate), str(key))


def test_a_renewed_certificate_is_shown_to_new_connections_and_a_broken_one_never(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    first = authority.issue("gateway")
    shown = ListenerCertificate(str(first.certificate), str(first.key))
    client = authority.client_context()
    assert serial(handshake(shown.context, client)) == first.serial
    assert not shown.renew()
    second = authority.issue("gateway")
    assert serial(handshake(shown.context, client)) == first.serial  # not before it was looked for
    assert shown.renew()
    assert not shown.renew()
    assert serial(handshake(shown.context, client)) == second.serial

    key = second.key.read_bytes()
    second.key.write_bytes(b"half a ")
    with pytest.raises(ValueError, match="--tls-key: holds no private key"):
        shown.renew()
    assert not shown.renew()  # told once
    assert serial(handshake(shown.context, client)) == second.serial
    second.key.unlink()
    with pytest.raises(ValueError, match="--tls-key: cannot be read"):
        shown.renew()
    assert not shown.renew()
    second.key.write_bytes(key)
    assert shown.renew()
    assert serial(handshake(shown.context, client)) == second.serial


def test_a_certificate_without_its_key_yet_is_taken_when_the_key_comes(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    first = authority.issue("gateway")
    shown = ListenerCertificate(str(first.certificate), str(first.key))
    old_key = first.key.read_bytes()
    second = authority.issue("gateway")
    new_key = second.key.read_bytes()
    second.key.write_bytes(old_key)
    with pytest.raises(ValueError, match="does not belong to the certificate"):
        shown.renew()
    second.key.write_bytes(new_key)
    assert shown.renew()
    assert serial(handshake(shown.context, authority.client_context())) == second.serial


def test_links_are_followed_as_kubernetes_swaps_them(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    authority = Authority(tmp_path / "one")
    first = authority.issue("gateway")
    link = tmp_path / "current"
    link.symlink_to("one")
    shown = ListenerCertificate(str(link / "gateway.crt"), str(link / "gateway.key"))
    assert serial(handshake(shown.context, authority.client_context())) == first.serial
    other = Authority(tmp_path / "two")
    second = other.issue("gateway")
    link.unlink()
    link.symlink_to("two")
    assert shown.renew()
    assert serial(handshake(shown.context, other.client_context())) == second.serial
