"""`decamp abandon`: a node is given up only with a reason and its name typed back, and the record says who did it."""

from __future__ import annotations

import argparse
import getpass
import os
import socket
import sys
from datetime import datetime, timezone

from decamp.abandonment import VALID_FOR, Abandonment, write_record
from decamp.deadline import deadline_words
from decamp.errors import EXIT_DONE, BadInput, DecampError
from decamp.receipt import read_receipt
from decamp.stack import read_guards
from decamp.teardown import GuardedNode

DESCRIPTION = f"""\
Give up a node whose data cannot be, or need not be, proven to be in the store.

`pulumi destroy` deletes a node only when its archive holds and the node shows
that nothing has changed since. A node that is gone, silent or not worth an
evacuation never gets there. This command is the way out: it writes a record
to the store, beside the node's receipt (decamp/abandoned/), with the reason,
who gave it up, when, and the machine's identity (host key and machine id).
The guard then lets exactly that machine go, for {VALID_FOR.days * 24} hours. A machine that
later has the same name, or the same address, is not covered.

WHATEVER THE NODE HOLDS AND THE STORE DOES NOT IS LOST when it is deleted.
Nothing is deleted by this command itself; `pulumi destroy` or `pulumi up` is
next. The node's name must be typed back on standard input, so a script says
    echo node-1 | decamp abandon node-1 --reason "the provider took it back"

It needs the stack (PULUMI_BACKEND_URL, PULUMI_CONFIG_PASSPHRASE) and write
access to the store (AWS_ACCESS_KEY_ID and so on).
Exit codes: 0 recorded, 2 refused input, 4 the store cannot be written.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options to its parser."""
    parser.description = DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("node", metavar="NODE", help="name of the node in the stack")
    parser.add_argument("--reason", required=True, help="why its data may be lost; kept in the record")
    parser.add_argument("--stack", help="the stack's name (default: the selected one)")


def run(args: argparse.Namespace) -> int:
    """Writes the record once the name was typed back; returns the exit code.

    Raises:
        BadInput: empty reason, unknown node, or another name typed; nothing was written.
        StoreFailure: the record could not be written.
    """
    if not args.reason.strip():
        raise BadInput("--reason", "empty", expected="why the node's data may be lost")
    node = find_guard(read_guards(args.stack), args.node)
    sys.stderr.write(f"{node.name} ({node.user}@{node.host}:{node.port}, machine id {node.machine_id})\n")
    sys.stderr.write(f"  archive: {describe_archive(node)}\n")
    sys.stderr.write(f"  time: {deadline_words(node.deadline)}\n")
    sys.stderr.write("  What it holds and the store does not is lost once it is deleted.\n")
    sys.stderr.write("Type the node's name to give it up: ")
    sys.stderr.flush()
    typed = sys.stdin.readline().strip()
    if typed != node.name:
        raise BadInput(node.name, "not abandoned, nothing was written", expected=f'"{node.name}"', found=f'"{typed}"')
    record = Abandonment(
        node=node.name,
        host_key=node.host_key,
        machine_id=node.machine_id,
        reason=args.reason.strip(),
        who=describe_operator(),
        at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )
    key = write_record(node.connect_store(), record)
    hours = VALID_FOR.days * 24
    sys.stderr.write(f"recorded in {node.archive_url}/{key}; its guard lets {node.name} go for {hours} hours\n")
    sys.stderr.write("next: pulumi destroy\n")
    return EXIT_DONE


def find_guard(guards: list[GuardedNode], name: str) -> GuardedNode:
    """Returns the guard of the node with this name, or raises BadInput naming those there are."""
    for guard in guards:
        if guard.name == name:
            return guard
    names = ", ".join(guard.name for guard in guards) or "none"
    raise BadInput(
        name,
        "the stack has no guarded node of this name",
        expected=f"one of: {names}",
        run="pulumi up  # a node whose guard was never made gets it",
    )


def describe_archive(node: GuardedNode) -> str:
    """What the store has of the node, in a line; a store that cannot be read is said, not raised."""
    try:
        receipt = read_receipt(node.connect_store())
    except DecampError as error:
        return str(error)
    if receipt.machine_id != node.machine_id:
        return f"{node.archive_url} is of another machine ({receipt.machine_id})"
    return f"{node.archive_url}, {receipt.verdict} at {receipt.finished_at}"


def describe_operator() -> str:
    """user@host of whoever runs this, with the user behind sudo."""
    behind = os.environ.get("SUDO_USER")
    return f"{getpass.getuser()}@{socket.gethostname()}" + (f" (sudo by {behind})" if behind else "")
