"""The file by which scripts learn that `fastllm up` is ready, and how to reach all of it."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import msgspec

from fastllm_control.private_files import write_private


class Login(msgspec.Struct, frozen=True):
    name: str
    password: str


class Pids(msgspec.Struct, frozen=True, kw_only=True):
    """`None` for a part that is not ours (another's Postgres), not wanted, or just now not running."""

    up: int
    control: int | None
    postgres: int | None
    engine: int | None
    proxies: tuple[int | None, ...]


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a script needs. `admin` and `api_key` are `None` when they are not known here: somebody
    else made the first login, or this one was changed since."""

    proxy_url: str
    proxy_urls: tuple[str, ...]
    control_url: str
    admin: Login | None
    api_key: str | None
    proxy_token: str
    database_url: str
    demo_model: str | None
    curl: str
    pids: Pids


def write_ready(path: Path, ready: Ready) -> None:
    """Atomically, mode 0600."""
    write_private(path, msgspec.json.format(msgspec.json.encode(ready), indent=2).decode() + "\n")


def remove_stale(path: Path) -> None:
    """What an earlier run left: whoever waits for the file must not find it.

    Raises `FileNotFoundError` when there is no folder for the file to be written to.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "the ready file's folder does not exist", str(path.parent))
    path.unlink(missing_ok=True)


def announcement(ready: Ready, data_dir: Path, file: Path, *, secrets: bool) -> str:
    """What a person is told once all of it answers. `secrets`: nobody has been shown them yet."""
    lines = ["", "FastLLM is ready.", ""]
    lines += [f"  clients use      {url}/v1" for url in ready.proxy_urls]
    lines += [f"  data and logs    {data_dir}", f"  ready file       {file}", ""]
    address = f"  admin address    {ready.control_url}"
    if ready.admin is None and ready.api_key is None:
        lines += [
            address,
            "",
            "The logins and keys are those that the database held already, or that were set since.",
        ]
    elif not secrets:
        lines += [address, "", "The login, the key and a curl line that works are in the ready file."]
    else:
        lines += ["This is shown once; the ready file holds it too.", "", address]
        lines += [f"  admin login      {ready.admin.name} / {ready.admin.password}"] if ready.admin else []
        lines += [f"  API key          {ready.api_key}"] if ready.api_key else []
        lines += ["", ready.curl]
    return "\n".join(lines) + "\n"


def curl_line(proxy_url: str, api_key: str | None, model: str | None) -> str:
    """A command that works as pasted into a shell; without a model to ask, it lists the models."""
    authorization = f"-H 'Authorization: Bearer {api_key or '$FASTLLM_KEY'}'"
    if api_key is None:
        authorization = authorization.replace("'", '"')
    if model is None:
        return f"curl -s {proxy_url}/v1/models {authorization}"
    body = json.dumps(
        {"model": model, "max_tokens": 64, "messages": [{"role": "user", "content": "Say hello."}]}
    )
    return (
        f"curl -s {proxy_url}/v1/chat/completions {authorization}"
        f" -H 'Content-Type: application/json' -d '{body}'"
    )
