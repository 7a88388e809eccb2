"""A gateway in this process, of real parts on real sockets, in front of fake engines: what tests of the
request path stand on. Only the control plane is missing: tests hand in the snapshot and read the usage
events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fastllm_proxy.accept import EdgeSettings, ProxyServer
from fastllm_proxy.access_log import AccessLog
from fastllm_proxy.balancer import Balancer
from fastllm_proxy.delivery import Delivery
from fastllm_proxy.dispatch import Dispatcher, Patience
from fastllm_proxy.forward import Forwarder
from fastllm_proxy.gate import Gates
from fastllm_proxy.limits import Limits
from fastllm_proxy.local import Health, LocalRoutes
from fastllm_proxy.meter import Meter
from fastllm_proxy.metrics import Metrics
from fastllm_proxy.observe import make_log
from fastllm_proxy.pipeline import Pipeline
from fastllm_proxy.pools import PoolFactory
from fastllm_proxy.relay import RelayTimes
from fastllm_proxy.retries import RetryBudget
from fastllm_proxy.sink import LineSink
from fastllm_proxy.snapshots import BackendRegistry, SnapshotStore
from fastllm_proxy.spool import Spools
from fastllm_proxy.timers import TimerWheel
from fastllm_proxy.traffic import Traffic
from fastllm_shared.addresses import AddressPolicy
from fastllm_shared.keys import digest_of
from fastllm_shared.snapshot import (
    BackendEntry,
    FrontendModelEntry,
    KeyEntry,
    PrincipalEntry,
    ProviderEntry,
    ProviderModelEntry,
    Snapshot,
    TargetEntry,
)
from fastllm_shared.usage import UsageEvent
from tests.fakes.engine import FakeEngine

KEY = "sk-test-key"
CREDENTIAL = "upstream-credential"
MODEL = "assistant"
UPSTREAM_MODEL = "fake-model"
MAX_BODY_BYTES = 4 * 1024 * 1024


def provider(number: int, api_base: str, **changes: Any) -> ProviderEntry:
    entry = ProviderEntry(
        id=f"provider-{number}",
        name=f"engine-{number}",
        kind="static",
        api_base=api_base,
        protocol="both",
        credential=CREDENTIAL,
    )
    return msgspec.structs.replace(entry, **changes)


def backend(number: int, **changes: Any) -> BackendEntry:
    entry = BackendEntry(
        id=f"backend-{number}",
        provider_id=f"provider-{number}",
        provider_model_id="model-1",
        upstream_model=UPSTREAM_MODEL,
    )
    return msgspec.structs.replace(entry, **changes)


def snapshot(
    providers: Sequence[ProviderEntry], backends: Sequence[BackendEntry], **changes: Any
) -> Snapshot:
    """One principal with one key, one provider model on all `backends`, one frontend model over it."""
    whole = Snapshot(
        version=1,
        history="history",
        created_at=0.0,
        keys=(KeyEntry(digest_of(KEY), "key-1", "principal-1", "sk-test"),),
        principals=(PrincipalEntry("principal-1", "team-a", "service_account", models=(MODEL,)),),
        providers=tuple(providers),
        backends=tuple(backends),
        provider_models=(
            ProviderModelEntry(
                "model-1",
                "qwen",
                input_price_per_mtok=500_000,
                output_price_per_mtok=1_500_000,
                backends=tuple(entry.id for entry in backends),
            ),
        ),
        frontend_models=(
            FrontendModelEntry("frontend-1", MODEL, created_at=0.0, targets=(TargetEntry("qwen"),)),
            FrontendModelEntry("frontend-2", "not-granted", created_at=0.0, targets=(TargetEntry("qwen"),)),
        ),
    )
    return msgspec.structs.replace(whole, **changes)


class Answered(msgspec.Struct):
    """A response as a client got it. `whole` is false when the connection ended before the response did."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> Any:
        return self.json()["error"]["code"]


class Events:
    """Where usage events go."""

    def __init__(self) -> None:
        self.all: list[UsageEvent] = []
        self._arrived = asyncio.Event()

    def put(self, event: UsageEvent) -> None:
        self.all.append(event)
        self._arrived.set()

    async def get(self, count: int = 1) -> UsageEvent:
        """The `count`th event, once it is there."""
        async with asyncio.timeout(5):
            while len(self.all) < count:
                self._arrived.clear()
                await self._arrived.wait()
        return self.all[count - 1]


class Ready:
    """The status of a replica without loops."""

    ready = True

    def health(self, *, detail: bool) -> Health:
        raise NotImplementedError


async def _no_metrics() -> bytes:
    return b""


def usual_pools(timers: TimerWheel) -> PoolFactory:
    return PoolFactory(AddressPolicy(), timers, None)


class Gateway:
    """`port` is where it listens; `store`, `metrics`, `events` and `log_path` are there to be looked at."""

    def __init__(
        self,
        folder: Path,
        patience: Patience,
        times: RelayTimes,
        edge: EdgeSettings,
        pools: Callable[[TimerWheel], PoolFactory],
        limits: Limits,
        balancer: Balancer,
    ) -> None:
        self.log_path = folder / "log"
        self._descriptor = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._sink = LineSink(self._descriptor)
        log = make_log(self._sink, "json")
        self.timers = TimerWheel(asyncio.get_running_loop(), tick_seconds=0.02)
        self.metrics = Metrics()
        self.spools = Spools(log)
        self.events = Events()
        self.registry = BackendRegistry(pools(self.timers), log)
        self.store = SnapshotStore(self.registry)
        self._access_log = AccessLog(self._sink, "json")
        gates, retries = Gates(), RetryBudget()
        pipeline = Pipeline(
            balancer=balancer,
            forwarder=Forwarder(
                max_retries=2,
                balancer=balancer,
                gates=gates,
                dispatcher=Dispatcher(
                    patience=patience,
                    delivery=Delivery(timers=self.timers, times=times),
                    gates=gates,
                    retries=retries,
                    traffic=Traffic(),
                    metrics=self.metrics,
                    log=log,
                ),
                retries=retries,
                metrics=self.metrics,
            ),
            limits=limits,
            meter=Meter(
                replica="replica-1", outbox=self.events, metrics=self.metrics, access_log=self._access_log
            ),
            metrics=self.metrics,
            spools=self.spools,
            max_body_bytes=MAX_BODY_BYTES,
        )
        self.server = ProxyServer(
            pipeline.handle,
            views=self.store,
            local=LocalRoutes(Ready(), _no_metrics, ("token",)),
            timers=self.timers,
            settings=edge,
            metrics=self.metrics,
            access_log=self._access_log,
            log=log,
        )
        self.port = 0
        self.given: Snapshot | None = None

    def configure(self, **changes: Any) -> None:
        """Serves from the first snapshot with these changes."""
        assert self.given is not None
        self.store.accept(msgspec.structs.replace(self.given, **changes))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log_text(self) -> str:
        """Everything logged so far."""
        self._access_log.flush()
        assert self._sink.flush(5)
        return self.log_path.read_text()

    def backend(self, number: int) -> Any:
        """The live backend of that number."""
        assert self.store.current is not None
        return self.store.current.backends[f"backend-{number}"]

    @property
    def inflight(self) -> int:
        assert self.store.current is not None
        return sum(backend.inflight for backend in self.store.current.backends.values())

    async def close(self) -> None:
        await self.server.finish(0)
        await self.registry.close()
        self.timers.close()
        self.spools.close()
        self._sink.flush(5)

    async def connect(self) -> Client:
        return Client(*await asyncio.open_connection("127.0.0.1", self.port, limit=64 * 1024))

    async def post(
        self,
        path: str = "/v1/chat/completions",
        body: bytes | dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answered:
        """One request on a connection of its own, to its end."""
        client = await self.connect()
        try:
            client.send(path, body, headers)
            return await client.answer()
        finally:
            client.close()


class Client:
    """One connection of a client that speaks HTTP by hand, so that every byte counts."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(
        self,
        path: str = "/v1/chat/completions",
        body: bytes | dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        content = chat() if body is None else json.dumps(body).encode() if isinstance(body, dict) else body
        fields = {"host": "gateway", "authorization": f"Bearer {KEY}", "content-type": "application/json"}
        fields |= headers or {}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.writer.write(
            f"POST {path} HTTP/1.1\r\n{lines}content-length: {len(content)}\r\n\r\n".encode() + content
        )

    async def head(self) -> tuple[int, dict[str, str]]:
        async with asyncio.timeout(10):
            text = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        lines = text.split("\r\n")
        headers: dict[str, str] = {}
        for line in lines[1:-2]:
            name, _, value = line.partition(": ")
            assert name.lower() not in headers, f"{name} twice"
            headers[name.lower()] = value
        return int(lines[0].split(" ")[1]), headers

    async def piece(self) -> bytes:
        """The next chunk of a chunked body; empty at the end. Raises `IncompleteReadError` if it is cut."""
        async with asyncio.timeout(10):
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            data = await self.reader.readexactly(size + 2)
        return data[:-2]

    async def answer(self) -> Answered:
        status, headers = await self.head()
        pieces: list[bytes] = []
        try:
            if "content-length" in headers:
                async with asyncio.timeout(10):
                    pieces.append(await self.reader.readexactly(int(headers["content-length"])))
            else:
                while piece := await self.piece():
                    pieces.append(piece)
        except asyncio.IncompleteReadError as cut:
            return Answered(status, headers, b"".join(pieces) + cut.partial, whole=False)
        return Answered(status, headers, b"".join(pieces), whole=True)

    def close(self) -> None:
        self.writer.close()


def chat(model: str = MODEL, **members: Any) -> bytes:
    """A body for `/chat/completions`."""
    whole = {"model": model, "messages": [{"role": "user", "content": "hello"}], **members}
    return json.dumps(whole, separators=(",", ":")).encode()


@contextlib.asynccontextmanager
async def gateway(
    folder: Path,
    *engines: FakeEngine,
    providers: dict[str, Any] | None = None,
    backends: dict[str, Any] | None = None,
    patience: Patience | None = None,
    times: RelayTimes | None = None,
    edge: EdgeSettings | None = None,
    tls: ssl.SSLContext | None = None,
    handshake_seconds: float | None = None,
    pools: Callable[[TimerWheel], PoolFactory] = usual_pools,
    limits: Limits | None = None,
    balancer: Balancer | None = None,
    **changes: Any,
) -> AsyncIterator[Gateway]:
    """A gateway in front of `engines`, the nth of which is `backend-n`. `providers` and `backends` change
    every entry of their kind, `changes` the snapshot. `tls` is what it listens with, `pools` what
    it connects with, `balancer` what it chooses with."""
    made = Gateway(
        folder,
        patience or Patience(),
        times or RelayTimes(),
        edge or EdgeSettings(max_inflight=10_000),
        pools,
        limits or Limits(),
        balancer or Balancer(),
    )
    entries = [
        provider(n, **{"api_base": engine.url, **(providers or {})}) for n, engine in enumerate(engines, 1)
    ]
    numbered = [backend(n, **(backends or {})) for n in range(1, len(engines) + 1)]
    made.given = snapshot(entries, numbered, **changes)
    made.configure()
    listener = await asyncio.get_running_loop().create_server(
        made.server, "127.0.0.1", 0, ssl=tls, ssl_handshake_timeout=handshake_seconds
    )
    made.port = listener.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        listener.close()
        await made.close()
