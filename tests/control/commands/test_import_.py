"""`fastllm import --litellm`."""

from __future__ import annotations

from pathlib import Path

from fastllm_shared.keys import digest_of
from tests.fakes.access import Access
from tests.fakes.command import fastllm
from tests.fakes.litellm import CI_KEY, fill

CONFIG = """
model_list:
  - model_name: chat
    litellm_params: {model: openai/qwen, api_base: os.environ/ENGINE, api_key: canary-literal, max_retries: 3}
general_settings:
  master_key: sk-canary-1234
"""
ENVIRON = {"ENGINE": "http://127.0.0.1:9/v1"}


async def test_it_says_what_it_does_and_what_it_does_not_carry(
    access: Access, database_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    flags = ("import", "--litellm", str(path))
    dry = await fastllm(*flags, "--dry-run", url=database_url, environ=ENVIRON)
    assert (dry.code, await access.rows("SELECT 1 FROM providers")) == (0, [])
    done = await fastllm(*flags, url=database_url, environ=ENVIRON)
    assert done.code == 0, done.errors
    assert "+ frontend model chat\n" in done.out
    assert "? not carried: model_list[0].litellm_params.max_retries: " in done.out
    assert "the master key is weak" in done.out
    assert "canary" not in done.out + done.errors + dry.out + dry.errors
    again = await fastllm(*flags, url=database_url, environ=ENVIRON)
    assert again.out.startswith("= nothing to change\n")
    assert len(await access.rows("SELECT 1 FROM api_keys")) == 1


async def test_keys_come_out_of_litellms_database(
    access: Access, database_url: str, empty_database_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    await fill(empty_database_url)
    given = {**ENVIRON, "FASTLLM_LITELLM_DATABASE_URL": empty_database_url}
    done = await fastllm("import", "--litellm", str(path), url=database_url, environ=given)
    assert done.code == 0, done.errors
    assert "? not carried: LiteLLM_VerificationToken 'blocked': it is blocked\n" in done.out
    rows = await access.rows("SELECT digest FROM api_keys WHERE name = 'ci'")
    assert [row.digest for row in rows] == [digest_of(CI_KEY)]


async def test_what_is_wrong_is_said_line_by_line_and_changes_nothing(
    access: Access, database_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    lost = await fastllm("import", "--litellm", str(path), url=database_url)
    assert (lost.code, lost.out) == (1, "")
    assert lost.errors == (
        "fastllm import: model_list[0].litellm_params.api_base: the environment variable ENGINE is not set\n"
    )
    path.write_text("model_list: [\n")
    broken = await fastllm("import", "--litellm", str(path), url=database_url)
    assert (broken.code, broken.errors.count("\n")) == (1, 1)
    assert "config.yaml" in broken.errors
    none = await fastllm("import", url=database_url)
    assert (none.code, none.errors) == (2, "fastllm import: --litellm: required, but not set\n")
    assert await access.rows("SELECT 1 FROM providers") == []


async def test_a_gateways_own_port_is_no_provider(access: Access, database_url: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    own = {"ENGINE": "http://127.0.0.1:4000/v1"}
    refused = await fastllm("import", "--litellm", str(path), url=database_url, environ=own)
    assert (refused.code, await access.rows("SELECT 1 FROM providers")) == (1, [])
    ports = {**ENVIRON, "FASTLLM_OWN_PORTS": "9"}
    refused = await fastllm("import", "--litellm", str(path), url=database_url, environ=ports)
    assert (refused.code, await access.rows("SELECT 1 FROM providers")) == (1, [])
