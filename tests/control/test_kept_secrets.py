from __future__ import annotations

import stat
from pathlib import Path

from fastllm_control.kept_secrets import KeptSecrets


def test_what_is_made_up_is_the_same_ever_after(tmp_path: Path) -> None:
    first, second = KeptSecrets(tmp_path / "secrets"), KeptSecrets(tmp_path / "secrets")
    assert len(bytes.fromhex(first.encryption_key())) == 32
    assert len(first.proxy_token()) >= 32
    assert first.encryption_key() == second.encryption_key()
    assert first.proxy_token() == second.proxy_token()
    assert first.engine_key() == second.engine_key()
    assert len({first.encryption_key(), first.proxy_token(), first.engine_key()}) == 3


def test_two_installations_share_nothing(tmp_path: Path) -> None:
    one, other = KeptSecrets(tmp_path / "one"), KeptSecrets(tmp_path / "other")
    assert one.encryption_key() != other.encryption_key()
    assert one.proxy_token() != other.proxy_token()


def test_what_is_kept_is_read_back_and_private(tmp_path: Path) -> None:
    kept = KeptSecrets(tmp_path / "secrets")
    assert (kept.admin_password(), kept.api_key(), kept.engine_port(), kept.shown()) == (
        None,
        None,
        None,
        False,
    )
    kept.keep_admin_password("word")
    kept.keep_api_key("sk-1")
    kept.keep_engine_port(8080)
    kept.keep_shown()
    again = KeptSecrets(tmp_path / "secrets")
    assert (again.admin_password(), again.api_key(), again.engine_port(), again.shown()) == (
        "word",
        "sk-1",
        8080,
        True,
    )
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "secrets").iterdir()} == {0o600}
