"""What several files of tests of the roles need: NVIDIA's repository as a test can have it, built once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.roles.nvidia_packages import Repository, serve_repository


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    with serve_repository(tmp_path_factory.mktemp("repository")) as served:
        yield served
