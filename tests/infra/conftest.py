"""The program declared against Pulumi's mocks, and an AWS without anything in it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import botocore.session
import pytest

from infra.config import StackConfig
from tests.infra.declaration import Declared, declare

if TYPE_CHECKING:
    from pathlib import Path

    from infra.aws.examination import Examined
    from tests.aws_provider.cloud import Cloud, Server


@pytest.fixture(name="declare")
def provide_declare(monkeypatch: pytest.MonkeyPatch) -> Callable[[StackConfig], Declared]:
    """Declares a stack and returns all that it asked for."""
    return lambda config: declare(monkeypatch, config)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    from tests.aws_provider.cloud import Cloud, Server  # slow to load, and few tests here need it

    running = Server(Cloud())
    with pytest.MonkeyPatch.context() as patched:
        # Every account loads boto3's models anew, which would be most of what these tests take.
        patched.setattr("botocore.session.create_loader", functools.cache(botocore.session.create_loader))
        yield running
    running.stop()


@pytest.fixture
def cloud(server: Server, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """An AWS without anything in it, which boto3 finds in place of the real one."""
    made = server.cloud
    made.reset()
    for name, value in made.environment().items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture
def ask(cloud: Cloud, tmp_path: Path) -> Callable[..., Examined]:
    """Asks the account about a small stack with some settings changed."""
    from tests.infra.aws_account import ask_about
    from tests.infra.aws_declaration import make_key

    assert cloud.url
    return functools.partial(ask_about, make_key(tmp_path))
