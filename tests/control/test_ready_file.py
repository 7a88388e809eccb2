from __future__ import annotations

import json
import shlex
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fastllm_control.ready_file import (
    Login,
    Pids,
    Ready,
    announcement,
    curl_line,
    remove_stale,
    write_ready,
)

READY = Ready(
    proxy_url="http://127.0.0.1:4000",
    proxy_urls=("http://127.0.0.1:4000", "http://127.0.0.1:5000"),
    control_url="http://127.0.0.1:4001",
    admin=Login("admin", "pass-word"),
    api_key="sk-key",
    proxy_token="token",
    database_url="postgresql://fastllm:secret@127.0.0.1:5/fastllm",
    demo_model="smollm2",
    curl="curl …",
    pids=Pids(up=1, control=2, postgres=3, engine=None, proxies=(4, None)),
)
SECRETS = ("pass-word", "sk-key")


def told(ready: Ready = READY, *, secrets: bool = True) -> str:
    return announcement(ready, Path("/data"), Path("/data/ready.json"), secrets=secrets)


def changed(**fields: Any) -> Ready:
    return msgspec.structs.replace(READY, **fields)


def test_the_file_holds_these_fields_for_its_owner_alone(tmp_path: Path) -> None:
    write_ready(tmp_path / "ready.json", READY)
    assert stat.S_IMODE((tmp_path / "ready.json").stat().st_mode) == 0o600
    assert json.loads((tmp_path / "ready.json").read_text()) == {
        "proxy_url": "http://127.0.0.1:4000",
        "proxy_urls": ["http://127.0.0.1:4000", "http://127.0.0.1:5000"],
        "control_url": "http://127.0.0.1:4001",
        "admin": {"name": "admin", "password": "pass-word"},
        "api_key": "sk-key",
        "proxy_token": "token",
        "database_url": "postgresql://fastllm:secret@127.0.0.1:5/fastllm",
        "demo_model": "smollm2",
        "curl": "curl …",
        "pids": {"up": 1, "control": 2, "postgres": 3, "engine": None, "proxies": [4, None]},
    }


def test_a_stale_file_goes_and_an_absent_one_is_no_error(tmp_path: Path) -> None:
    write_ready(tmp_path / "ready.json", READY)
    remove_stale(tmp_path / "ready.json")
    remove_stale(tmp_path / "ready.json")
    assert list(tmp_path.iterdir()) == []


def test_the_first_announcement_ends_in_login_key_and_curl() -> None:
    lines = told().splitlines()
    assert lines[-1] == READY.curl
    assert [line.split()[-1] for line in lines[-5:-2]] == ["http://127.0.0.1:4001", "pass-word", "sk-key"]


def test_later_announcements_hold_no_secret_and_point_to_the_file() -> None:
    text = told(secrets=False)
    assert not [secret for secret in SECRETS if secret in text]
    assert "/data/ready.json" in text
    assert "in the ready file" in text


@pytest.mark.parametrize("secrets", [True, False])
def test_where_nothing_is_known_nothing_is_promised(secrets: bool) -> None:
    text = told(changed(admin=None, api_key=None), secrets=secrets)
    assert "in the ready file" not in text
    assert "None" not in text


def test_the_curl_line_survives_a_shell() -> None:
    words = shlex.split(curl_line("http://127.0.0.1:4000", "sk-key", "smollm2"))
    assert words[:3] == ["curl", "-s", "http://127.0.0.1:4000/v1/chat/completions"]
    assert "Authorization: Bearer sk-key" in words
    body = json.loads(words[-1])
    assert body["model"] == "smollm2"
    assert body["messages"][0]["role"] == "user"


def test_without_a_model_the_curl_line_lists_the_models() -> None:
    words = shlex.split(curl_line("http://127.0.0.1:4000", "sk-key", None))
    assert words == ["curl", "-s", "http://127.0.0.1:4000/v1/models", "-H", "Authorization: Bearer sk-key"]


def test_without_a_key_the_curl_line_takes_it_from_the_environment() -> None:
    line = curl_line("http://127.0.0.1:4000", None, "smollm2")
    assert '"Authorization: Bearer $FASTLLM_KEY"' in line
