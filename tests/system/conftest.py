"""Real parts for system tests: a booted host and a store server, once a session, on addresses nobody else has.

Everything lives below .rehearsal/tests/. A session that was killed could not remove its hosts: the next one does.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from decamp.rehearsal import addresses, host, prerequisites, process, store_server, supervisor
from tests.faults.engine_process import Engine
from tests.system.engine_node import EngineNode
from tests.system.machines import Machine, StoreAccess, make_machine

if TYPE_CHECKING:
    from tests.system.aws_stack import AwsStack

SESSIONS = Path(__file__).resolve().parents[2] / ".rehearsal" / "tests"


def remove_session(directory: Path) -> None:
    """Destroys every host and server below a session's directory, then the directory."""
    for saved in directory.glob("*/host/.lock"):
        host.destroy(saved.parent)
    for saved in directory.glob("*/server.json"):
        store_server.destroy(saved.parent)
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def session_directory() -> Iterator[Path]:
    """A directory of this session, after those of killed sessions are gone with their hosts."""
    prerequisites.check_machine()
    directory = SESSIONS / secrets.token_hex(4)
    with process.lock(SESSIONS / ".lock"):  # another session may begin at the same time
        for left_over in SESSIONS.glob("[!.]*"):
            if process.find_running(left_over / "owner.json") is None:
                remove_session(left_over)
        directory.mkdir()
        supervisor.write_own_record(directory / "owner.json")
    yield directory
    remove_session(directory)


@pytest.fixture(scope="session")
def store_process(session_directory: Path) -> tuple[store_server.StoreServer, str, str]:
    """One store server for the session, with its access key and secret key."""
    access_key, secret_key = secrets.token_hex(10), secrets.token_hex(20)
    port = addresses.find_free_ports(1)[0]
    server = store_server.start(session_directory / "store", "127.0.0.1", port, access_key, secret_key)
    return server, access_key, secret_key


@pytest.fixture(name="store_server")
def provide_bucket(store_process: tuple[store_server.StoreServer, str, str]) -> Iterator[StoreAccess]:
    """A new, empty bucket, removed with its objects afterwards."""
    server, access_key, secret_key = store_process
    access = StoreAccess(server, f"test-{secrets.token_hex(6)}", access_key, secret_key)
    client = access.connect()
    client.create_bucket(Bucket=access.bucket)
    yield access
    client.delete_bucket(Bucket=access.bucket)  # SeaweedFS deletes what is in it as well


@pytest.fixture(scope="session")
def booted_host(session_directory: Path) -> Machine:
    """One running host for the session; a test that changes its identity or kills it takes `new_host` instead."""
    return make_machine(session_directory / "booted", "booted", addresses.find_free_address())


@pytest.fixture
def new_host(session_directory: Path) -> Iterator[Callable[[str], Machine]]:
    """Boots hosts of a test's own, by name; they are gone afterwards."""
    made: list[Path] = []

    def boot(name: str) -> Machine:
        directory = session_directory / f"{name}-{secrets.token_hex(4)}"
        made.append(directory)
        return make_machine(directory, name, addresses.find_free_address())

    yield boot
    for directory in made:
        host.destroy(directory / "host")
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def aws_stack(session_directory: Path) -> Iterator[AwsStack]:
    """A stack without hosts on an AWS that is played for this module."""
    from tests.aws_provider.cloud import Cloud  # slow to load, and few modules here need it
    from tests.system.aws_stack import played_stack

    with played_stack(session_directory, Cloud()) as made:
        yield made


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """A process that holds the engine and makes a run of each command that a test asks for."""
    with Engine() as running:
        yield running


@pytest.fixture
def node(store_server: StoreAccess, engine: Engine) -> Iterator[EngineNode]:
    """A node with a workspace of its own and an empty bag, in a directory that every user can reach."""
    directory = Path(tempfile.mkdtemp(prefix="decamp-node-"))
    directory.chmod(0o777)
    (directory / "w").mkdir()
    yield EngineNode(directory, store_server, engine)
    shutil.rmtree(directory)
