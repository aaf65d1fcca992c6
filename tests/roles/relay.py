"""A relay before a server that counts what it passes on and does to it what networks do."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Relay:
    """What the relay does with the bytes that come from the server, and how many there were.

    Attributes:
        cut_after: bytes after which the connection that brings them is lost, once.
        hold_after: bytes after which nothing is passed on any more, until it is None again.
        flip: a byte sequence of which the first byte is changed wherever it passes in one piece.
    """

    server: tuple[str, int]
    cut_after: int | None = None
    hold_after: int | None = None
    flip: bytes = b""
    passed: int = 0
    port: int = 0
    released: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def pass_back(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                if self.flip and self.flip in data:
                    place = data.index(self.flip)
                    data = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
                with self.lock:
                    self.passed += len(data)
                    held = self.hold_after is not None and self.passed > self.hold_after
                    cut = self.cut_after is not None and self.passed > self.cut_after
                    self.cut_after = None if cut else self.cut_after
                if held:
                    self.released.wait(60)
                client.sendall(data)
                if cut:
                    break
        for side in (server, client):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
            side.close()

    def pass_on(self, client: socket.socket) -> None:
        server = socket.create_connection(self.server)
        threading.Thread(target=self.pass_back, args=(server, client), daemon=True).start()
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                server.sendall(data)


@contextmanager
def relay_to(host: str, port: int) -> Iterator[Relay]:
    """Relays a free port of loopback to a server until left."""
    relay = Relay((host, port))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        relay.port = int(listener.getsockname()[1])

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    threading.Thread(target=relay.pass_on, args=(client,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield relay
        relay.released.set()
        listener.shutdown(socket.SHUT_RDWR)
