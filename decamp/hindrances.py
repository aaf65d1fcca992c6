"""What makes a verdict NOT SAFE besides the copying: rules that name nothing, and writers."""

from __future__ import annotations

import contextlib
import os

from decamp.census import Census
from decamp.entries import State, plain_path, shown, sort_key
from decamp.findings import Finding
from decamp.host import Writer, find_writers
from decamp.index import Index
from decamp.index_rows import signed
from decamp.rules import TIERS
from decamp.spec import Spec

_QUERY_LIMIT = 500


def rule_findings(spec: Spec, census: Census, warnings: list[Finding]) -> list[Finding]:
    """Returns the rules that name data to keep and matched nothing in a walk.

    A wildcard that matches nothing is how data is forgotten: for irreplaceable or checked data it is a reason, for
    useful data a warning. Rules marked optional, garbage rules, and empty roots that may be empty are left out.
    """
    if spec.allow_empty and census.entries <= len(spec.roots):
        return []
    matched = census.matched_rules()
    findings = []
    for number, rule in enumerate(spec.rules):
        if number in matched or rule.optional or rule.tier == TIERS[2]:
            continue
        finding = Finding(
            rule.match,
            "the rule names data to keep and matches nothing",
            "at least one entry",
            "none",
            "correct the pattern, or mark the rule: optional: true",
        )
        if rule.tier == TIERS[0] or rule.check is not None:
            findings.append(finding)
        elif finding not in warnings:
            warnings.append(finding)
    return findings


def writer_findings(spec: Spec, index: Index) -> list[Finding]:
    """Returns the files worth keeping that some process can write to now, each with the process.

    A file is recognized by the path that the kernel tells and by its device and inode, so that neither a bind
    mount nor a hard link hides it. Call it after a walk: a process that mapped a file before the walk, and can
    change it without a new time stamp, is still there then. The files are remembered: the next run reads them anew.
    """
    writers = find_writers()
    findings = []
    if writers.unseen:
        findings.append(
            Finding(
                "/proc",
                f"open files of {writers.unseen} processes cannot be seen",
                "to see every process's open files",
                f"user id {os.geteuid()}",
                "run as root",
            )
        )
    found: dict[bytes, Writer] = {writer.path: writer for writer in writers.below(spec.roots)}
    inodes = [signed(inode) for _, inode in writers.by_identity]
    for start in range(0, len(inodes), _QUERY_LIMIT):
        part = inodes[start : start + _QUERY_LIMIT]
        for entry in index.entries(f"ino IN ({','.join('?' * len(part))}) AND kind=0", part):
            path = plain_path(entry.path)
            with contextlib.suppress(OSError):
                status = os.lstat(path)
                writer = writers.by_identity.get((status.st_dev, status.st_ino))
                if writer is not None:
                    found[path] = writer
    index.hold(sort_key(path) for path in found)
    for path, writer in sorted(found.items()):
        counted = next(index.entries("path=?", (sort_key(path),)), None)
        if counted is not None and counted.state == State.LEFT_BEHIND:
            continue
        findings.append(
            Finding(
                shown(path),
                "the file is open for writing",
                "no writer",
                f"process {writer.pid} ({writer.command})",
                "stop the process and run again",
            )
        )
    return findings
