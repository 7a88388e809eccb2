from __future__ import annotations

from pathlib import Path

import pytest

from fastllm_control.kept_secrets import KeptSecrets
from fastllm_control.up_processes import Processes, choose_addresses
from fastllm_control.up_settings import read_settings
from tests.fakes.process_table import command_line, environment


def build(tmp_path: Path, *arguments: str, environ: dict[str, str] | None = None) -> Processes:
    settings, passed = read_settings(arguments, environ or {})
    addresses = choose_addresses(settings, KeptSecrets(tmp_path / "secrets"))
    return Processes(addresses, passed, {"PATH": "/bin", **(environ or {})}, tmp_path / "logs")


def test_ports_that_were_asked_for_and_free_ones_for_the_rest(tmp_path: Path) -> None:
    settings, _ = read_settings(["--port", "4100", "--control-port", "0", "--proxies", "3"], {})
    addresses = choose_addresses(settings, KeptSecrets(tmp_path))
    assert addresses.proxy_ports[0] == 4100
    assert len({addresses.control_port, *addresses.proxy_ports}) == 4
    assert addresses.proxy_urls[0] == "http://127.0.0.1:4100"


def test_the_engine_has_the_same_port_again_if_it_is_free(tmp_path: Path) -> None:
    settings, _ = read_settings(["--demo"], {})
    kept = KeptSecrets(tmp_path)
    first = choose_addresses(settings, kept).engine_port
    assert choose_addresses(settings, kept).engine_port == first


@pytest.mark.parametrize(
    ("host", "url"), [("0.0.0.0", "http://127.0.0.1:7"), ("::", "http://[::1]:7"), ("::1", "http://[::1]:7")]
)
def test_an_address_to_listen_on_becomes_one_to_dial(tmp_path: Path, host: str, url: str) -> None:
    settings, _ = read_settings(["--control-host", host, "--control-port", "7"], {})
    assert choose_addresses(settings, KeptSecrets(tmp_path)).control_url == url


def test_secrets_reach_those_whom_they_concern_and_no_command_line(tmp_path: Path) -> None:
    environ = {"FASTLLM_WEBHOOK_SECRET": "hook", "FASTLLM_HEALTH_INTERVAL": "3"}
    processes = build(tmp_path, environ=environ)
    control = processes.control("postgresql://db", "encryption", "token-1")
    (proxy,) = processes.proxies("token-1")
    engine = processes.engine("engine-key")
    for one in (control, proxy, engine):
        one.start()
    try:
        found = {one.name: environment(one.pid or 0) for one in (control, proxy, engine)}
        shown = " ".join(command_line(one.pid or 0) for one in (control, proxy, engine))
    finally:
        for one in (control, proxy, engine):
            one.kill()
    ours = {
        name: {key: value for key, value in values.items() if key.startswith("FASTLLM_")}
        for name, values in found.items()
    }
    assert ours["control"] == {
        "FASTLLM_DATABASE_URL": "postgresql://db",
        "FASTLLM_ENCRYPTION_KEY": "encryption",
        "FASTLLM_PROXY_TOKEN": "token-1",
        "FASTLLM_WEBHOOK_SECRET": "hook",
    }
    assert ours["proxy-1"] == {"FASTLLM_PROXY_TOKEN": "token-1"}
    assert ours["engine"] == {"FASTLLM_ENGINE_KEY": "engine-key"}
    assert "--health-interval 3.0" in shown
    assert not [secret for secret in ("encryption", "token-1", "engine-key", "hook") if secret in shown]
