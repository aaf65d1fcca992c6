"""An S3-speaking reverse proxy that does to requests and answers what a seeded schedule of faults says.

The client's Host header travels on unchanged, so its signatures still verify at the store; a fault that changes
what was signed signs again. Bodies are held in memory whole: this is for tests with small trees.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from tests.faults.exchange import Request, ResetOnPurposeError, Response, error
from tests.faults.store_faults import Fault

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "expect", "proxy-connection", "te"}
UPSTREAM_TIMEOUT_S = 60


@dataclass(frozen=True)
class Served:
    """One line of the proxy's log."""

    ordinal: int
    operation: str
    key: str
    status: int
    faults: tuple[str, ...]
    at_s: float

    def __str__(self) -> str:
        marks = f" [{', '.join(self.faults)}]" if self.faults else ""
        return f"{self.ordinal:4d} {self.at_s:8.3f} {self.operation} {self.key!r} -> {self.status}{marks}"


class Schedule:
    """The faults in force, in order; the first one is nearest the client.

    Whether a fault hits a request depends on the seed, the fault's place and the request's identity and occurrence,
    not on the order in which threads happen to ask: the same seed makes the same faults.
    """

    def __init__(self, seed: int = 0, faults: Sequence[Fault] = ()) -> None:
        self.seed = seed
        self.faults = list(faults)
        self.log: list[Served] = []
        self._lock = threading.Lock()
        self._ordinal = 0
        self._occurrences: Counter[str] = Counter()
        self._started = time.monotonic()

    def admit(self, request: Request) -> tuple[Request, list[Fault]]:
        """Numbers a request and chooses the faults that hit it."""
        with self._lock:
            self._ordinal += 1
            self._occurrences[request.identity] += 1
            numbered = replace(request, ordinal=self._ordinal, occurrence=self._occurrences[request.identity])
            hitting = [
                fault
                for place, fault in enumerate(self.faults)
                if fault.chooses(
                    numbered, random.Random(f"{self.seed}/{place}/{numbered.identity}/{numbered.occurrence}").random()
                )
            ]
        return numbered, hitting

    def record(self, request: Request, status: int, faults: Sequence[Fault]) -> None:
        names = tuple(type(fault).__name__ for fault in faults)
        since_s = time.monotonic() - self._started
        line = Served(request.ordinal, request.operation, request.key, status, names, since_s)
        with self._lock:
            self.log.append(line)

    @property
    def hits(self) -> Counter[str]:
        """How often each kind of fault struck."""
        with self._lock:
            return Counter(name for line in self.log for name in line.faults)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    upstream: http.client.HTTPConnection | None = None

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def log_message(self, *args: Any) -> None:
        """Silent: the schedule keeps the log."""

    def parse_request(self) -> bool:
        known = super().parse_request()
        if known:
            # The base class folds leading slashes; the store has to see what the client signed.
            self.path = self.requestline.split(" ")[1]
        return known

    def _read_body(self) -> bytes | None:
        if "chunked" in (self.headers.get("Transfer-Encoding") or "").lower():
            body = b""
            while True:
                size = int(self.rfile.readline().split(b";")[0] or b"0", 16)
                chunk = self.rfile.read(size)
                self.rfile.readline()
                if size == 0:
                    return body
                body += chunk
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        return body if len(body) == length else None

    def _serve(self) -> None:
        body = self._read_body()
        if body is None:  # the client went away
            self.close_connection = True
            return
        schedule = self.server.schedule
        request, faults = schedule.admit(Request(self.command, self.path, list(self.headers.items()), body))
        try:
            response = self._through(request, faults)
        except ResetOnPurposeError as reset:
            schedule.record(request, 0, faults)
            self._reset(reset.sent)
            return
        except (OSError, http.client.HTTPException):
            self._close_upstream()
            response = error(502, "BadGateway", "the store behind the proxy did not answer")
        schedule.record(request, response.status, faults)
        try:
            self.wfile.write(response.encode(self.command == "HEAD"))
        except OSError:
            self.close_connection = True
        if response.length is not None and response.length > len(response.body):
            self._reset(b"")

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815 - http.server's names

    def _through(self, request: Request, faults: Sequence[Fault]) -> Response:
        if not faults:
            return self._forward(request)
        return faults[0].handle(request, lambda changed: self._through(changed, faults[1:]))

    def _forward(self, request: Request) -> Response:
        for attempt in range(2):
            if self.upstream is None:
                self.upstream = http.client.HTTPConnection(*self.server.store_address, timeout=UPSTREAM_TIMEOUT_S)
                self.upstream.connect()
                self.upstream.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                return self._exchange(self.upstream, request)
            except (ConnectionError, http.client.BadStatusLine):
                # An idle connection that the store had closed: once again on a new one.
                self._close_upstream()
                if attempt:
                    raise
        raise AssertionError("unreachable")

    @staticmethod
    def _exchange(upstream: http.client.HTTPConnection, request: Request) -> Response:
        upstream.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
        for name, value in request.headers:
            if name.lower() not in HOP_BY_HOP and name.lower() != "content-length":
                upstream.putheader(name, value)
        if request.body or request.method in ("PUT", "POST"):
            length = len(request.body) if request.announced is None else request.announced
            upstream.putheader("Content-Length", str(length))
        upstream.endheaders(request.body or None)
        if request.announced is not None:
            upstream.close()
            raise ResetOnPurposeError
        answer = upstream.getresponse()
        body = answer.read()
        return Response(answer.status, answer.getheaders(), body)

    def _close_upstream(self) -> None:
        if self.upstream is not None:
            self.upstream.close()
            self.upstream = None

    def _reset(self, sent: bytes) -> None:
        """Ends the client's connection with a reset instead of an orderly end."""
        self.close_connection = True
        try:
            if sent:
                self.wfile.write(sent)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            # Closing the descriptor itself: the file objects on the socket would otherwise delay it to an orderly end.
            os.close(self.connection.detach())
        except OSError:
            pass

    def finish(self) -> None:
        self._close_upstream()
        with contextlib.suppress(OSError):
            super().finish()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    schedule: Schedule
    store_address: tuple[str, int]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that vanishes in the middle of a request is what the tests are about, not an error here."""


class FaultProxy:
    """Context manager: inside, `endpoint_url` is the store with the faults of `schedule`, which may be replaced."""

    def __init__(self, store_port: int, schedule: Schedule | None = None) -> None:
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.store_address = ("127.0.0.1", store_port)
        self._server.schedule = schedule or Schedule()
        self.endpoint_url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def schedule(self) -> Schedule:
        return self._server.schedule

    @schedule.setter
    def schedule(self, schedule: Schedule) -> None:
        self._server.schedule = schedule

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)
