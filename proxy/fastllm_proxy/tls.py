"""TLS towards others: whom this process trusts."""

from __future__ import annotations

import ssl


def client_context(ca_bundle: str | None, authority: str | None = None) -> ssl.SSLContext:
    """Trusts the system's roots, those in the PEM file `ca_bundle`, and the PEM text `authority`. Raises
    `ValueError`."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    try:
        if ca_bundle is not None:
            context.load_verify_locations(cafile=ca_bundle)
        if authority is not None:
            context.load_verify_locations(cadata=authority)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ValueError(f"certificate authority cannot be read: {error}") from error
    return context
