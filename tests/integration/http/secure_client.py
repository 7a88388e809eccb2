"""A client over TLS that sends what it is told, and can break off anywhere."""

from __future__ import annotations

import asyncio
import socket
import ssl

from tests.fakes.certificates import Authority
from tests.fakes.edge import Client


class SecureClient(Client):
    """`said_goodbye` is whether the server ended the connection in TLS and not only in TCP."""

    def __init__(self, raw: socket.socket, context: ssl.SSLContext, name: str = "127.0.0.1") -> None:
        super().__init__(raw)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)
        self.said_goodbye = False

    @classmethod
    async def connect(cls, port: int, authority: Authority, *, receive_buffer: int) -> SecureClient:
        """A client that soon takes no more, connected to this host."""
        raw = socket.socket()
        raw.setblocking(False)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", port))
        client = cls(raw, authority.client_context())
        await client.shake_hands()
        return client

    async def shake_hands(self) -> None:
        """Raises `ssl.SSLError` if the server's certificate is not trusted."""
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                assert await self._fill(10), "closed within the handshake"
            else:
                await self._flush()
                return

    async def send(self, data: bytes) -> None:
        for at in range(0, len(data), 65_536):
            self.tls.write(data[at : at + 65_536])
            await self._flush()

    def half_close(self) -> None:
        """As far as TLS knows it: says that no more comes, and goes on reading."""
        try:
            self.tls.unwrap()
        except ssl.SSLWantReadError:
            self.raw.send(self._outgoing.read())

    async def more(self, seconds: float = 10.0) -> bytes:
        while True:
            try:
                piece = self.tls.read(65_536)
            except ssl.SSLWantReadError:
                if not await self._fill(seconds):
                    return b""
            except ssl.SSLZeroReturnError:
                self.said_goodbye = True
                return b""
            else:
                self.said_goodbye = not piece
                self.received += piece
                return piece

    async def _flush(self) -> None:
        if self._outgoing.pending:
            await super().send(self._outgoing.read())

    async def _fill(self, seconds: float) -> bool:
        piece = await asyncio.wait_for(self._loop.sock_recv(self.raw, 65_536), seconds)
        self._incoming.write(piece)
        return bool(piece)
