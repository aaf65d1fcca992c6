"""Each prompt of a shard gets exactly one completion, however often the job is killed in between."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from files import read_lines_cutting_torn, write_atomically

RETRIED_STATUS = {408, 429, 500, 502, 503, 504}


class CompletionError(Exception):
    """The server gave no completion for a prompt within the tries that were allowed."""


@dataclass(frozen=True)
class Server:
    """Asks one server, one connection a thread, with bounded tries and growing pauses."""

    url: str
    model: str
    max_tokens: int
    timeout_s: float = 120.0
    tries: int = 6
    _connections: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "_connections", threading.local())

    def _request(self, method: str, path: str, body: str | None) -> tuple[int, bytes]:
        connection = getattr(self._connections, "open", None)
        if connection is None:
            parts = urlsplit(self.url)
            connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=self.timeout_s)
            self._connections.open = connection
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            self._connections.open = None
            raise

    def wait_until_ready(self, limit_s: float, stop: threading.Event) -> None:
        """Returns once a token was generated; raises CompletionError after limit_s with the last answer."""
        deadline, found = time.monotonic() + limit_s, "no answer"
        while time.monotonic() < deadline and not stop.is_set():
            try:
                status, _ = self._request("GET", "/health_generate", None)
                if status == 200:
                    return
                found = f"status {status}"
            except (OSError, http.client.HTTPException) as error:
                found = str(error) or type(error).__name__
            stop.wait(0.5)
        if not stop.is_set():
            raise CompletionError(f"{self.url}/health_generate: expected 200 within {limit_s:.0f} s, found {found}")

    def complete(self, prompt: str, seed: int) -> dict[str, Any]:
        """Returns {"completion", "finish_reason", "tokens"}."""
        body = json.dumps({"model": self.model, "prompt": prompt, "max_tokens": self.max_tokens, "seed": seed})
        found = ""
        for attempt in range(self.tries):
            try:
                status, content = self._request("POST", "/v1/completions", body)
                if status == 200:
                    document = json.loads(content)
                    choice = document["choices"][0]
                    tokens = document["usage"]["completion_tokens"]
                    return {"completion": choice["text"], "finish_reason": choice["finish_reason"], "tokens": tokens}
                found = f"status {status}: {content[:200].decode(errors='replace')}"
                if status not in RETRIED_STATUS:
                    break
            except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
                found = f"{type(error).__name__}: {error}"
            if attempt + 1 < self.tries:
                time.sleep(min(0.2 * 2**attempt, 10.0) * (0.5 + random.random()))  # noqa: S311 - spreads retries, keeps no secret
        raise CompletionError(f"{self.url}/v1/completions: no completion after {attempt + 1} tries, found {found}")


@dataclass
class Shard:
    """One slice of the prompts with its output and its progress file; the output alone says what is done."""

    number: int
    prompts: list[dict[str, Any]]
    directory: Path

    def __post_init__(self) -> None:
        self.output = self.directory / f"shard_{self.number}.jsonl"
        self.progress = self.directory / f"progress_shard_{self.number}.json"
        self.rows = {row["id"]: row for row in read_lines_cutting_torn(self.output)}

    @property
    def is_done(self) -> bool:
        return len(self.rows) == len(self.prompts)

    def write_progress(self) -> None:
        tokens = sum(row["tokens"] for row in self.rows.values())
        document = {"shard": self.number, "done": len(self.rows), "total": len(self.prompts), "tokens": tokens}
        write_atomically(self.progress, json.dumps({**document, "complete": self.is_done}) + "\n")

    def run(
        self, server: Server, concurrency: int, stop: threading.Event, tell: Callable[[int], None]
    ) -> list[CompletionError]:
        """Completes what is missing, at most `concurrency` at once; calls tell(tokens) after each; returns failures."""
        missing = iter([row for row in self.prompts if row["id"] not in self.rows])
        failures: list[CompletionError] = []
        self.output.parent.mkdir(parents=True, exist_ok=True)
        with self.output.open("a", encoding="utf-8") as output, ThreadPoolExecutor(concurrency) as pool:
            running: dict[Future[dict[str, Any]], dict[str, Any]] = {}
            while True:
                while len(running) < concurrency and not stop.is_set() and (row := next(missing, None)):
                    running[pool.submit(server.complete, row["prompt"], row["id"])] = row
                if not running:
                    break
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    row = running.pop(future)
                    try:
                        done = {**row, **future.result()}
                    except CompletionError as failure:
                        failures.append(failure)
                        continue
                    output.write(json.dumps(done, ensure_ascii=False) + "\n")
                    output.flush()
                    self.rows[row["id"]] = done
                    tell(done["tokens"])
                    if len(self.rows) % 25 == 0:
                        self.write_progress()
        self.write_progress()
        return failures
