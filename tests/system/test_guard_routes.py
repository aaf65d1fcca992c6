"""No way through the engine leads past a guard: each is tried on nodes whose work is nowhere else.

The stack was brought up by a checkout whose guards agree to everything, so every refusal here also shows that the code
of the checkout that destroys is what runs, not the code that was there when the guard was made.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from decamp.rehearsal import addresses, host
from tests.system.guard_stack import GuardStack
from tests.system.pulumi_project import CHECKOUT, Outcome


@pytest.fixture(scope="module")
def stack(session_directory: Path) -> Iterator[GuardStack]:
    """Two nodes with work on them, brought up by a checkout whose guards let everything go."""
    made = GuardStack(session_directory / "guard-routes", ["node-1", "node-2"])
    try:
        lax = made.project / "lax"
        shutil.copytree(CHECKOUT / "infra", lax / "infra", ignore=shutil.ignore_patterns("__pycache__"))
        guard = lax / "infra" / "teardown_guard.py"
        guard.write_text(guard.read_text() + "\n\ndef agree(node):\n    return None\n")
        made.use_program("lax/infra")
        brought_up = made.up()
        assert brought_up.exit_code == 0, brought_up.output
        made.use_program("infra")
        for node in ("node-1", "node-2"):
            made.fill_workspace(node)
        yield made
        # The lax code was lax: where it is the code that runs, both nodes go. In the tests it was not.
        made.use_program("lax/infra")
        assert made.destroy().exit_code == 0
        assert list((made.rehearsal / "nodes").iterdir()) == []
    finally:
        made.remove()


@pytest.fixture(scope="module")
def untouched(stack: GuardStack) -> tuple[dict[str, str], list[str]]:
    return stack.resources(), [stack.boot_id(node) for node in ("node-1", "node-2")]


@pytest.fixture(autouse=True)
def _as_it_was(stack: GuardStack, untouched: tuple[dict[str, str], list[str]]) -> Iterator[None]:
    """After each attempt the state has the same resources, both hosts are the same and run, and no other is there."""
    yield
    stack.use_program("infra")
    stack.configure()
    assert (stack.resources(), [stack.boot_id(node) for node in ("node-1", "node-2")]) == untouched
    assert sorted(path.name for path in (stack.rehearsal / "nodes").iterdir()) == ["node-1", "node-2"]


def assert_refused(outcome: Outcome, *nodes: str) -> None:
    assert outcome.exit_code != 0, outcome.output
    assert "Traceback" not in outcome.output, outcome.output
    for node in nodes:
        assert f"{node}: not deleted, nothing was changed" in outcome.output, outcome.output
        assert f"decamp abandon {node} --reason" in outcome.output
        assert f"playbooks/evacuate.yml --limit {node}" in outcome.output


def test_destroy_names_every_node_at_once(stack: GuardStack) -> None:
    outcome = stack.destroy()
    assert_refused(outcome, "node-1", "node-2")
    assert "4 files" in outcome.output and "below /workspace" in outcome.output


def test_destroy_that_continues_on_error(stack: GuardStack) -> None:
    assert_refused(stack.destroy("--continue-on-error"), "node-1", "node-2")


def test_destroy_of_the_host_alone(stack: GuardStack) -> None:
    outcome = stack.destroy("--target", stack.urn("node-1-host"))
    assert outcome.exit_code != 0, outcome.output


@pytest.mark.parametrize("resource", ["node-1-host", "store-server"])
def test_destroy_of_a_resource_with_its_dependents(stack: GuardStack, resource: str) -> None:
    assert_refused(stack.destroy("--target", stack.urn(resource), "--target-dependents"), "node-1")


@pytest.mark.parametrize("guard", ["node-1-guard", "stack-guard"])
def test_destroy_of_the_guard_first(stack: GuardStack, guard: str) -> None:
    assert_refused(stack.destroy("--target", stack.urn(guard), "--target-dependents"), "node-1")


def test_destroy_of_all_but_a_guard(stack: GuardStack) -> None:
    assert_refused(stack.destroy("--exclude", stack.urn("node-1-guard")), "node-1", "node-2")


def test_destroy_of_all_but_the_stack_guard(stack: GuardStack) -> None:
    """The engine keeps what an excluded resource depends on, which is everything."""
    outcome = stack.destroy("--exclude", stack.urn("stack-guard"))
    assert " deleted " not in outcome.output, outcome.output


def test_up_without_a_node_that_was_there(stack: GuardStack) -> None:
    stack.configure({"node-1": stack.addresses["node-1"]})
    assert_refused(stack.up(), "node-2")


def test_rename_is_refused_before_a_second_node_is_made(stack: GuardStack) -> None:
    stack.configure({"node-1": stack.addresses["node-1"], "node-3": addresses.find_free_address()})
    preview = stack.pulumi("preview")
    assert preview.exit_code == 0 and "an up would be refused" in preview.output, preview.output
    assert_refused(stack.up(), "node-2")
    assert not stack.host_directory("node-3").exists()


def test_replacement_is_refused_before_a_second_node_is_made(stack: GuardStack) -> None:
    elsewhere = addresses.find_free_address()
    stack.configure({**stack.addresses, "node-1": elsewhere})
    assert_refused(stack.up(), "node-1")
    assert not host.answers_ssh(elsewhere)


@pytest.mark.parametrize("resource", ["node-1-host", "node-1-guard"])
def test_replacement_that_is_asked_for(stack: GuardStack, resource: str) -> None:
    assert_refused(stack.up("--replace", stack.urn(resource)), "node-1")


def test_replacement_of_a_targeted_host(stack: GuardStack) -> None:
    stack.configure({**stack.addresses, "node-1": addresses.find_free_address()})
    targets = ["--target", stack.urn("node-1-identity"), "--target", stack.urn("node-1-host")]
    outcome = stack.up(*targets)
    assert outcome.exit_code != 0, outcome.output


@pytest.mark.parametrize(("with_nodes", "options"), [(True, ()), (False, ("--continue-on-error",))])
def test_up_of_a_program_without_guards(stack: GuardStack, with_nodes: bool, options: tuple[str, ...]) -> None:
    stack.use_unguarded_program(with_nodes)
    assert_refused(stack.up(*options), "node-1", "node-2")


def test_refresh_does_not_lift_a_guard_when_its_host_is_dead(stack: GuardStack) -> None:
    host.stop(stack.host_directory("node-1"))
    refreshed = stack.pulumi("refresh", "--yes", "--skip-preview")
    assert refreshed.exit_code == 0, refreshed.output
    outcome = stack.destroy()
    assert outcome.exit_code != 0 and "no answer from" in outcome.output, outcome.output
    assert stack.up().exit_code == 0


def test_another_store_in_the_configuration(stack: GuardStack) -> None:
    stack.configure(store={"url": "s3://another-bucket"})
    changed = stack.up()
    assert changed.exit_code == 0, changed.output
    assert_refused(stack.destroy(), "node-1", "node-2")
    stack.configure()
    assert stack.up().exit_code == 0
