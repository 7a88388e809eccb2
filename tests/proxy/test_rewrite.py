"""What a backend is sent."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from fastllm_proxy.forms import Form
from fastllm_proxy.peek import Peek
from fastllm_proxy.rewrite import Upload, body_for, upload_for
from fastllm_proxy.spool import BLOCK_BYTES, Spool, Spools
from tests.fakes.engine import Answer
from tests.fakes.forms import audio
from tests.fakes.log import CapturedLog
from tests.proxy.fleet import ILL, fleet
from tests.proxy.parts import exchange, live_backend
from tests.proxy.rig import MODEL, chat


async def test_each_backend_is_sent_its_own_name_of_the_model(tmp_path: Path) -> None:
    async with fleet(tmp_path, ILL, Answer()) as (proxy, engines):
        proxy.backend(2).entry = type(proxy.backend(2).entry)(
            "backend-2", "provider-2", "model-1", upstream_model=MODEL
        )
        body = b' {"messages":[],  "model" :"assistant", "x":{"model":"assistant"}}'
        assert (await proxy.post(body=body)).status == 200
        assert engines[0].requests[0].body == body.replace(b'"assistant"', b'"fake-model"', 1)
        assert engines[1].requests[0].body == body


@pytest.mark.parametrize(("usage", "asked"), [("inject", True), ("never", False)])
async def test_usage_is_asked_for_unless_the_provider_rejects_that(
    tmp_path: Path, usage: str, asked: bool
) -> None:
    async with fleet(tmp_path, Answer(), providers={"stream_usage": usage}) as (proxy, engines):
        await proxy.post(body=chat(stream=True))
        assert ("stream_options" in engines[0].requests[0].json()) is asked
        event = await proxy.events.get()
        assert event.usage_reported is asked
        assert event.prompt_tokens == (7 if asked else None)


async def test_usage_is_not_asked_for_where_it_does_not_belong(tmp_path: Path) -> None:
    async with fleet(tmp_path, Answer()) as (proxy, engines):
        await proxy.post(body=chat(stream=False))
        await proxy.post(body=chat(stream=None))
        await proxy.post("/v1/messages", body=chat(stream=True, max_tokens=5))
        for request in engines[0].requests:
            assert "stream_options" not in request.json()
        assert (await proxy.events.get(3)).completion_tokens == 6


async def test_a_large_body_arrives_as_it_is(tmp_path: Path) -> None:
    async with fleet(tmp_path, Answer()) as (proxy, engines):
        body = chat(messages=[{"role": "user", "content": "é" * 500_000}], stream=True)
        assert (await proxy.post(body=body)).status == 200
        sent = engines[0].requests[0]
        expected = body.replace(b'"assistant"', b'"fake-model"', 1)
        assert sent.body == b'{"stream_options":{"include_usage":true},' + expected[1:]


@pytest.mark.parametrize(
    ("start", "end", "name"),
    [(0, 0, b"m"), (0, 4, b""), (3, 3, b""), (5, 14, b"longer-than-it-was"), (599_990, 600_000, b"x")],
)
async def test_an_upload_is_its_file_with_the_model_in_its_place(
    tmp_path: Path, start: int, end: int, name: bytes
) -> None:
    spools = Spools(CapturedLog().log, str(tmp_path))
    spool = await spools.open()
    data = audio(600_000)
    await spool.write(data)
    await spool.flush()
    for _ in range(2):  # each attempt has a position of its own
        upload = Upload(spool, len(data), (start, end, name))
        pieces = []
        while piece := await upload.next_piece():
            assert len(piece) <= BLOCK_BYTES
            pieces.append(piece)
        assert await upload.next_piece() == b""
        assert b"".join(pieces) == data[:start] + name + data[end:]
        assert sum(map(len, pieces)) == upload.size
    spool.close()
    spools.close()


def test_a_form_in_memory_is_spliced_and_one_on_disk_is_not_read_for_it() -> None:
    made, backend = exchange(), live_backend(1)
    made.body = b"--b...assistant..."
    made.peek = Peek("assistant", (6, 15), stream=True, options_span=None, first_member=0, members={})
    made.form = Form(18, 0, None)
    assert b"".join(body_for(made, backend)) == b"--b...fake-model..."
    assert upload_for(made, backend) is None
    made.form = Form(18, 0, cast(Spool, object()))
    assert body_for(made, backend) == []
    upload = upload_for(made, backend)
    assert upload is not None
    assert upload.size == 19
    assert made.injected_usage is False
