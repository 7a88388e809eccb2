"""What the process says of itself."""

from __future__ import annotations

import fastllm_shared
from fastllm_shared.settings import MASKED
from tests.fakes.control_plane import PROXY_TOKEN, ControlPlane


async def test_liveness_and_readiness(plane: ControlPlane) -> None:
    assert await plane.services.publisher.newer_than(0, 5)
    for path in ("/healthz", "/readyz"):
        answer = await plane.call("GET", path, token=None)
        assert (answer.status, answer.json) == (200, {"status": "ok", "version": fastllm_shared.__version__})
        head = await plane.call("HEAD", path, token=None)
        assert (head.status, head.body) == (200, b"")


async def test_metrics_count_by_template(plane: ControlPlane) -> None:
    await plane.call("GET", "/admin/principals/nobody")
    text = (await plane.call("GET", "/metrics", token=None)).body.decode()
    assert (
        'fastllm_control_requests_total{method="GET",route="/admin/principals/{id}",status="404"} 1.0' in text
    )
    assert f'fastllm_control_build_info{{version="{fastllm_shared.__version__}"}} 1.0' in text
    assert "nobody" not in text


async def test_settings_are_shown_without_secrets(plane: ControlPlane) -> None:
    answer = await plane.call("GET", "/admin/config")
    settings = answer.json["settings"]
    assert settings["config_poll"] == 5.0
    assert settings["proxy_token"] == settings["encryption_key"] == settings["database_url"] == MASKED
    assert settings["webhook_secret"] is None
    for secret in (PROXY_TOKEN, "11" * 32, plane.services.settings.database_url):
        assert secret not in answer.body.decode()


async def test_the_api_describes_itself(plane: ControlPlane) -> None:
    answer = await plane.call("GET", "/openapi.json", token=None)
    assert answer.json["openapi"].startswith("3.1")
    page = await plane.call("GET", "/docs", token=None)
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    text = page.body.decode()
    assert text.count("<script>") == 1
    assert "/admin/principals/{id}/roles" in text
    assert not [mark for mark in ("src=", "url(", "@import") if mark in text]


async def test_who_has_the_document_or_the_page_is_sent_neither_again(plane: ControlPlane) -> None:
    for path in ("/openapi.json", "/docs"):
        first = await plane.call("GET", path, token=None)
        again = await plane.call("GET", path, token=None, headers={"if-none-match": first.headers["etag"]})
        assert (again.status, again.body) == (304, b"")
        assert "content-security-policy" in again.headers or path == "/openapi.json"
        other = await plane.call("GET", path, token=None, headers={"if-none-match": '"x"'})
        assert (other.status, other.body) == (200, first.body)
