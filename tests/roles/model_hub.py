"""A small hub with the real one's URLs, headers and redirects, which also loses connections and sends wrong bytes.

As huggingface_hub 1.33 asks and reads them: the tree of a commit in pages (`Link: <...>; rel="next"`), files below
/{repository}/resolve/{commit}/ that small ones follow to the hub itself (307, relative) and large ones to another host
(302, with X-Linked-Etag and X-Linked-Size), X-Repo-Commit, X-Error-Code, ranges.
"""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, quote, unquote, urlsplit

PAGE = 3  # the real hub lists a thousand; the client must follow the links all the same
LARGE_BYTES = 10_000


@dataclass
class Hub:
    """A repository at one commit, what it does wrong, and what it was asked.

    Attributes:
        altered: files whose first byte is sent wrong. cut_off: {file: bytes after which a connection is lost, once}.
        slow: files that are sent 64 KB at a time with a pause. shortened: files that end before their listed size.
        busy: requests that are answered with 429 before the others.
        sent: {file: bytes that were sent}. tokens_elsewhere: tokens that reached the other host.
    """

    repository: str
    commit: str
    files: dict[str, bytes]
    token: str = ""
    altered: set[str] = field(default_factory=set)
    cut_off: dict[str, int] = field(default_factory=dict)
    slow: set[str] = field(default_factory=set)
    shortened: set[str] = field(default_factory=set)
    busy: int = 0
    sent: dict[str, int] = field(default_factory=dict)
    tokens_elsewhere: list[str] = field(default_factory=list)
    endpoint: str = ""
    elsewhere: str = ""

    def find_digest(self, path: str) -> str:
        """Gives the SHA-256 of a large file and the id of the git object that a small one is."""
        content = self.files[path]
        if len(content) > LARGE_BYTES:
            return hashlib.sha256(content).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()

    def describe(self, path: str) -> dict[str, object]:
        """Gives the tree's entry of a file; in git itself a large one is a small pointer."""
        digest, size = self.find_digest(path), len(self.files[path])
        entry: dict[str, object] = {"type": "file", "oid": digest, "size": size, "path": path}
        if size > LARGE_BYTES:
            entry |= {"oid": "1" * 40, "lfs": {"oid": digest, "size": size, "pointerSize": 134}}
        return entry


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers for one of the two hosts."""

    protocol_version = "HTTP/1.1"
    hub: Hub
    is_elsewhere = False

    def log_message(self, *_arguments: object) -> None:
        """Keeps the server's lines out of the test's output."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub, parts = self.hub, urlsplit(self.path)
        if self.is_elsewhere:
            if token := self.headers.get("Authorization"):
                hub.tokens_elsewhere.append(token)
            self.send_content(unquote(parts.path[1:]))
            return
        if hub.busy:
            hub.busy -= 1
            self.answer(429, b"", {"Retry-After": "0"})
            return
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self.refuse(401, "GatedRepo", f"Access to model {hub.repository} is restricted.")
            return
        tree = f"/api/models/{hub.repository}/tree/{hub.commit}"
        resolve, cache = f"/{hub.repository}/resolve/{hub.commit}/", f"/api/resolve-cache/models/{hub.commit}/"
        if parts.path == tree:
            self.send_tree(int(parse_qs(parts.query).get("cursor", ["0"])[0]))
        elif parts.path.startswith(resolve) and (path := unquote(parts.path[len(resolve) :])) in hub.files:
            large = len(hub.files[path]) > LARGE_BYTES
            location = f"{hub.elsewhere}/{quote(path)}" if large else cache + quote(path)
            self.answer(302 if large else 307, b"", {
                "Location": location, "X-Repo-Commit": hub.commit, "X-Linked-Size": str(len(hub.files[path])),
                "X-Linked-Etag": f'"{hub.find_digest(path)}"',
            })  # fmt: skip
        elif parts.path.startswith(cache):
            self.send_content(unquote(parts.path[len(cache) :]))
        elif parts.path.startswith(f"/api/models/{hub.repository}/") or parts.path.startswith(f"/{hub.repository}/"):
            self.refuse(404, "RevisionNotFound", "Invalid rev id")
        else:
            self.refuse(404, "RepoNotFound", "Repository not found")

    def send_tree(self, first: int) -> None:
        paths = sorted(self.hub.files)
        # Folders are entries as well.
        entries = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": "extra"}] if not first else []
        entries += [self.hub.describe(path) for path in paths[first : first + PAGE]]
        more = f'<{self.hub.endpoint}{urlsplit(self.path).path}?recursive=true&cursor={first + PAGE}>; rel="next"'
        headers = {"Content-Type": "application/json"} | ({"Link": more} if first + PAGE < len(paths) else {})
        self.answer(200, json.dumps(entries).encode(), headers)

    def send_content(self, path: str) -> None:
        hub = self.hub
        content = hub.files[path]
        if path in hub.altered:
            content = bytes([content[0] ^ 1]) + content[1:]
        if path in hub.shortened:
            content = content[:-100]
        wanted = self.headers.get("Range", "")
        start = int(wanted.removeprefix("bytes=").split("-")[0]) if wanted else 0
        if start >= len(content):
            self.refuse(416, "", "Range Not Satisfiable")
            return
        body = content[start:]
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hub.find_digest(path)}"')
        if not self.is_elsewhere:
            self.send_header("X-Repo-Commit", hub.commit)
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        body = body[: hub.cut_off.pop(path, len(body))]
        step = 1 << 16 if path in hub.slow else len(body)
        for begin in range(0, len(body), step):
            self.wfile.write(body[begin : begin + step])
            hub.sent[path] = hub.sent.get(path, 0) + len(body[begin : begin + step])
            time.sleep(0.05 if path in hub.slow else 0)
        self.close_connection = True

    def refuse(self, status: int, code: str, words: str) -> None:
        self.answer(status, b"", {"X-Error-Code": code, "X-Error-Message": words})

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class Server(http.server.ThreadingHTTPServer):
    """A server to which a client that went away is nothing to report."""

    def handle_error(self, request: object, client_address: object) -> None:
        """A killed client breaks its connection: that is what the tests do."""


@contextmanager
def serve_hub(hub: Hub) -> Iterator[Hub]:
    """Serves the hub and the other host on free ports of two loopback addresses until left."""
    own, other = type("Own", (Handler,), {"hub": hub}), type("Other", (Handler,), {"hub": hub, "is_elsewhere": True})
    servers = [Server(("127.0.0.1", 0), own), Server(("127.0.0.2", 0), other)]
    hub.endpoint, hub.elsewhere = (f"http://{server.server_address[0]!s}:{server.server_port}" for server in servers)
    threads = [threading.Thread(target=server.serve_forever, daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join(timeout=10)
