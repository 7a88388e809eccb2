from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastllm_control.up_settings import DECIDED, default_data_dir, foreign_secrets, read_settings
from fastllm_shared.command import declared_settings
from fastllm_shared.settings import SettingsError


def test_without_anything_the_processes_keep_their_defaults() -> None:
    settings, passed = read_settings([], {})
    assert (settings.port, settings.control_port, settings.proxies, settings.demo) == (4000, 4001, 1, False)
    assert passed.flags("control") == []
    assert passed.flags("proxy") == ["--drain-delay", "0"]


@pytest.mark.parametrize(
    ("flag", "value", "planes"),
    [
        ("--health-interval", "2.0", ["proxy"]),
        ("--upstream-timeout", "5.0", ["proxy"]),
        ("--config-poll", "1.5", ["control", "proxy"]),
        ("--rate-limit-reconcile-interval", "1.0", ["control"]),
        ("--provider-sweep-interval", "7.0", ["control"]),
        ("--provider-delete-after", "60.0", ["control"]),
        ("--deny-private-upstreams", "true", ["control", "proxy"]),
    ],
)
def test_a_flag_goes_to_the_parts_that_declare_it(flag: str, value: str, planes: list[str]) -> None:
    _, passed = read_settings([flag, value], {})
    for plane, flags in (("control", passed.flags("control")), ("proxy", passed.flags("proxy"))):
        assert (flags[:2] == [flag, value]) is (plane in planes)


def test_every_flag_of_the_processes_is_taken_but_those_that_are_decided_here() -> None:
    for plane in ("control", "proxy"):
        for setting in declared_settings(plane):
            if setting.flag and setting.field not in DECIDED and setting.is_switch:
                _, passed = read_settings([setting.flag], {})
                assert passed.flags(plane)[:2] == [setting.flag, "true"]


def test_a_drain_delay_that_was_asked_for_is_kept() -> None:
    _, passed = read_settings(["--drain-delay", "2"], {})
    assert passed.flags("proxy") == ["--drain-delay", "2.0"]


def test_variables_do_as_flags_and_flags_win() -> None:
    environ = {"FASTLLM_PORT": "5000", "FASTLLM_HEALTH_INTERVAL": "3", "FASTLLM_DEMO": "true"}
    settings, passed = read_settings(["--health-interval", "2"], environ)
    assert (settings.port, settings.demo) == (5000, True)
    assert passed.proxy["health_interval"] == 2.0


def test_all_mistakes_are_told_together_whosever_they_are() -> None:
    with pytest.raises(SettingsError) as raised:
        read_settings(
            ["--port", "70000", "--health-interval", "x", "--config-poll", "-1", "--proxies", "0"], {}
        )
    assert sorted(problem.split(":")[0] for problem in raised.value.problems) == [
        "--config-poll",
        "--health-interval",
        "--port",
        "--proxies",
    ]


def test_a_flag_that_nobody_knows_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_settings(["--helth-interval", "2"], {})
    assert "--helth-interval" in capsys.readouterr().err


def test_secrets_have_no_flag(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("--database-url", "--encryption-key", "--proxy-token", "--webhook-secret"):
        with pytest.raises(SystemExit):
            read_settings([name, "x"], {})
        assert name in capsys.readouterr().err


def test_secrets_come_from_variables_and_files(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("postgresql://db/one\n")
    environ = {
        "FASTLLM_DATABASE_URL_FILE": str(tmp_path / "url"),
        "FASTLLM_PROXY_TOKEN": "proxy-token-for-tests",
    }
    settings, passed = read_settings([], environ)
    assert settings.database_url == "postgresql://db/one"
    assert settings.proxy_token == "proxy-token-for-tests"
    assert passed.flags("control") == []


def test_secrets_of_the_processes_are_handed_on_as_they_came() -> None:
    environ = {
        "FASTLLM_WEBHOOK_SECRET_FILE": "/x",
        "FASTLLM_DATABASE_URL": "postgresql://db/one",
        "HOME": "/",
    }
    assert foreign_secrets("control", environ) == {"FASTLLM_WEBHOOK_SECRET_FILE": "/x"}
    assert foreign_secrets("proxy", environ) == {}


def test_where_data_goes_by_default() -> None:
    if os.geteuid() == 0:
        assert default_data_dir({"HOME": "/root"}) == Path("/var/lib/fastllm/data")
    else:
        assert default_data_dir({"HOME": "/home/a"}) == Path("/home/a/.local/share/fastllm")
        assert default_data_dir({"XDG_DATA_HOME": "/data"}) == Path("/data/fastllm")


def test_secrets_of_the_wrong_shape_are_told_before_anything_starts() -> None:
    environ = {
        "FASTLLM_DATABASE_URL": "mysql://user:hidden@host/name",
        "FASTLLM_ENCRYPTION_KEY": "zz",
        "FASTLLM_PROXY_TOKEN": "short",
    }
    with pytest.raises(SettingsError) as raised:
        read_settings([], environ)
    for variable in environ:
        assert variable in str(raised.value)
    assert "hidden" not in str(raised.value)
