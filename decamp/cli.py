"""The command line: arguments in, one document or a few lines out, and the exit codes of docs/exit-codes.md."""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.util
import io
import json
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

import decamp
from decamp.errors import EXIT_ARCHIVE, EXIT_DONE, EXIT_INTERRUPTED, EXIT_NOT_SAFE, BadInput, DecampError

# Subcommands that live in modules of their own and need what only the operator's machine has.
_OPERATOR_COMMANDS = {
    "abandon": ("decamp.abandon", "give a node up, with a reason, so that its stack can be destroyed"),
    "rehearsal": ("decamp.rehearsal.lifecycle", "a whole rental on this machine, with real parts"),
    "bundle": ("decamp.bundle", "pack decamp for a node that has only Python"),
    "capacity": ("decamp.capacity", "find and buy AWS capacity blocks"),
    "sweep": ("decamp.sweep", "find what an interrupted run left in the AWS account"),
}


class _Interrupt(BaseException):
    """SIGINT or SIGTERM arrived."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadInput("", f"{message}; run: {self.prog} --help")


def _store_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--endpoint-url", metavar="U", help="an S3-compatible store (default: AWS_ENDPOINT_URL, else Amazon S3)"
    )
    parser.add_argument("--region", metavar="R", help="the bucket's region")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.add_argument("--quiet", action="store_true", help="no progress on standard error")


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Returns the parser; the arguments of an operator's command are added when it is the one that is asked for."""
    parser = _Parser(prog="decamp", description=decamp.__doc__)
    parser.add_argument("--version", action="version", version=f"decamp {decamp.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    evacuate = commands.add_parser("evacuate", help="prove that everything worth keeping is in the store")
    evacuate.add_argument("spec", metavar="SPEC", help="YAML file: roots, rules, tiers")
    evacuate.add_argument("--store", required=True, metavar="URL", help="s3://bucket/prefix/node")
    evacuate.add_argument("--dry-run", action="store_true", help="say what is missing; change nothing")
    evacuate.add_argument("--read-back", action="store_true", help="read every object back, whatever the store attests")
    evacuate.add_argument(
        "--hindrance",
        action="append",
        default=[],
        metavar="TEXT",
        help="a reason for NOT SAFE that is known beforehand (several times: several); all is copied nonetheless",
    )
    _store_arguments(evacuate)

    verify = commands.add_parser("verify", help="verify an archive")
    verify.add_argument("url", metavar="URL", help="s3://bucket/prefix/node")
    verify.add_argument("--read-back", action="store_true", help="read every object, whatever the store attests")
    _store_arguments(verify)

    restore = commands.add_parser("restore", help="bring an archive back as DEST/<absolute path>")
    restore.add_argument("url", metavar="URL", help="s3://bucket/prefix/node")
    restore.add_argument("destination", metavar="DEST", help="a directory; / puts everything back in its place")
    restore.add_argument(
        "--include",
        action="append",
        default=[],
        metavar="GLOB",
        help="gitignore pattern of absolute paths to bring back; may be given several times",
    )
    restore.add_argument("--overwrite", action="store_true", help="replace files that differ")
    restore.add_argument("--incomplete", action="store_true", help="do without a receipt: bring back what there is")
    _store_arguments(restore)

    listing = commands.add_parser("ls", help="list what an archive holds")
    listing.add_argument("url", metavar="URL", help="s3://bucket/prefix/node")
    _store_arguments(listing)

    census = commands.add_parser("census", help="count the workspace, without a store")
    census.add_argument("spec", metavar="SPEC")
    census.add_argument("--json", action="store_true", help="one JSON document on standard output")

    for name, (module, text) in _OPERATOR_COMMANDS.items():
        if importlib.util.find_spec(module) is None:
            continue
        sub = commands.add_parser(name, help=text)
        if name == command:
            importlib.import_module(module).add_arguments(sub)
    return parser


def main(arguments: list[str] | None = None) -> NoReturn:
    """Runs a command and ends the process with its exit code; nothing that a user can cause shows a traceback."""
    words = sys.argv[1:] if arguments is None else arguments
    command = next((word for word in words if not word.startswith("-")), None)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    # A run makes millions of tuples and hardly a cycle: to look for cycles among them took a seventh of the time.
    gc.set_threshold(100_000, 50, 100)
    as_json = "--json" in words
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal's encoding lacks ends nothing
    try:
        options = build_parser(command).parse_args(words)
        code = _COMMANDS[options.command](options) if options.command in _COMMANDS else _run_operator(options)
    except DecampError as error:
        _tell_error(error, as_json)
        code = error.exit_code
    except (_Interrupt, KeyboardInterrupt):
        print("decamp: interrupted; run the same command again to continue", file=sys.stderr)
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        code = EXIT_DONE
    except Exception as error:  # a defect of ours is NOT SAFE too, in one line; the traceback is there for who asks
        if os.environ.get("DECAMP_DEBUG"):
            raise
        defect = DecampError(
            "decamp",
            "a defect ended the command",
            found=repr(error),
            run="the same command with DECAMP_DEBUG=1, and report it",
        )
        _tell_error(defect, as_json)
        code = EXIT_NOT_SAFE
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        pass
    if code == EXIT_INTERRUPTED:
        os._exit(code)  # worker threads may still be waiting for the store; what they did is remembered
    sys.exit(code)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Interrupt


def _tell_error(error: DecampError, as_json: bool) -> None:
    print(f"decamp: {error}", file=sys.stderr)
    if as_json:
        _print_json(
            {
                "error": {
                    "where": error.where,
                    "what": error.what,
                    "expected": error.expected,
                    "found": error.found,
                    "run": error.run,
                },
                "exit_code": error.exit_code,
            }
        )


def _print_json(document: dict[str, Any]) -> None:
    print(json.dumps(document, ensure_ascii=True, sort_keys=True))


def _run_operator(options: argparse.Namespace) -> int:
    module = importlib.import_module(_OPERATOR_COMMANDS[options.command][0])
    return int(module.run(options))


def _evacuate(options: argparse.Namespace) -> int:
    from decamp.evacuate import Evacuation
    from decamp.report import outcome_lines
    from decamp.spec import read_spec
    from decamp.store.client import Store
    from decamp.store.location import StoreLocation

    spec = read_spec(options.spec)
    store = Store(StoreLocation.parse(options.store), options.endpoint_url, options.region)
    run = Evacuation(
        spec,
        os.path.abspath(options.spec),
        store,
        _progress(options),
        read_back=options.read_back,
        hindrances=options.hindrance,
    )
    outcome = run.rehearse() if options.dry_run else run.run()
    if options.json:
        _print_json(outcome.document())
    else:
        print("\n".join(outcome_lines(outcome)))
    return outcome.exit_code


def _progress(options: argparse.Namespace) -> Any:
    from decamp.progress import Progress

    return Progress() if options.quiet else Progress.on_stderr()


def _store(options: argparse.Namespace) -> Any:
    from decamp.store.client import Store
    from decamp.store.location import StoreLocation

    return Store(StoreLocation.parse(options.url), options.endpoint_url, options.region)


def _verify(options: argparse.Namespace) -> int:
    from decamp.verify import verify_bag

    outcome = verify_bag(_store(options), options.read_back, _progress(options))
    if options.json:
        _print_json(
            {
                "holds": not outcome.findings,
                "objects": outcome.objects,
                "bytes": outcome.size_bytes,
                "read_back_bytes": outcome.read_back_bytes,
                "finished_at": outcome.receipt.finished_at,
                "findings": [finding.document() for finding in outcome.findings],
            }
        )
    else:
        for finding in outcome.findings:
            print(f"finding: {finding}")
        word = "damaged" if outcome.findings else "holds"
        print(
            f"{word}: {options.url} ({outcome.objects} objects, {outcome.size_bytes} bytes, "
            f"{outcome.read_back_bytes} read back; receipt of {outcome.receipt.finished_at})"
        )
    return EXIT_ARCHIVE if outcome.findings else EXIT_DONE


def _restore(options: argparse.Namespace) -> int:
    from decamp.restore import restore_bag

    outcome = restore_bag(
        _store(options),
        options.destination,
        include=tuple(options.include),
        overwrite=options.overwrite,
        incomplete=options.incomplete,
        progress=_progress(options),
    )
    if options.json:
        _print_json(
            {
                "restored": not outcome.findings,
                "entries": outcome.entries,
                "files": outcome.files,
                "present": outcome.present,
                "bytes": outcome.size_bytes,
                "findings": [finding.document() for finding in outcome.findings],
                "warnings": [finding.document() for finding in outcome.warnings],
            }
        )
    else:
        for finding in outcome.warnings:
            print(f"warning: {finding}")
        for finding in outcome.findings:
            print(f"finding: {finding}")
        print(
            f"{'incomplete' if outcome.findings else 'restored'}: {outcome.entries} entries, {outcome.files} files "
            f"({outcome.present} were there), {outcome.size_bytes} bytes, to {options.destination}"
        )
    return EXIT_ARCHIVE if outcome.findings else EXIT_DONE


def _ls(options: argparse.Namespace) -> int:
    from decamp.entries import entry_document
    from decamp.listing import entry_row, list_bag

    if not options.json:
        receipt = list_bag(_store(options), lambda entry: print(entry_row(entry)))
        state = f"receipt of {receipt.finished_at}" if receipt else "no receipt: unfinished, nothing is proven"
        print(f"{options.url}: {state}", file=sys.stderr)
        return EXIT_DONE
    entries: list[dict[str, Any]] = []
    receipt = list_bag(_store(options), lambda entry: entries.append(entry_document(entry, ())))
    _print_json({"receipt": receipt.finished_at if receipt else None, "entries": entries})
    return EXIT_DONE


def _census(options: argparse.Namespace) -> int:
    from decamp.count import count_workspace
    from decamp.spec import read_spec

    document = count_workspace(read_spec(options.spec))
    if options.json:
        _print_json(document)
    else:
        for finding in document["findings"]:
            print(f"finding: {finding['path']}: {finding['what']}")
        for writer in document["writers"]:
            print(f"writer: {writer['path']}: process {writer['pid']} ({writer['command']})")
        print(f"{document['entries']} entries worth keeping, census sha256 {document['census_sha256']}")
    return EXIT_DONE


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "evacuate": _evacuate,
    "verify": _verify,
    "restore": _restore,
    "ls": _ls,
    "census": _census,
}
