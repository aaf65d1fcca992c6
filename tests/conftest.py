"""The order of the tests: the longest files begin first, so that workers that share the tests end together."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
LONGEST_FIRST = ("faults", "roles", "system", "infra", "bench", "unit")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts by folder; within one, files and tests stay as they were."""
    items.sort(key=lambda item: LONGEST_FIRST.index(item.path.relative_to(TESTS).parts[0]))
