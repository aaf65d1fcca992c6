"""Progress on standard error: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from typing import TextIO

_LINE_INTERVAL_S = 5.0
_BAR_INTERVAL_S = 0.2


def human_bytes(count: float) -> str:
    """A byte count for people, in decimal units as disks and clouds are sold."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


class Progress:
    """Tells how far a long step is. The default one, without a stream, is silent. Safe to use from many threads."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._is_terminal = stream is not None and stream.isatty()
        self._lock = threading.Lock()
        self._phase = ""
        self._started = time.monotonic()
        self._shown = 0.0
        self._bytes = self._total_bytes = self._items = self._total_items = 0
        self._line_open = False

    @classmethod
    def on_stderr(cls) -> Progress:
        return cls(sys.stderr)

    def start(self, phase: str, total_bytes: int = 0, total_items: int = 0) -> None:
        """Begins a step; totals of 0 mean that they are not known."""
        with self._lock:
            self._close_line()
            self._phase, self._started, self._shown = phase, time.monotonic(), time.monotonic()
            self._bytes = self._items = 0
            self._total_bytes, self._total_items = total_bytes, total_items

    def advance(self, size_bytes: int = 0, items: int = 0) -> None:
        with self._lock:
            self._bytes += size_bytes
            self._items += items
            now = time.monotonic()
            if self._stream is None or now - self._shown < (_BAR_INTERVAL_S if self._is_terminal else _LINE_INTERVAL_S):
                return
            self._shown = now
            self._write(self._text(now))

    def note(self, text: str) -> None:
        """One line that stays, whatever the step."""
        with self._lock:
            if self._stream is not None:
                self._close_line()
                print(text, file=self._stream, flush=True)

    def finish(self) -> None:
        with self._lock:
            self._close_line()

    def _text(self, now: float) -> str:
        elapsed = max(now - self._started, 1e-3)
        parts = [self._phase]
        if self._items:
            parts.append(f"{self._items:,}" + (f" of {self._total_items:,}" if self._total_items else "") + " entries")
        if self._bytes or self._total_bytes:
            rate = self._bytes / elapsed
            of = f" of {human_bytes(self._total_bytes)}" if self._total_bytes else ""
            parts.append(f"{human_bytes(self._bytes)}{of}, {human_bytes(rate)}/s")
            if self._total_bytes and rate > 0 and self._bytes < self._total_bytes:
                parts.append(f"{(self._total_bytes - self._bytes) / rate:.0f} s left")
        parts.append(f"{elapsed:.0f} s")
        return "  ".join(parts)

    def _write(self, text: str) -> None:
        assert self._stream is not None
        if not self._is_terminal:
            print(text, file=self._stream, flush=True)
            return
        bar = ""
        if self._total_bytes:
            filled = min(int(20 * self._bytes / self._total_bytes), 20)
            bar = f"[{'#' * filled}{' ' * (20 - filled)}] "
        print(f"\r\033[K{bar}{text}", end="", file=self._stream, flush=True)
        self._line_open = True

    def _close_line(self) -> None:
        if self._line_open and self._stream is not None:
            print(file=self._stream, flush=True)
            self._line_open = False
