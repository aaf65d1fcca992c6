"""`decamp rehearsal`: a whole rental on this machine, a line a step, or the first thing that is not as it should be.

Whatever an earlier run left, finished or interrupted at any point, is removed first: a second run recovers by itself.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from decamp.errors import EXIT_DONE, BadInput, DecampError, Interrupted
from decamp.rehearsal import environment, host, prerequisites, store_server


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommands run, clean and env."""
    commands = parser.add_subparsers(dest="rehearsal_command", required=True, metavar="COMMAND")
    run_parser = commands.add_parser("run", help="live through a whole rental")
    run_parser.add_argument("--keep", action="store_true", help="leave the stack up at the end, to look around")
    run_parser.add_argument("--verbose", action="store_true", help="show every detail, not only a line a step")
    commands.add_parser("clean", help="remove everything a rehearsal made, hosts and archives included")
    commands.add_parser("env", help='print exports for a shell: eval "$(decamp rehearsal env)"')


def run(options: argparse.Namespace) -> int:
    """Does what the subcommand says and returns the exit code."""
    directory = environment.DIRECTORY
    if options.rehearsal_command == "env":
        print("\n".join(environment.make_exports(directory)))
        return EXIT_DONE
    prerequisites.check_machine()
    with only_one(directory):
        clean(directory)
        if options.rehearsal_command == "run":
            live_through(directory, keep=options.keep, verbose=options.verbose)
        elif not (directory / "tests").exists():
            shutil.rmtree(directory)
    return EXIT_DONE


@contextmanager
def only_one(directory: Path) -> Iterator[None]:
    """Refuses to run while another rehearsal of this checkout does."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".running").open("a") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(str(directory), "another rehearsal runs here", run="wait for its end") from None
        yield


def clean(directory: Path) -> None:
    """Removes hosts, store, archives, state and keys of a rehearsal; what tests made and the caches stay."""
    for saved in sorted((directory / "nodes").glob("*")):
        host.destroy(saved)
    store_server.destroy(directory / "store")
    for left in directory.glob("*"):
        if left.name in ("tests", ".running"):
            continue
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        else:
            left.unlink()


class Journal:
    """Shows a line a step (what, seconds, result) and keeps every detail in a log."""

    def __init__(self, log: Path, verbose: bool) -> None:
        self.steps: list[tuple[str, float]] = []
        self.log = log
        self.verbose = verbose
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("", encoding="utf-8")

    def tell(self, line: str) -> None:
        with self.log.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
        if self.verbose:
            print(f"    {line}", flush=True)

    def do(self, what: str, step: Callable[[], str]) -> None:
        """Does a step and shows its line; a failure is shown and raised."""
        print(f"{len(self.steps) + 1:2}  {what:<42}", end="\n" if self.verbose else "", flush=True)
        self.tell(f"== {what}")
        begun = time.monotonic()
        try:
            result = step()
        except BaseException as error:
            interrupted = isinstance(error, Interrupted) or not isinstance(error, Exception)
            print(f"{time.monotonic() - begun:7.1f} s  {'interrupted' if interrupted else 'FAILED'}", flush=True)
            self.tell(f"== {type(error).__name__}: {error}")
            raise
        seconds = time.monotonic() - begun
        self.steps.append((what, seconds))
        self.tell(f"== {what}: {seconds:.1f} s: {result}")
        print(f"{seconds:7.1f} s  {result}", flush=True)


def live_through(directory: Path, keep: bool, verbose: bool) -> None:
    """Lives through a rental; raises the first thing that is not as it should be.

    Args:
        directory: the rehearsal's directory.
        keep: stop before the last evacuation and destruction, and leave everything running.
        verbose: show every detail.
    """
    # Imported here: `clean` and `env` need neither ansible-runner nor boto3.
    from decamp.rehearsal.rental import Rental

    variables = environment.make_environment(directory)
    # boto3 and the programs of this process find the rehearsal's store, whatever the shell had.
    os.environ.update(variables)
    journal = Journal(directory / "logs" / "rehearsal.log", verbose)
    rental = Rental(directory, variables, journal.tell)
    begun = time.monotonic()
    try:
        journal.do("pulumi up", rental.bring_up)
        journal.do("pulumi preview", rental.preview)
        journal.do("site.yml", rental.set_up)
        journal.do("site.yml again", rental.set_up_again)
        journal.do("the job works, is killed, continues", rental.work)
        journal.do("pulumi destroy without a receipt", rental.try_to_destroy)
        journal.do("evacuate.yml", rental.evacuate)
        journal.do("evacuate.yml again", rental.evacuate)
        journal.do("pulumi destroy", rental.destroy)
        journal.do("pulumi up: a fresh host", rental.bring_up)
        journal.do("restore.yml", rental.restore)
        if not keep:
            journal.do("evacuate.yml", rental.evacuate)
            journal.do("pulumi destroy", rental.destroy)
    except DecampError:
        print(f"\nnot as it should be; every detail is in {journal.log}, what was made is still there", flush=True)
        raise
    finally:
        if not keep:
            store_server.stop(directory / "store")
    summarise(directory, journal, time.monotonic() - begun, keep)


def summarise(directory: Path, journal: Journal, seconds: float, keep: bool) -> None:
    """Says what was lived through, what is left, and how to look at it or remove it."""
    print(f"\n{len(journal.steps)} steps in {seconds:.0f} s, all as they should be. Details: {journal.log}")
    if keep:
        print('Still up: eval "$(.venv/bin/decamp rehearsal env)"; pulumi stack output; decamp ls $URL')
    else:
        print(f"The hosts are gone; the archive is in {directory / 'store'}.")
    print("Remove everything: make clean-rehearsal")
