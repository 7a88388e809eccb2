"""Settings of the control plane."""

from __future__ import annotations

from typing import Any

import pytest

from fastllm_control.config import ControlSettings, DatabaseSettings, driver_url
from fastllm_shared.settings import MASKED, SettingsError, effective, load, settings_of

SECRETS = {
    "FASTLLM_DATABASE_URL": "postgresql://user:database-canary@db/fastllm",
    "FASTLLM_ENCRYPTION_KEY": "11" * 32,
    "FASTLLM_PROXY_TOKEN": "proxy-token-canary",
    "FASTLLM_WEBHOOK_SECRET": "webhook-canary",
}


def loaded(*arguments: str, **environ: str) -> ControlSettings:
    return load(ControlSettings, "fastllm control", arguments, {**SECRETS, **environ})


def problems(*arguments: str, **environ: str) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as refused:
        loaded(*arguments, **environ)
    return refused.value.problems


def test_the_defaults_that_users_quote() -> None:
    settings = loaded()
    assert (settings.host, settings.port) == ("127.0.0.1", 4001)
    assert (settings.config_poll, settings.health_report_interval) == (5, 10)
    assert (settings.provider_sweep_interval, settings.provider_delete_after) == (60, 1800)
    assert (settings.retention_days, settings.session_seconds) == (90, 12 * 3600)
    assert (settings.shutdown_grace, settings.rate_limit_reconcile_interval) == (30, 5)
    assert not settings.pgbouncer
    assert not settings.serves_tls


def test_flags_win_over_variables() -> None:
    assert loaded(FASTLLM_CONFIG_POLL="7").config_poll == 7
    assert loaded("--config-poll", "3", FASTLLM_CONFIG_POLL="7").config_poll == 3
    assert loaded("--pgbouncer").pgbouncer


def test_secrets_have_no_flags_and_are_shown_nowhere() -> None:
    secret = {setting.field for setting in settings_of(ControlSettings) if setting.secret}
    assert secret == {"database_url", "encryption_key", "proxy_token", "webhook_secret"}
    settings = loaded()
    for shown in (repr(settings), str(effective(settings))):
        assert "canary" not in shown
        assert "11" * 32 not in shown
    assert effective(settings)["proxy_token"] == MASKED
    assert effective(loaded(FASTLLM_WEBHOOK_SECRET=""))["webhook_secret"] is None


def test_all_that_is_wrong_is_said_at_once() -> None:
    found = "\n".join(
        problems(
            "--port", "70000", "--retention-days", "x", FASTLLM_ENCRYPTION_KEY="", FASTLLM_PROXY_TOKEN=""
        )
    )
    for name in ("--port", "--retention-days", "FASTLLM_ENCRYPTION_KEY", "FASTLLM_PROXY_TOKEN"):
        assert name in found


@pytest.mark.parametrize(
    ("arguments", "environ", "named"),
    [
        (("--tls-cert", "x.pem"), {}, "--tls-key"),
        (("--trusted-proxies", "10.0.0.0/8, nonsense"), {}, "--trusted-proxies"),
        ((), {"FASTLLM_PROXY_TOKEN": "short"}, "FASTLLM_PROXY_TOKEN"),
        ((), {"FASTLLM_PROXY_TOKEN": ",".join(["sixteen-letters-1"] * 3)}, "FASTLLM_PROXY_TOKEN"),
        ((), {"FASTLLM_DATABASE_URL": "mysql://x@y/z"}, "FASTLLM_DATABASE_URL"),
        ((), {"FASTLLM_DATABASE_URL": "canary"}, "FASTLLM_DATABASE_URL"),
    ],
)
def test_values_that_do_not_go_together(
    arguments: tuple[str, ...], environ: dict[str, str], named: str
) -> None:
    (found,) = problems(*arguments, **environ)
    assert named in found
    assert "canary" not in found


def test_lists() -> None:
    settings = loaded(
        "--trusted-proxies", "10.0.0.0/8, 192.0.2.7", FASTLLM_PROXY_TOKEN="a" * 16 + "," + "b" * 16
    )
    assert [str(network) for network in settings.trusted_networks()] == ["10.0.0.0/8", "192.0.2.7/32"]
    assert settings.proxy_tokens() == ("a" * 16, "b" * 16)
    assert loaded().trusted_networks() == ()


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+asyncpg"])
def test_every_spelling_of_the_address_means_our_driver(scheme: str) -> None:
    assert driver_url(f"{scheme}://u:p@h:1/d?ssl=require") == "postgresql+asyncpg://u:p@h:1/d?ssl=require"


def test_commands_need_only_the_database() -> None:
    environ: dict[str, Any] = {"FASTLLM_DATABASE_URL": "postgres://u@h/d"}
    assert load(DatabaseSettings, "fastllm x", (), environ).database_pool_size == 10
