from __future__ import annotations

import os
import resource
import subprocess
import sys

from fastllm_proxy.native import missing_extensions, raise_file_limit

CODE = "from fastllm_proxy.native import missing_extensions; print(missing_extensions())"


def test_this_installation_is_whole() -> None:
    assert missing_extensions() == []


def test_extensions_that_are_switched_off_are_noticed() -> None:
    told = subprocess.run(
        [sys.executable, "-c", CODE],
        env=os.environ | {"AIOHTTP_NO_EXTENSIONS": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "aiohttp" in told


def test_an_extension_that_is_absent_is_named() -> None:
    hidden = f"import sys; sys.modules['uvloop.loop'] = None; {CODE}"
    told = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "['uvloop.loop']"


def test_the_soft_limit_becomes_the_hard_one() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
        raised = raise_file_limit()
        assert raised == resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 512
        assert raised == before[1] or before[1] == resource.RLIM_INFINITY
        assert raise_file_limit() == raised
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
