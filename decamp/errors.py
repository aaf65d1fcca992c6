"""Every failure a user can meet is one class here, with fields and the exit code docs/exit-codes.md gives it."""

from __future__ import annotations

EXIT_DONE = 0
EXIT_BAD_INPUT = 2
EXIT_NOT_SAFE = 3
EXIT_STORE = 4
EXIT_ARCHIVE = 5
EXIT_INTERRUPTED = 130


class DecampError(Exception):
    """Says what failed, where, what was expected and found, and what to run next, in one line.

    Args:
        where: path, key, URL or option that the failure is about.
        what: what failed.
        expected: what would have been right; left out of the message when empty.
        found: what was there instead; left out of the message when empty.
        run: the command that helps; left out of the message when empty.
    """

    exit_code = EXIT_NOT_SAFE

    def __init__(self, where: str, what: str, *, expected: str = "", found: str = "", run: str = "") -> None:
        self.where = where
        self.what = what
        self.expected = expected
        self.found = found
        self.run = run
        super().__init__(self.message())

    def message(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        sides = [f"expected {self.expected}" if self.expected else "", f"found {self.found}" if self.found else ""]
        told = ", ".join(side for side in sides if side)
        if told:
            text += f": {told}"
        if self.run:
            text += f"; run: {self.run}"
        return text


class BadInput(DecampError):
    """The arguments, the spec or the configuration are wrong; nothing was touched."""

    exit_code = EXIT_BAD_INPUT


class NotSafe(DecampError):
    """A verdict of NOT SAFE, or a refusal that rests on one."""

    exit_code = EXIT_NOT_SAFE


class StoreFailure(DecampError):
    """The store cannot be reached or cannot be trusted."""

    exit_code = EXIT_STORE


class DamagedArchive(DecampError):
    """The archive is damaged or incomplete."""

    exit_code = EXIT_ARCHIVE


class Interrupted(DecampError):
    """The run was interrupted; a second run continues it."""

    exit_code = EXIT_INTERRUPTED
