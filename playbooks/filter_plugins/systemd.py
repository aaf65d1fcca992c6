"""Quotes words for unit files, so that every argument arrives as it was given."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def systemd_word(word: Any) -> str:
    """Returns a word of ExecStart=: quoted, with `%`, `$`, backslash and quote taken literally (systemd.service(5))."""
    text = str(word)
    if "\n" in text:
        raise ValueError(f"a unit file cannot hold a line break: {text!r}")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def systemd_command(words: Iterable[Any]) -> str:
    return " ".join(systemd_word(word) for word in words)


def environment_line(value: Any) -> str:
    """Returns a value for EnvironmentFile=, quoted (systemd.exec(5)); `$` and `%` mean nothing there."""
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("`", "\\`").replace("$", "\\$")
    return f'"{escaped}"'


class FilterModule:
    """The filters by the names that templates use."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {word.__name__: word for word in (systemd_word, systemd_command, environment_line)}
