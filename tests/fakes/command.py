"""Running `fastllm` as operators do: a process, its exit code and what it printed."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping

import msgspec

SECRETS = {"FASTLLM_ENCRYPTION_KEY": "11" * 32, "FASTLLM_PROXY_TOKEN": "proxy-token-for-tests"}


class Done(msgspec.Struct, frozen=True):
    code: int
    out: str
    errors: str


async def started(
    *arguments: str, environ: Mapping[str, str] | None = None, url: str | None = None
) -> asyncio.subprocess.Process:
    """`fastllm ARGUMENTS…` with all three streams as pipes and only the settings that are given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FASTLLM_")}
    database = {} if url is None else {"FASTLLM_DATABASE_URL": url, **SECRETS}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-P", "-m", "fastllm_control", *arguments),
        env={**kept, **database, **(environ or {})},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def fastllm(
    *arguments: str, environ: Mapping[str, str] | None = None, url: str | None = None, typed: str = ""
) -> Done:
    """Run `fastllm ARGUMENTS…` to its end, with `typed` on standard input."""
    process = await started(*arguments, environ=environ, url=url)
    async with asyncio.timeout(60):
        out, errors = await process.communicate(typed.encode())
    return Done(process.returncode or 0, out.decode(), errors.decode())
