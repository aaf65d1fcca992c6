"""An instance metadata service on loopback, version 2: without a token of its own it says nothing."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NOTICE = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
TOKEN = "token-of-a-test"


class MetadataService:
    """Serves until it is stopped; tests change what it says.

    Args:
        answers: path to body; 404 for every other path.
        silent: an event that every answer waits for; None answers at once.
        token_status: what a request for a token is answered with.
    """

    def __init__(self) -> None:
        self.answers: dict[str, str] = {}
        self.silent: threading.Event | None = None
        self.token_status = 200
        self.asked: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._make_handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def reset(self) -> None:
        """Forgets every wish of a test."""
        if self.silent:
            self.silent.set()
        self.answers, self.silent, self.token_status, self.asked = {}, None, 200, []

    def stop(self) -> None:
        self.reset()
        self._server.shutdown()
        self._server.server_close()

    def _make_handler(self) -> type[BaseHTTPRequestHandler]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                self._wait()
                right = self.path == "/latest/api/token" and "X-aws-ec2-metadata-token-ttl-seconds" in self.headers
                self._say(service.token_status if right else 400, TOKEN)

            def do_GET(self) -> None:
                self._wait()
                service.asked.append(self.path)
                if self.headers.get("X-aws-ec2-metadata-token") != TOKEN:
                    self._say(401, "")
                else:
                    self._say(200 if self.path in service.answers else 404, service.answers.get(self.path, ""))

            def _wait(self) -> None:
                if service.silent:
                    service.silent.wait(timeout=60)

            def _say(self, status: int, body: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body.encode())))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, format: str, *_arguments: Any) -> None:  # noqa: A002 - the base class's name
                """Says nothing: a test's output is its own."""

        return Handler
