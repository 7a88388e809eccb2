"""What `fastllm up` made up on its first run and needs again on every other: files of mode 0600."""

from __future__ import annotations

import secrets
from pathlib import Path

from fastllm_control.private_files import read_or_make, write_private


class KeptSecrets:
    """The folder `DIR/secrets`, mode 0700, one file a secret."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def encryption_key(self) -> str:
        """32 bytes as hex: what upstream credentials are encrypted with."""
        return read_or_make(self._folder / "encryption-key", lambda: secrets.token_hex(32))

    def proxy_token(self) -> str:
        """What proxies prove themselves with to the control plane."""
        return read_or_make(self._folder / "proxy-token", lambda: secrets.token_urlsafe(32))

    def engine_key(self) -> str:
        """What the demo engine asks of its callers."""
        return read_or_make(self._folder / "engine-key", lambda: secrets.token_urlsafe(32))

    def admin_password(self) -> str | None:
        """The password that the first run gave to the first login, if it was one of ours."""
        return self._read("admin-password")

    def keep_admin_password(self, password: str) -> None:
        self._write("admin-password", password)

    def api_key(self) -> str | None:
        """The key that the first run made, if it was one of ours."""
        return self._read("api-key")

    def keep_api_key(self, key: str) -> None:
        self._write("api-key", key)

    def shown(self) -> bool:
        """Whether a person has been shown the login and the key."""
        return self._read("shown") is not None

    def keep_shown(self) -> None:
        self._write("shown", "the first login and key were printed")

    def engine_port(self) -> int | None:
        """The port that the demo engine had the last time, which is the one that is configured."""
        text = self._read("engine-port")
        return int(text) if text else None

    def keep_engine_port(self, port: int) -> None:
        self._write("engine-port", str(port))

    def _read(self, name: str) -> str | None:
        try:
            return (self._folder / name).read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return None

    def _write(self, name: str, text: str) -> None:
        write_private(self._folder / name, text + "\n")
