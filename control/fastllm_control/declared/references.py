"""Where secrets come from when a file is applied: a file names them, and never holds them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn, Protocol

import msgspec
from msgspec import UNSET, Struct, UnsetType

from fastllm_control.declared.document import DeclaredProvider, SecretReference
from fastllm_control.errors import ApiError, Conflict, Invalid
from fastllm_control.forms import Credential, HeaderValue
from fastllm_control.provider_secrets import open_credential, open_headers
from fastllm_control.secrets import Keyring, Place, Undecryptable
from fastllm_control.services.providers import same_origin
from fastllm_control.tables.configuration import Provider

_MAX_FILE_BYTES = 64 * 1024


class Secrets(Protocol):
    """What references stand for."""

    def resolve(self, reference: SecretReference) -> str | None:
        """The secret, `None` if nothing is there. Raises `Invalid` for what is there but cannot be read."""


class EnvironmentSecrets:
    """Of whoever runs the command: their environment, and files, relative to `folder`."""

    def __init__(self, environ: Mapping[str, str], folder: Path) -> None:
        self._environ = environ
        self._folder = folder

    def resolve(self, reference: SecretReference) -> str | None:
        if reference.env is not None:
            return self._environ.get(reference.env) or None
        path = self._folder / str(reference.file)
        try:
            with path.open("rb") as file:
                text = file.read(_MAX_FILE_BYTES).decode().strip()
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise Invalid("unreadable_file", f"the file {path} cannot be read: {reason}") from None
        return text or None


class GivenSecrets:
    """Those that came with the call, by the name of the variable or file. Never the server's own environment
    or files: whoever may write configuration could have them sent to an address of their choice."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given

    def resolve(self, reference: SecretReference) -> str | None:
        return self._given.get(str(reference.env or reference.file)) or None


class NoKeyring(Keyring):
    """In the place of `FASTLLM_ENCRYPTION_KEY` where it was not given: it is asked for when it is needed."""

    __slots__ = ()

    def __init__(self) -> None:
        self._ciphers = {}
        self.key_ids = ()

    def seal(self, plain: str, place: Place) -> NoReturn:  # noqa: ARG002 (nothing can be sealed)
        _ask_for_key()

    def open(self, sealed: str, place: Place) -> NoReturn:  # noqa: ARG002 (nothing can be opened)
        _ask_for_key()


class Resolved(Struct, frozen=True):
    """The secrets of one provider. `UNSET` is what stays as it is stored; `kept` are the references that were
    not given and therefore say so, `changed` the fields that differ from what is stored."""

    upstream_api_key: str | UnsetType | None = UNSET
    extra_headers: Mapping[str, str] | UnsetType = UNSET
    kept: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def given(self) -> tuple[str | None, Mapping[str, str]]:
        """Credential and extra headers of a provider that is new: nothing stays as it is stored."""
        key = self.upstream_api_key if isinstance(self.upstream_api_key, str) else None
        return key, {} if isinstance(self.extra_headers, UnsetType) else self.extra_headers

    def __repr__(self) -> str:
        return "Resolved()"  # without what is secret of it


def resolve(entry: DeclaredProvider, stored: Provider | None, ring: Keyring, secrets: Secrets) -> Resolved:
    """Everything secret of a provider in the file. Raises `ApiError` naming the field."""
    kept: list[str] = []
    key = _credential(entry, stored, secrets, kept)
    held = _held_headers(stored, ring) if entry.extra_headers else {}
    headers = _headers(entry, stored, held, secrets, kept)
    changed = []
    if key is not UNSET and not _is_stored(key, stored, ring):
        changed.append("upstream_api_key")
    if held != headers or (stored is not None and not headers and stored.extra_headers is not None):
        changed.append("extra_headers")
    return Resolved(key, headers if "extra_headers" in changed else UNSET, tuple(kept), tuple(changed))


def named(reference: SecretReference) -> str:
    """A reference, for people."""
    if reference.env is not None:
        return f"the environment variable {reference.env}"
    return f"the file {reference.file}"


def _credential(
    entry: DeclaredProvider, stored: Provider | None, secrets: Secrets, kept: list[str]
) -> str | UnsetType | None:
    reference = entry.upstream_api_key
    if reference is None:
        return None
    value = _read(secrets, reference, "upstream_api_key")
    if value is not None:
        return _fitting(value, Credential, reference, "upstream_api_key")
    if stored is None or stored.credential is None:
        _refuse_absent(reference, "upstream_api_key")
    kept.append(f"{named(reference)} is not set: the credential of {entry.name} stays as it is stored")
    return UNSET


def _headers(
    entry: DeclaredProvider,
    stored: Provider | None,
    held: Mapping[str, str] | None,
    secrets: Secrets,
    kept: list[str],
) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in entry.extra_headers.items():
        field = f"extra_headers.{name}"
        if isinstance(value, str):
            found[name] = value
            continue
        text = _read(secrets, value, field)
        if text is not None:
            found[name] = _fitting(text, HeaderValue, value, field)
            continue
        if stored is None or held is None or name not in held:
            _refuse_absent(value, field)
        if not same_origin(stored.api_base, entry.api_base):
            message = f"what is stored was given for another host: {named(value)} is needed"
            raise Invalid("credential_for_another_host", message, field)
        kept.append(f"{named(value)} is not set: the header {name} of {entry.name} stays as it is stored")
        found[name] = held[name]
    return found


def _held_headers(stored: Provider | None, ring: Keyring) -> Mapping[str, str] | None:
    """The stored headers; `None` for those that no longer open."""
    if stored is None:
        return {}
    try:
        return open_headers(ring.open, stored.id, stored.extra_headers)
    except Undecryptable:
        return None


def _is_stored(value: str | None, stored: Provider | None, ring: Keyring) -> bool:
    if stored is None or stored.credential is None or value is None:
        return value is None and (stored is None or stored.credential is None)
    try:
        return open_credential(ring.open, stored.id, stored.credential) == value
    except Undecryptable:
        return False


def _read(secrets: Secrets, reference: SecretReference, field: str) -> str | None:
    try:
        return secrets.resolve(reference)
    except ApiError as error:
        raise Invalid(error.code, error.message, field) from None


def _fitting(value: str, kind: object, reference: SecretReference, field: str) -> str:
    try:
        return str(msgspec.convert(value, kind))
    except msgspec.ValidationError:
        message = (
            f"what {named(reference)} holds cannot be sent as a header: it is empty, too long, or has other"
        )
        raise Invalid("invalid_value", f"{message} characters than printable ASCII", field) from None


def _refuse_absent(reference: SecretReference, field: str) -> NoReturn:
    message = f"{named(reference)} is not set, and nothing is stored that could stay"
    raise Invalid("secret_missing", message, field)


def _ask_for_key() -> NoReturn:
    message = "FASTLLM_ENCRYPTION_KEY is needed: there are credentials to be read or written"
    raise Conflict("encryption_key_missing", message)
