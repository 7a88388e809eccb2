"""TLS on both sides: whom this process trusts, and what it shows to its clients."""

from __future__ import annotations

import os
import ssl
from typing import Final

HANDSHAKE_SECONDS: Final = 10.0
"""As long as a head may take."""

CLOSING_SECONDS: Final = 30.0
"""How long a closed connection waits for its client to agree, throwing away what that still sends, as a
lingering one without TLS does: closing over it would reset the connection and take the answer with it."""

_Signature = tuple[tuple[int, int, int], ...] | None


class _Encrypted(Exception):
    """A private key wants a passphrase."""


def client_context(ca_bundle: str | None, authority: str | None = None) -> ssl.SSLContext:
    """TLS 1.2 or newer. Trusts the system's roots, those in the PEM file `ca_bundle`, and the PEM text
    `authority`. Raises `ValueError`."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        if ca_bundle is not None:
            context.load_verify_locations(cafile=ca_bundle)
        if authority is not None:
            context.load_verify_locations(cadata=authority)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ValueError(f"certificate authority cannot be read: {error}") from error
    return context


def server_context(certificate: str, key: str) -> ssl.SSLContext:
    """What a listener shows: the chain in the PEM file `certificate`, with its key in the file `key`. TLS 1.2
    and above, HTTP/1.1. Raises `ValueError` that names the flag of the file which is to blame."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    for flag, path, mark, content in (
        ("--tls-cert", certificate, b"-----BEGIN CERTIFICATE-----", "certificate"),
        ("--tls-key", key, b"PRIVATE KEY-----", "private key"),
    ):
        try:
            with open(path, "rb") as file:
                found = mark in file.read()
        except OSError as error:
            raise ValueError(f"{flag}: cannot be read: {error.strerror}") from error
        if not found:
            raise ValueError(f"{flag}: holds no {content} in PEM format")
    try:
        context.load_cert_chain(certificate, key, _no_passphrase)
    except _Encrypted:
        raise ValueError("--tls-key: is encrypted; give the key without a passphrase") from None
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ValueError(_why_not(error)) from error
    return context


class ListenerCertificate:
    """The certificate of a listener, replaced while it listens. `context` is what the listener is made with;
    each handshake gets the certificate that is current when it begins."""

    def __init__(self, certificate: str, key: str) -> None:
        """Raises `ValueError` as `server_context` does."""
        self._files = (certificate, key)
        self._seen = self._signature()
        self._current = server_context(certificate, key)
        self.context = server_context(certificate, key)
        # The whole context is swapped, never one that is in use changed: a chain and a key that are loaded
        # one after the other do not belong together in between.
        self.context.sni_callback = self._choose

    def renew(self) -> bool:
        """Reads the files again if they have changed since they were last read. Returns whether the
        certificate was replaced; raises `ValueError`, once for each change, when they are no good: the old
        one stays. Blocks on the file system."""
        found = self._signature()
        if found == self._seen:
            return False
        self._seen = found
        self._current = server_context(*self._files)
        return True

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._current

    def _signature(self) -> _Signature:
        """What changes whenever a file is written or replaced; `None` if one is not there."""
        try:
            found = [os.stat(path) for path in self._files]
        except OSError:
            return None
        return tuple((stat.st_mtime_ns, stat.st_ino, stat.st_size) for stat in found)


def _no_passphrase() -> str:
    raise _Encrypted


def _why_not(error: OSError | ValueError) -> str:
    reason = getattr(error, "reason", None) or str(error)
    if reason == "KEY_VALUES_MISMATCH":
        return "--tls-key: does not belong to the certificate of --tls-cert"
    return f"--tls-cert, --tls-key: cannot be used: {reason}"
