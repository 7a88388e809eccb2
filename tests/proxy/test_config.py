from __future__ import annotations

from pathlib import Path

import pytest

from fastllm_proxy.config import ProxySettings, read_settings
from fastllm_shared.settings import SettingsError, settings_of
from tests.fakes.certificates import Authority

TOKEN = {"FASTLLM_PROXY_TOKEN": "token"}


def test_the_documented_defaults() -> None:
    settings = read_settings([], TOKEN)
    assert (settings.host, settings.port) == ("127.0.0.1", 4000)
    assert (settings.config_poll, settings.health_report_interval) == (5, 10)
    assert (settings.health_interval, settings.health_timeout, settings.unhealthy_after) == (10, 3, 2)
    assert (settings.upstream_timeout, settings.response_timeout) == (120, 600)
    assert (settings.max_retries, settings.max_body_mb, settings.max_buffered_mb) == (2, 64, 512)
    assert settings.sse_ping is None
    assert (settings.drain_delay, settings.shutdown_grace) == (5, 30)


def test_a_flag_wins_over_its_variable() -> None:
    settings = read_settings(["--port", "4100"], TOKEN | {"FASTLLM_PORT": "4200", "FASTLLM_HOST": "::1"})
    assert (settings.port, settings.host) == (4100, "::1")


def test_the_token_has_no_flag_and_may_be_two() -> None:
    assert all(setting.flag != "--proxy-token" for setting in settings_of(ProxySettings))
    assert read_settings([], {"FASTLLM_PROXY_TOKEN": "new, old"}).tokens == ("new", "old")


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(SettingsError) as raised:
        read_settings(["--port", "x", "--max-retries", "9", "--log-format", "xml"], {})
    told = "\n".join(raised.value.problems)
    for name in ("--port", "--max-retries", "--log-format", "FASTLLM_PROXY_TOKEN"):
        assert name in told


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--workers", "2"], "--workers: only 1 is supported"),
        (["--drain-delay", "31"], "--drain-delay: must not exceed --shutdown-grace"),
        (["--ca-bundle", "/no/such/file"], "--ca-bundle: certificate authority cannot be read"),
        (["--ca-bundle", __file__], "--ca-bundle: certificate authority cannot be read"),
        (["--control-url", "control:4001"], "--control-url: must be http"),
        (["--control-url", "http://control:4001/?x=1"], "--control-url: must be http"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(arguments: list[str], named: str) -> None:
    with pytest.raises(SettingsError) as raised:
        read_settings(arguments, TOKEN)
    assert named in str(raised.value)


def test_a_certificate_comes_with_its_key(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("gateway.example")
    settings = read_settings(pair.flags, TOKEN)
    assert (settings.tls_cert, settings.tls_key) == (str(pair.certificate), str(pair.key))
    for alone in (pair.flags[:2], pair.flags[2:]):
        with pytest.raises(SettingsError) as raised:
            read_settings(alone, TOKEN)
        assert "--tls-cert, --tls-key: set both or neither" in str(raised.value)


def test_a_bad_certificate_is_told_together_with_the_rest(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("gateway.example", passphrase=b"secret")
    with pytest.raises(SettingsError) as raised:
        read_settings([*pair.flags, "--workers", "2"], TOKEN)
    assert "--tls-key: is encrypted" in str(raised.value)
    assert "--workers" in str(raised.value)


def test_a_token_of_commas_is_none() -> None:
    with pytest.raises(SettingsError) as raised:
        read_settings([], {"FASTLLM_PROXY_TOKEN": " , "})
    assert "FASTLLM_PROXY_TOKEN" in str(raised.value)


def test_a_bad_token_is_not_repeated() -> None:
    with pytest.raises(SettingsError) as raised:
        read_settings(["--port", "-1"], {"FASTLLM_PROXY_TOKEN": "very-secret"})
    assert "very-secret" not in str(raised.value)
