"""The OpenAI SDK against a proxy with a certificate of a private authority, configured as the documentation
says: by `OPENAI_BASE_URL` and `SSL_CERT_FILE`."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest

from tests.fakes.certificates import Authority
from tests.fakes.control import FakeControl
from tests.fakes.engine import FakeEngine
from tests.fakes.proxy import run_proxy
from tests.fakes.replica import KEY, MODEL, snapshot_of


async def test_the_sdk_over_tls_by_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    bundle = tmp_path / "ca.crt"
    bundle.write_text(authority.pem, encoding="utf-8")
    async with FakeEngine.start() as engine, FakeControl.start() as control:
        control.publish(snapshot_of(engine.url))
        async with run_proxy(*authority.issue("127.0.0.1").flags, control_url=control.url) as proxy:
            await proxy.until("snapshot accepted")
            monkeypatch.setenv("OPENAI_BASE_URL", proxy.url + "/v1")
            monkeypatch.setenv("OPENAI_API_KEY", KEY)
            async with openai.AsyncOpenAI(max_retries=0) as stranger:
                with pytest.raises(openai.APIConnectionError):
                    await stranger.models.list()
            monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
            async with openai.AsyncOpenAI(max_retries=0) as client:
                assert [model.id async for model in client.models.list()] == [MODEL]
                answer = await client.chat.completions.create(
                    model=MODEL, messages=[{"role": "user", "content": "hi"}]
                )
                assert answer.choices[0].message.content == "Hello from the fake engine."
                stream = await client.chat.completions.create(
                    model=MODEL, messages=[{"role": "user", "content": "hi"}], stream=True
                )
                words = [chunk.choices[0].delta.content or "" async for chunk in stream]
                assert "".join(words) == "Hello from the fake engine."
            assert not [line for line in proxy.logged if line.get("level") in ("warning", "error")]
