"""The engine is looked for in three ways, and when none works here one error names all three and why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
# Asks without writing .venv/bin/pulumi, which other tests use.
OBTAIN = "import sys; sys.path.insert(0, sys.argv[1]); import obtain_pulumi; print(*obtain_pulumi.obtain())"
NOWHERE = "http://127.0.0.1:1"


def obtain(tmp_path: Path, *folders: Path) -> subprocess.CompletedProcess[str]:
    """Looks for an engine with an empty cache, no network, no Go, and only these folders before /usr/bin on PATH."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")},
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PATH": ":".join([*map(str, folders), "/usr/bin", "/bin"]),
        "https_proxy": NOWHERE,
        "http_proxy": NOWHERE,
    }
    return subprocess.run(
        [sys.executable, "-c", OBTAIN, str(CHECKOUT / "tools")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def put(folder: Path, program: str, says: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / program).write_text(f"#!/bin/sh\necho '{says}'\n")
    (folder / program).chmod(0o755)
    return folder


def test_without_any_way_one_error_names_all_three(tmp_path: Path) -> None:
    refused = obtain(tmp_path, put(tmp_path / "old", "pulumi", "v3.100.0"))
    assert refused.returncode != 0
    assert "Traceback" not in refused.stderr
    assert "expected 3.272.0 or newer, found 3.100.0" in refused.stderr
    assert "the official installer: " in refused.stderr
    assert "a build with Go: Go is not on PATH" in refused.stderr
    assert not list((tmp_path / "cache" / "decamp" / "pulumi").glob("[!.]*"))


def test_a_good_engine_on_path_is_taken(tmp_path: Path) -> None:
    folder = put(put(tmp_path / "good", "pulumi", "v3.290.1"), "pulumi-language-python", "")
    found = obtain(tmp_path, folder)
    assert found.stdout.strip() == f"{folder}/pulumi found on PATH"


def test_an_engine_without_a_python_host_is_not_taken(tmp_path: Path) -> None:
    refused = obtain(tmp_path, put(tmp_path / "bare", "pulumi", "v3.290.1"))
    assert refused.returncode != 0
    assert "has no pulumi-language-python beside it" in refused.stderr


def test_a_go_that_is_too_old_is_named(tmp_path: Path) -> None:
    refused = obtain(tmp_path, put(tmp_path / "go", "go", "go1.19.8"))
    assert refused.returncode != 0
    assert "Go is too old: expected 1.25.11 or newer, found go1.19.8" in refused.stderr


def test_the_engine_that_was_set_up_runs() -> None:
    told = subprocess.run([CHECKOUT / ".venv/bin/pulumi", "version"], capture_output=True, text=True, check=True)
    assert told.stdout.startswith("v3.")
