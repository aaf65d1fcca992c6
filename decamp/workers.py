"""Worker threads whose results come back, as small functions, to the one thread that owns the index."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from decamp.errors import StoreFailure

UPLOADS = min(max(2 * (os.cpu_count() or 1), 8), 32)
READERS = min(max(os.cpu_count() or 1, 3), 8)

Result = Callable[[], None]


class Stopped(Exception):
    """The run is being ended; what was done so far stays for the next one."""


class Workers:
    """Readers and uploads, and what they have in hand.

    Attributes:
        readers, uploads: the pools; work of uploads never waits for work of readers.
        stop: set when the run is to end; work that meets it raises Stopped.
        outstanding: pieces of work whose results were not taken yet.
        failure: the store's failure that ended the run early, or None.
    """

    def __init__(self) -> None:
        self.readers = ThreadPoolExecutor(READERS, "read")
        self.uploads = ThreadPoolExecutor(UPLOADS, "upload")
        self.stop = threading.Event()
        self.outstanding = 0
        self.failure: StoreFailure | None = None
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()

    def close(self) -> None:
        """Lets nothing new begin; what is under way ends by itself."""
        self.stop.set()
        self.readers.shutdown(wait=False, cancel_futures=True)
        self.uploads.shutdown(wait=False, cancel_futures=True)

    def submit(self, pool: ThreadPoolExecutor, work: Callable[[], Result]) -> None:
        """Runs work in a pool; the function that it returns is run by take_results."""

        def run() -> None:
            try:
                result = work()
            except Stopped:
                result = _nothing
            except StoreFailure as failure:
                result = self._failed(failure)
            except BaseException as error:  # a defect of ours must end the run, not hang it
                result = _raiser(error)
            self._results.put(result)

        self.outstanding += 1
        pool.submit(run)

    def tell(self, result: Result) -> None:
        """Sends a result from inside work that is not done yet."""

        def note() -> None:
            self.outstanding += 1  # it answers no submission of its own
            result()

        self._results.put(note)

    def take_results(self, wait: bool) -> None:
        """Runs the results that are there; with `wait`, waits up to a second for the first."""
        while self.outstanding:
            try:
                result = self._results.get(block=wait, timeout=1.0 if wait else None)
            except queue.Empty:
                return
            self.outstanding -= 1
            result()
            wait = False

    def _failed(self, failure: StoreFailure) -> Result:
        def note() -> None:
            if self.failure is None:
                self.failure = failure
            self.stop.set()

        return note


def _nothing() -> None:
    """The result of work that the end of the run cut short."""


def _raiser(error: BaseException) -> Result:
    def fail() -> None:
        raise error

    return fail
