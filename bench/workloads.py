"""The trees that the tools carry, made anew for each run of the benchmark from one seed."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

SEED = 20240607
MB = 1_000_000


def _fill(directory: Path, count: int, least: int, most: int, suffix: str, rng: random.Random, fan: int = 500) -> None:
    """`count` files of random bytes, `fan` to a directory; sizes spread evenly between the two limits."""
    noise = rng.randbytes(2 * most + 4096)
    for number in range(count):
        place = directory / f"{number // fan:05d}"
        if number % fan == 0:
            place.mkdir(parents=True, exist_ok=True)
        start = rng.randrange(len(noise) - most)
        size = rng.randint(least, most)
        # The number makes every file another one, so that no tool saves work on equal contents.
        body = number.to_bytes(8, "big") + noise[start : start + max(0, size - 8)]
        (place / f"{number:07d}{suffix}").write_bytes(body)


def _big(directory: Path, count: int, size: int, rng: random.Random) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        with (directory / f"weights-{number:02d}.bin").open("wb") as sink:
            left = size
            while left:
                left -= sink.write(rng.randbytes(min(left, 16 << 20)))


def make_small(directory: Path) -> None:
    """10,000 files of 0.2 to 16 KB."""
    _fill(directory / "small", 10_000, 200, 16_000, ".txt", random.Random(SEED))


def make_large(directory: Path) -> None:
    """Three files of 512 MiB."""
    _big(directory / "large", 3, 512 << 20, random.Random(SEED + 1))


def make_mixed(directory: Path) -> None:
    """10,000 files of 0.2 to 16 KB, 300 of 1 MB, three of 512 MiB: 2 GB in all."""
    make_small(directory)
    _fill(directory / "medium", 300, MB, MB, ".dat", random.Random(SEED + 2))
    make_large(directory)


def make_tiny(directory: Path, count: int) -> None:
    """`count` files of 50 to 150 bytes."""
    _fill(directory / "tiny", count, 50, 150, ".txt", random.Random(SEED + 3), fan=1000)


TREES: dict[str, Callable[[Path], None]] = {
    "small": make_small,
    "mixed": make_mixed,
    "large": make_large,
    "growth_100k": lambda directory: make_tiny(directory, 100_000),
    "growth_1m": lambda directory: make_tiny(directory, 1_000_000),
}


def tree_totals(directory: Path) -> tuple[int, int]:
    """Number of files and their bytes."""
    files = size_bytes = 0
    for place, _, names in os.walk(directory):
        for name in names:
            files += 1
            size_bytes += (Path(place) / name).lstat().st_size
    return files, size_bytes


def warm(directory: Path) -> None:
    """Writes the tree to disk and reads it once, so that every tool meets it in the same state: in the page cache."""
    os.sync()
    for place, _, names in os.walk(directory):
        for name in names:
            with (Path(place) / name).open("rb", buffering=0) as source:
                while source.read(4 << 20):
                    pass
