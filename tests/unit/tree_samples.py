"""Workspaces for tests: a spec for a directory, and walks of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from decamp.census import Census
from decamp.host import read_mounts
from decamp.index import Index
from decamp.reconcile import Changes, reconcile
from decamp.spec import Spec, parse_spec


def make_spec(root: Path | list[Path], rules: list[dict[str, Any]] | None = None, **more: Any) -> Spec:
    roots = [str(path) for path in (root if isinstance(root, list) else [root])]
    return parse_spec({"root": roots, "rules": rules or [], **more})


def walk(spec: Spec) -> Census:
    """A census that has seen everything."""
    census = Census(spec, read_mounts())
    census.paths = [seen.path for seen in census.walk()]  # type: ignore[attr-defined]
    return census


def digest(spec: Spec) -> str:
    census = walk(spec)
    assert census.findings == []
    return census.sha256


def bring_in_line(spec: Spec, index: Index) -> Changes:
    return reconcile(Census(spec, read_mounts()), index, spec.rules)
