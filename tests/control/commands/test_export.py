"""`fastllm export`."""

from __future__ import annotations

from pathlib import Path

from tests.fakes.command import fastllm
from tests.fakes.configuration import Stock
from tests.fakes.declared import Files


async def test_it_prints_the_file_that_apply_reads(database_url: str, files: Files, stock: Stock) -> None:
    await stock.provider("gpu-1", upstream_api_key="canary")
    done = await fastllm("export", url=database_url)
    assert (done.code, done.errors) == (0, "")
    assert done.out == await files.export()
    assert "canary" not in done.out


async def test_it_writes_a_file_in_one_step(database_url: str, tmp_path: Path, files: Files) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text("old")
    done = await fastllm("export", "--output", str(path), url=database_url)
    assert (done.code, done.out, done.errors) == (0, "", "")
    assert path.read_text() == await files.export()
    assert not path.with_name("gateway.yaml.new").exists()


async def test_it_needs_no_encryption_key_unless_there_are_headers(database_url: str, stock: Stock) -> None:
    environ = {"FASTLLM_DATABASE_URL": database_url}
    await stock.provider("gpu-1", upstream_api_key="canary")
    assert (await fastllm("export", environ=environ)).code == 0
    await stock.provider("gpu-2", extra_headers={"x-a": "canary"})
    refused = await fastllm("export", environ=environ)
    assert refused.code == 1
    assert refused.errors.startswith("fastllm export: FASTLLM_ENCRYPTION_KEY is needed")
    assert refused.errors.count("\n") == 1
    wrong = await fastllm("export", environ={**environ, "FASTLLM_ENCRYPTION_KEY": "12"})
    assert wrong.code == 2
    assert wrong.errors.startswith("fastllm export: FASTLLM_ENCRYPTION_KEY: key 1 must be 64")
