"""What a provider's row keeps sealed: its credential, and its extra headers, which often hold another one.

Each value is bound to its row and column. Extra headers are one JSON object of texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import UUID

import msgspec

from fastllm_control.secrets import Keyring, Place

Open = Callable[[str, Place], str]
"""`Keyring.open`: raises `Undecryptable`."""


def seal_credential(ring: Keyring, provider_id: UUID, credential: str | None) -> str | None:
    """The `credential` column's value."""
    return None if credential is None else ring.seal(credential, _credential(provider_id))


def open_credential(open_secret: Open, provider_id: UUID, sealed: str | None) -> str | None:
    """The usable credential; raises `Undecryptable`."""
    return None if sealed is None else open_secret(sealed, _credential(provider_id))


def seal_headers(ring: Keyring, provider_id: UUID, headers: Mapping[str, str]) -> str | None:
    """The `extra_headers` column's value; NULL for none."""
    if not headers:
        return None
    return ring.seal(msgspec.json.encode(dict(headers)).decode(), _headers(provider_id))


def open_headers(open_secret: Open, provider_id: UUID, sealed: str | None) -> dict[str, str]:
    """The usable extra headers; raises `Undecryptable`."""
    if sealed is None:
        return {}
    return msgspec.json.decode(open_secret(sealed, _headers(provider_id)).encode(), type=dict[str, str])


def _credential(provider_id: UUID) -> Place:
    return Place.of("providers", "credential", provider_id)


def _headers(provider_id: UUID) -> Place:
    return Place.of("providers", "extra_headers", provider_id)
