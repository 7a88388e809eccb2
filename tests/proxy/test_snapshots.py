"""Swapping snapshots: what lives on, what is replaced, what is left out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from fastllm_proxy.backends import InFlight
from fastllm_proxy.snapshots import BackendRegistry, credential_lines, identity_of
from fastllm_shared.addresses import parse_url
from fastllm_shared.health import Ejection
from fastllm_shared.snapshot import ProviderEntry, Snapshot
from tests.fakes.engine import Answer, FakeEngine
from tests.proxy.rig import Gateway, backend, chat, gateway, provider, snapshot

ANYWHERE = "http://127.0.0.1:1/v1"


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with gateway(tmp_path) as made:
        yield made


def of(*providers: ProviderEntry, version: int = 2) -> Snapshot:
    return snapshot(providers, [backend(n) for n in range(1, len(providers) + 1)], version=version)


async def test_live_state_survives_while_the_identity_is_the_same(proxy: Gateway) -> None:
    proxy.store.accept(of(provider(1, ANYWHERE)))
    before = proxy.backend(1)
    before.ejection = Ejection("probe", "timeout")
    guard = InFlight(before)
    patient = msgspec.structs.replace(
        of(provider(1, ANYWHERE, name="renamed")), backends=(backend(1, upstream_timeout_seconds=5.0),)
    )
    proxy.store.accept(patient)
    after = proxy.backend(1)
    assert after is before
    assert (after.inflight, after.ejection, after.provider.name) == (
        1,
        Ejection("probe", "timeout"),
        "renamed",
    )
    assert after.entry.upstream_timeout_seconds == 5.0
    guard.release()
    assert after.inflight == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"credential": "other"},
        {"api_base": "http://127.0.0.1:2/v1"},
        {"auth_header": "x-api-key"},
        {"auth_scheme": ""},
        {"extra_headers": (("x-a", "1"),)},
        {"server_name": "other"},
        {"ca": "other"},
    ],
)
def test_what_makes_a_new_backend(changes: dict[str, object]) -> None:
    before = provider(1, ANYWHERE)
    after = msgspec.structs.replace(before, **changes)
    assert identity_of(backend(1), before) != identity_of(backend(1), after)
    assert identity_of(backend(1, upstream_model="x"), before) != identity_of(backend(1), before)
    assert identity_of(backend(1, state="draining"), before) == identity_of(backend(1), before)


async def test_a_changed_credential_counts_from_the_next_request_and_old_streams_finish(
    tmp_path: Path,
) -> None:
    async with FakeEngine.start() as engine, gateway(tmp_path, engine) as proxy:
        engine.script("/chat/completions", Answer(gap=0.05), Answer())
        client = await proxy.connect()
        client.send(body=chat(stream=True))
        await client.head()
        assert await client.piece()
        old = proxy.backend(1)
        proxy.store.accept(of(provider(1, engine.url, credential="fresh")))
        assert proxy.backend(1) is not old
        assert (await proxy.post()).status == 200
        assert engine.requests[1].header("authorization") == "Bearer fresh"
        body = b""
        while piece := await client.piece():
            body += piece
        assert body.endswith(b"data: [DONE]\n\n")
        client.close()
        await proxy.events.get(2)
        assert (old.inflight, old.pool.idle) == (0, 0)


async def test_connections_of_a_backend_that_is_gone_are_closed(tmp_path: Path) -> None:
    async with FakeEngine.start() as engine, gateway(tmp_path, engine) as proxy:
        await proxy.post()
        assert proxy.backend(1).pool.idle == 1
        proxy.store.accept(of())
        async with asyncio.timeout(5):
            await engine.connections[0].closed.wait()
        assert (await proxy.post()).code == "no_backend"


async def test_one_bad_row_drops_that_backend_and_names_it(proxy: Gateway) -> None:
    good = provider(1, ANYWHERE)
    proxy.store.accept(
        of(
            good,
            provider(2, ANYWHERE, credential="two\r\nlines"),
            provider(3, "http:///nowhere"),
            provider(4, ANYWHERE, extra_headers=(("bad name", "x"),)),
        )
    )
    assert proxy.store.current is not None
    assert list(proxy.store.current.backends) == ["backend-1"]
    proxy.store.accept(snapshot([], [backend(9)]))
    assert proxy.store.current.backends == {}
    text = proxy.log_text()
    for number in (2, 3, 4, 9):
        assert f"backend-{number}" in text
    assert "two" not in text


def test_the_credential_as_providers_want_it() -> None:
    base = parse_url("https://example.com:8443/v1")

    def lines(**changes: object) -> bytes:
        return credential_lines(msgspec.structs.replace(provider(1, ANYWHERE), **changes), base)

    host = b"host: example.com:8443\r\n"
    assert lines() == host + b"authorization: Bearer upstream-credential\r\n"
    assert lines(credential=None) == host
    assert lines(auth_header="X-Api-Key", auth_scheme="") == host + b"x-api-key: upstream-credential\r\n"
    assert lines(auth_scheme="Token") == host + b"authorization: Token upstream-credential\r\n"
    assert lines(extra_headers=(("anthropic-version", "2023-06-01"),)).endswith(
        b"anthropic-version: 2023-06-01\r\n"
    )


async def test_closing_closes_what_is_idle(tmp_path: Path) -> None:
    async with FakeEngine.start() as engine, gateway(tmp_path, engine) as proxy:
        await proxy.post()
        registry: BackendRegistry = proxy.registry
        await registry.close()
        assert proxy.backend(1).pool.idle == 0
