"""A reason: what stands between a workspace and the verdict SAFE, or between an archive and trust."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it must be.

    Attributes:
        path: path, key or URL.
        what: what failed.
        expected, found: both sides, where there are two.
        run: the command or step that helps.
    """

    path: str
    what: str
    expected: str = ""
    found: str = ""
    run: str = ""

    def __str__(self) -> str:
        text = f"{self.path}: {self.what}"
        sides = [f"expected {self.expected}" if self.expected else "", f"found {self.found}" if self.found else ""]
        told = ", ".join(side for side in sides if side)
        if told:
            text += f": {told}"
        return f"{text}; run: {self.run}" if self.run else text

    def document(self) -> dict[str, str]:
        return {name: value for name, value in asdict(self).items() if value}
