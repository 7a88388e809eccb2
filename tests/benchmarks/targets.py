"""What a benchmark run starts: the mock engine, nginx in front of it, and the product in front of it.

Everything binds loopback, keeps its files in the run's own folder and ends with the run. The gateways share
core 0 (the idle one is stopped meanwhile), engine and load share core 1.
"""

from __future__ import annotations

import http.cookiejar
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tests.benchmarks import measure

GATEWAY_CORE, LOAD_CORE = 0, 1
MODEL = "mock-model"


class Target(msgspec.Struct, frozen=True):
    """Something to send load to; `pid` is the process whose CPU counts, `None` for the engine itself."""

    name: str
    port: int
    key: str
    pid: int | None
    root: int
    """The process that was started, with whatever it started itself."""
    control: int | None = None

    def family(self) -> list[int]:
        return measure.family(self.root)

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Without the control plane, which would be on another machine: taking in usage, it and its Postgres
        hold up engine and load on their core for milliseconds. The proxy keeps 10,000 events meanwhile."""
        if self.control is None:
            yield
            return
        os.kill(self.control, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.control, signal.SIGCONT)

    def resume(self) -> None:
        if self.pid is not None:
            os.kill(self.pid, signal.SIGCONT)

    def pause(self) -> None:
        if self.pid is not None:
            os.kill(self.pid, signal.SIGSTOP)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def await_port(port: int, process: subprocess.Popen[Any], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"nothing listens on port {port}: {process.args!r} (exit code {process.poll()})")


@contextmanager
def started(command: list[str], **how: Any) -> Iterator[subprocess.Popen[str]]:
    """A child that is ended, and waited for, on leaving."""
    process = subprocess.Popen(command, text=True, **how)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()


@contextmanager
def all_targets(folder: Path) -> Iterator[list[Target]]:
    """The engine alone (`direct`), `nginx` and `fastllm`, warm and paused."""
    with ExitStack() as stack:
        engine = stack.enter_context(
            started([sys.executable, "-m", "tests.benchmarks.mock_engine"], stdout=subprocess.PIPE)
        )
        assert engine.stdout is not None
        engine_port = int(engine.stdout.readline())
        measure.pin(engine.pid, LOAD_CORE)
        targets = [
            Target("direct", engine_port, "none", None, engine.pid),
            stack.enter_context(_nginx(folder, engine_port)),
            stack.enter_context(_fastllm(folder, engine_port)),
        ]
        try:
            yield targets
        finally:
            for target in targets:
                target.resume()


@contextmanager
def _nginx(folder: Path, engine_port: int) -> Iterator[Target]:
    binary = shutil.which("nginx") or "/usr/sbin/nginx"
    if not Path(binary).exists():
        raise SystemExit(
            "the benchmark compares with nginx: install it (Debian: apt-get install nginx-light wrk)"
        )
    port = free_port()
    text = (Path(__file__).parent / "nginx.conf").read_text()
    (folder / "nginx.conf").write_text(
        text.replace("ENGINE_PORT", str(engine_port)).replace("LISTEN_PORT", str(port))
    )
    command = [binary, "-e", "stderr", "-p", str(folder), "-c", "nginx.conf"]
    with started(command, stderr=subprocess.DEVNULL) as process:
        await_port(port, process)
        worker = next(pid for pid in measure.family(process.pid) if pid != process.pid)
        measure.pin(worker, GATEWAY_CORE)
        yield Target("nginx", port, "none", worker, process.pid)


@contextmanager
def _fastllm(folder: Path, engine_port: int) -> Iterator[Target]:
    ready = folder / "ready.json"
    port = free_port()
    command = [sys.executable, "-m", "fastllm_control", "up", "--data-dir", str(folder / "data")]
    command += ["--port", str(port), "--control-port", str(free_port()), "--ready-file", str(ready)]
    with open(folder / "fastllm.log", "w") as log, started(command, stdout=log, stderr=log) as process:
        deadline = time.monotonic() + 60
        while not ready.exists():
            if time.monotonic() > deadline or process.poll() is not None:
                raise SystemExit("fastllm did not start:\n" + (folder / "fastllm.log").read_text())
            time.sleep(0.1)
        facts = json.loads(ready.read_text())
        _configure(facts, engine_port)
        proxy = int(facts["pids"]["proxies"][0])
        for pid in measure.family(process.pid):
            if pid != proxy:
                measure.pin(pid, LOAD_CORE)
        measure.pin(proxy, GATEWAY_CORE)
        yield Target("fastllm", port, facts["api_key"], proxy, process.pid, int(facts["pids"]["control"]))


def _configure(facts: dict[str, Any], engine_port: int) -> None:
    """One provider, one provider model, one frontend model, and the wait until the proxy serves it."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))

    def post(path: str, body: object) -> None:
        request = urllib.request.Request(
            facts["control_url"] + path, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        opener.open(request, timeout=10).close()

    post("/login", facts["admin"])
    post("/admin/providers", {"name": "engine", "api_base": f"http://127.0.0.1:{engine_port}/v1"})
    backends = [{"provider": "engine", "upstream_model": MODEL}]
    post("/admin/provider-models", {"name": "inventory", "context_length": 100_000, "backends": backends})
    post("/admin/frontend-models", {"name": MODEL, "targets": [{"target": "inventory"}]})
    probe = urllib.request.Request(
        facts["proxy_url"] + "/v1/models", headers={"authorization": "Bearer " + facts["api_key"]}
    )
    deadline = time.monotonic() + 10
    while MODEL not in urllib.request.urlopen(probe, timeout=5).read().decode():
        if time.monotonic() > deadline:
            raise SystemExit("the proxy never served the benchmark's model")
        time.sleep(0.05)
