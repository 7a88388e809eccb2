from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from fastllm_proxy.tls import client_context
from tests.fakes.certificates import Authority


def subjects(context: ssl.SSLContext) -> int:
    return context.cert_store_stats()["x509_ca"]


def test_what_is_trusted_adds_up(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one, two = Authority(tmp_path / "one"), Authority(tmp_path / "two")
    bundle = tmp_path / "bundle.pem"
    bundle.write_text(one.pem, encoding="utf-8")
    system = subjects(client_context(None))
    assert subjects(client_context(str(bundle))) == system + 1
    assert subjects(client_context(str(bundle), two.pem)) == system + 2


def test_certificates_and_names_are_checked() -> None:
    context = client_context(None)
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


@pytest.mark.parametrize(
    ("bundle", "authority"), [("/no/such/file", None), (__file__, None), (None, "no PEM")]
)
def test_what_holds_no_certificate(bundle: str | None, authority: str | None) -> None:
    with pytest.raises(ValueError, match="certificate authority cannot be read"):
        client_context(bundle, authority)
