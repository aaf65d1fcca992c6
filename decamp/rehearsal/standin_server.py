"""Answers SGLang's HTTP surface without a GPU, says in every answer that it is a stand-in, and fails as SGLang can.

It belongs to the rehearsal. What is real about it: the routes (/health, /health_generate, /v1/models, /v1/completions,
/server_info, /metrics), 503 until the model is loaded while /v1/models already answers 200, workers that are no
children of the launcher any more and therefore outlive its kill with port and log file open, and text drawn from word
statistics of real prompts. Flags of SGLang that mean nothing here are accepted and named in the log.

It runs on a bare node, so it needs the standard library alone and Python 3.10.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import mmap
import os
import random
import signal
import socket
import struct
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from typing import Any

NOTICE = "decamp rehearsal stand-in, not SGLang"
TEXTS_LIMIT = 3000  # enough words for a rehearsal, loaded in a blink
STATISTICS_NAME = "statistics.json"
STATISTICS_KIND = "decamp stand-in word statistics"
_SLOT = struct.Struct("=BQQ")  # loaded, requests, tokens: one slot a worker, each written by its worker alone


class WordStatistics:
    """Draws the next word from how often it followed the last two, else the last one, in the prompts."""

    def __init__(self, table: dict[str, dict[str, int]]) -> None:
        if not table:
            raise ValueError("the statistics are empty")
        self._table = table

    @classmethod
    def count(cls, texts: Iterable[str]) -> WordStatistics:
        table: dict[str, Counter[str]] = defaultdict(Counter)
        for text in texts:
            words = ["", *text.split(), ""]
            for position in range(1, len(words)):
                table[words[position - 1]][words[position]] += 1
                if position > 1:
                    table[f"{words[position - 2]} {words[position - 1]}"][words[position]] += 1
        return cls({key: dict(counts) for key, counts in table.items()})

    @classmethod
    def read(cls, directory: Path) -> WordStatistics:
        document = json.loads((directory / STATISTICS_NAME).read_text(encoding="utf-8"))
        if document.get("kind") != STATISTICS_KIND:
            raise ValueError(f"{directory / STATISTICS_NAME} is not a stand-in's model")
        return cls(document["table"])

    def write(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        document = {"kind": STATISTICS_KIND, "table": self._table}
        partial = directory / f"{STATISTICS_NAME}.partial"
        partial.write_text(json.dumps(document, ensure_ascii=False, sort_keys=True), encoding="utf-8")
        partial.replace(directory / STATISTICS_NAME)

    def continue_text(self, prompt: str, max_words: int, seed: int) -> list[str]:
        """Returns up to max_words words; the same prompt and seed give the same words on every node."""
        digest = hashlib.sha256(f"{seed}\0{prompt}".encode()).digest()
        chance = random.Random(digest)  # noqa: S311 - repeatable on purpose
        history = prompt.split()[-2:]
        words: list[str] = []
        while len(words) < max_words:
            counts = self._table.get(" ".join(history[-2:])) or self._table.get(history[-1] if history else "")
            if not counts or (set(counts) == {""} and not words):
                counts = self._table[""]
            word = chance.choices(list(counts), weights=list(counts.values()))[0]
            if word == "":
                break
            words.append(word)
            history.append(word)
        return words


def read_texts(source: Path) -> Iterator[str]:
    """Yields the prompts of a JSONL file, or the entries of a directory of fortune files (they are the prompts)."""
    if source.is_dir():
        for path in sorted(source.iterdir()):
            if path.is_file() and not path.suffix:
                yield from path.read_text(encoding="utf-8", errors="replace").split("\n%\n")
        return
    with source.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["prompt"]


class Board:
    """Shows every worker what all workers have done: shared memory, one slot each."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._memory = mmap.mmap(-1, max(mmap.PAGESIZE, _SLOT.size * workers))

    def read(self, worker: int) -> tuple[int, int, int]:
        loaded, requests, tokens = _SLOT.unpack_from(self._memory, worker * _SLOT.size)
        return int(loaded), int(requests), int(tokens)

    def add(self, worker: int, *, loaded: bool = False, requests: int = 0, tokens: int = 0) -> None:
        old = self.read(worker)
        _SLOT.pack_into(self._memory, worker * _SLOT.size, max(old[0], int(loaded)), old[1] + requests, old[2] + tokens)

    @property
    def ready(self) -> bool:
        return all(self.read(worker)[0] for worker in range(self.workers))

    def totals(self) -> tuple[int, int]:
        slots = [self.read(worker) for worker in range(self.workers)]
        return sum(slot[1] for slot in slots), sum(slot[2] for slot in slots)


class Handler(BaseHTTPRequestHandler):
    """Answers one connection; the class attributes are set by the worker before it serves."""

    protocol_version = "HTTP/1.1"
    server_version = "decamp-standin"
    sys_version = ""
    board: Board
    worker: int
    options: argparse.Namespace
    statistics: WordStatistics | None = None
    started = 0.0

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path in ("/health", "/health_generate"):
            if self.board.ready and self.statistics is not None:
                words = self.statistics.continue_text("health", 1, 0) if path == "/health_generate" else []
                self._send(200, {"status": "ok", "text": " ".join(words)})
            else:
                self._send(503, {"status": "starting"})
        elif path == "/v1/models":
            card = {"id": self.options.served_model_name, "object": "model", "owned_by": NOTICE}
            self._send(200, {"object": "list", "data": [card]})
        elif path in ("/server_info", "/get_server_info"):
            self._send(200, {"version": NOTICE, "model_path": self.options.model_path, "ready": self.board.ready})
        elif path == "/metrics":
            requests, tokens = self.board.totals()
            rate = tokens / max(time.monotonic() - self.started, 0.001)
            lines = [f"# {NOTICE}", f"sglang:num_requests_total {requests}", f"sglang:generation_tokens_total {tokens}"]
            self._send_text(200, "\n".join([*lines, f"sglang:gen_throughput {rate:.1f}", ""]), "text/plain")
        else:
            self._send(404, {"error": {"message": f"{path} is not served by the stand-in"}})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path != "/v1/completions":
            self._send(404, {"error": {"message": f"{self.path} is not served by the stand-in"}})
        elif not self.board.ready or self.statistics is None:
            self._send(503, {"error": {"message": "the model is not loaded"}})
        else:
            try:
                self._send(200, self._complete(self.statistics, json.loads(body)))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                self._send(400, {"error": {"message": f"not a completion request: {error}"}})

    def _complete(self, statistics: WordStatistics, request: dict[str, Any]) -> dict[str, Any]:
        prompt = request["prompt"]
        if not isinstance(prompt, str) or not prompt:
            raise ValueError("prompt must be a text that is not empty")
        if request.get("stream"):
            raise ValueError("the stand-in does not stream")
        limit = int(request.get("max_tokens", 16))
        words = statistics.continue_text(prompt, limit, int(request.get("seed") or 0))
        time.sleep(len(words) / self.options.tokens_per_second)
        self.board.add(self.worker, requests=1, tokens=len(words))
        choice = {"index": 0, "text": " ".join(words), "finish_reason": "length" if len(words) == limit else "stop"}
        usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": len(words)}
        usage["total_tokens"] = sum(usage.values())
        name = hashlib.sha256(prompt.encode()).hexdigest()[:12]
        head = {"id": f"standin-{name}", "object": "text_completion", "created": int(time.time())}
        return {**head, "model": self.options.served_model_name, "choices": [choice], "usage": usage}

    def _send(self, status: int, document: dict[str, Any]) -> None:
        self._send_text(status, json.dumps({**document, "stand_in": NOTICE}), "application/json")

    def _send_text(self, status: int, text: str, kind: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Stand-In", NOTICE)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named so by the base class
        if self.command == "POST" or not self.board.ready:
            say(f"worker {self.worker}: {format % args}")


def say(text: str) -> None:
    print(f"[{NOTICE}] {text}", flush=True)


def serve_worker(worker: int, listener: socket.socket, board: Board, options: argparse.Namespace) -> None:
    """Serves until it is killed; the socket is the launcher's, so it stays open when the launcher is gone."""
    Handler.board, Handler.worker, Handler.options, Handler.started = board, worker, options, time.monotonic()
    server = ThreadingHTTPServer(listener.getsockname()[:2], Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.daemon_threads = True

    def load() -> None:
        time.sleep(options.load_seconds)
        Handler.statistics = WordStatistics.read(Path(options.model_path))
        board.add(worker, loaded=True)
        say(f"worker {worker}: model loaded")

    def load_or_die() -> None:
        try:
            load()
        except (OSError, ValueError, KeyError) as error:
            say(f"worker {worker}: the model at {options.model_path} cannot be loaded: {error}")
            os._exit(1)

    threading.Thread(target=load_or_die, daemon=True).start()
    server.serve_forever()


def start_detached(worker: int, listener: socket.socket, board: Board, options: argparse.Namespace) -> int:
    """Starts a worker that is a child of init, not of the launcher, and returns its pid."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        grandchild = os.fork()
        if grandchild == 0:
            os.close(reader)
            os.close(writer)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            serve_worker(worker, listener, board, options)
            os._exit(1)
        os.write(writer, str(grandchild).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    pid = int(os.read(reader, 32))
    os.close(reader)
    return pid


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (OSError, IndexError):
        return False


def launch(options: argparse.Namespace) -> int:
    """Runs the workers until a signal (then ends them, exit 0) or until one dies (then ends the rest, exit 1)."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((options.host, options.port))
    except OSError as error:
        say(f"cannot listen on {options.host}:{options.port}: {error.strerror}")
        return 1
    listener.listen(256)
    board = Board(options.workers)
    stopped: list[int] = []
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda number, _frame: stopped.append(number))
    workers = [start_detached(number, listener, board, options) for number in range(options.workers)]
    say(f"launcher {os.getpid()} on {options.host}:{options.port}, workers {workers}, loading {options.model_path}")
    while not stopped and all(is_running(pid) for pid in workers):
        time.sleep(0.1)
    lost = [pid for pid in workers if not is_running(pid)]
    say(f"worker {lost} died; ending the others" if lost and not stopped else "stopping")
    for pid in workers:
        if is_running(pid):
            os.kill(pid, signal.SIGTERM)
    return 0 if stopped else 1


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=NOTICE, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="count words: JSONL with a `prompt` field, or fortune files")
    build.add_argument("--prompts", type=Path, required=True)
    build.add_argument("--output", type=Path, required=True)
    serve = commands.add_parser("serve", help="serve a directory made by build")
    serve.add_argument("--model-path", required=True)
    serve.add_argument("--served-model-name", default="stand-in")
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=int, default=30000)
    serve.add_argument("--workers", type=int, default=2)
    serve.add_argument("--load-seconds", type=float, default=0.5)
    serve.add_argument("--tokens-per-second", type=float, default=400.0, help="speed of one request")
    options, others = parser.parse_known_args(arguments)
    if options.command == "build":
        WordStatistics.count(islice(read_texts(options.prompts), TEXTS_LIMIT)).write(options.output)
        return 0
    if others:
        say(f"flags for SGLang alone, without effect here: {' '.join(others)}")
    return launch(options)


if __name__ == "__main__":
    sys.exit(main())
