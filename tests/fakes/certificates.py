"""A private certificate authority, and certificates of it, made on the spot."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID


class Authority:
    """`pem` is what a client must trust."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        certificate = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = certificate.public_bytes(Encoding.PEM).decode()

    def issue(self, name: str, *, passphrase: bytes | None = None, expired: bool = False) -> Pair:
        """A new certificate for the host `name` with its key, in files that are called after it; what they
        held is replaced in one step each."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder(_name(name), self._name, key.public_key(), days=-1 if expired else 1)
            .add_extension(x509.SubjectAlternativeName([_alternative(name)]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        encryption = NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase)
        pair = Pair(self._folder / f"{name}.crt", self._folder / f"{name}.key", certificate.serial_number)
        _replace(pair.key, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
        _replace(pair.certificate, certificate.public_bytes(Encoding.PEM))
        return pair

    def server_context(self, name: str, *, expired: bool = False) -> ssl.SSLContext:
        """TLS of a server that is called `name`."""
        pair = self.issue(name, expired=expired)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(pair.certificate, pair.key)
        return context

    def client_context(self) -> ssl.SSLContext:
        """TLS of a client that trusts this authority and no other."""
        return ssl.create_default_context(cadata=self.pem)


class Pair(msgspec.Struct, frozen=True):
    """Files of one certificate; `serial` tells it from others."""

    certificate: Path
    key: Path
    serial: int

    @property
    def flags(self) -> tuple[str, str, str, str]:
        """As arguments of a proxy."""
        return ("--tls-cert", str(self.certificate), "--tls-key", str(self.key))


def _replace(path: Path, content: bytes) -> None:
    fresh = path.with_suffix(path.suffix + ".new")
    fresh.write_bytes(content)
    fresh.replace(path)


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int = 1
) -> x509.CertificateBuilder:
    """Valid from two days ago until in `days`."""
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=2))
        .not_valid_after(now + datetime.timedelta(days=days))
    )
