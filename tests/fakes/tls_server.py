"""A server that speaks TLS by hand, so that it can also end without a word."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator

Talk = Callable[[ssl.SSLSocket], None]


@contextlib.contextmanager
def tls_server(context: ssl.SSLContext, talk: Talk) -> Iterator[int]:
    """A port where each connection gets a thread that does `talk` with it once the handshake is done; then it
    is closed without `close_notify`. What goes wrong on the wire is the peer's business."""
    threads: list[threading.Thread] = []
    talking: list[ssl.SSLSocket] = []

    def serve(plain: socket.socket) -> None:
        with plain, contextlib.suppress(OSError):
            plain.settimeout(10)
            with context.wrap_socket(plain, server_side=True) as secure:
                talking.append(secure)
                talk(secure)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = listener.accept()
                threads.append(threading.Thread(target=serve, args=(plain,)))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        acceptor = threading.Thread(target=accept)
        acceptor.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for secure in talking:
                with contextlib.suppress(OSError):  # nobody is to wait for a peer who is in this very thread
                    secure.shutdown(socket.SHUT_RDWR)
            for thread in (acceptor, *threads):
                thread.join(15)
