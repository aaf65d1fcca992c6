"""Brings the index in line with a walk of the workspace: what is unchanged stays proven, the rest is pending."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from dataclasses import dataclass, field

from decamp.census import Census, Seen
from decamp.entries import Entry, Kind, State, shown
from decamp.findings import Finding
from decamp.index import Index
from decamp.index_rows import signed, stored_ns
from decamp.reading import COARSE_TICK_S, TICK_S
from decamp.rules import GARBAGE, TIERS, Check, Rule

_GARBAGE = TIERS.index(GARBAGE)
_COMPARED = "path, kind, tier, rule, size, mode, mtime_ns, ctime_ns, ino, nlink, uid, gid, state, check_id, dev"
_SETTLED = frozenset((State.PROVEN, State.LEFT_BEHIND))
_WAITING = frozenset((State.PENDING, State.UNSTORABLE))
_BATCH = 2000
_UNGROUPED_FACT = "ungrouped"  # a run was killed between the rows of files and the grouping of their hard links


@dataclass
class Changes:
    """What a walk found to differ from the index.

    Attributes:
        rewritten: entries whose line of entries.jsonl changes, new and vanished ones included.
        vanished: entries that earlier evacuations proved and that are gone from the node.
        tiers: for each tier number: entries and bytes of files in it.
        findings: sockets, devices and whatever cannot be kept.
    """

    rewritten: int = 0
    vanished: int = 0
    tiers: list[list[int]] = field(default_factory=lambda: [[0, 0] for _ in TIERS])
    findings: list[Finding] = field(default_factory=list)


def check_identity(check: Check | None) -> str:
    """Names the checks that an entry went through, so that a changed rule is tried again; `whole` is the default."""
    if check is None:
        return "whole"
    canonical = json.dumps(check.document(), sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def reconcile(census: Census, index: Index, rules: tuple[Rule, ...]) -> Changes:
    """Walks the workspace once and returns what changed; afterwards every entry's row is as the walk saw it.

    Nothing is marked as gone when the walk itself is incomplete: what cannot be seen may still be there.
    """
    changes = Changes()
    check_ids = [check_identity(rule.check) for rule in rules]
    earlier = index.snapshot()
    rows = earlier.execute(f"SELECT {_COMPARED} FROM entry ORDER BY path")
    row = rows.fetchone()
    fresh: list[Entry] = []
    unseen: list[tuple[bytes]] = []
    index.execute("CREATE TEMP TABLE IF NOT EXISTS unseen (path BLOB PRIMARY KEY) WITHOUT ROWID")
    index.execute("DELETE FROM unseen")
    for seen in census.walk():
        key, status, kind = seen.key, seen.status, seen.kind
        while row is not None and row[0] < key:
            unseen.append((row[0],))
            row = rows.fetchone()
        if len(unseen) >= _BATCH:
            _note_unseen(index, unseen)
        size = status.st_size if kind == 0 else 0
        tier = changes.tiers[seen.tier]
        tier[0] += 1
        tier[1] += size
        known = row if row is not None and row[0] == key else None
        if known is not None:
            row = rows.fetchone()
            if (
                known[12] in _SETTLED
                and known[2] == seen.tier
                and known[6] == stored_ns(status.st_mtime_ns)
                and known[7] == status.st_ctime_ns
                and known[1] == kind
                and known[4] == size
                and known[3] == seen.rule
                and known[5] == status.st_mode & 0o7777
                and known[8] == signed(status.st_ino)
                and known[9] == _links(kind, status)
                and known[10] == status.st_uid
                and known[11] == status.st_gid
                and (status.st_nlink == 1 or kind != 0 or known[14] == signed(status.st_dev))
                and (
                    kind != 0
                    or seen.tier == _GARBAGE
                    or known[13] == (check_ids[seen.rule] if seen.rule >= 0 else "whole")
                )
            ):
                continue
        entry = _entry(seen, known is not None, index, check_ids, changes)
        if entry is not None:
            fresh.append(entry)
            if len(fresh) >= _BATCH:
                index.set_fact(_UNGROUPED_FACT, "1")
                index.put_entries(fresh)
                fresh.clear()
                index.commit()
    while row is not None:
        unseen.append((row[0],))
        row = rows.fetchone()
    index.put_entries(fresh)
    _note_unseen(index, unseen)
    earlier.close()
    if not census.findings:
        _mark_gone(index, changes)
    changes.findings.extend(_unstorable(index))  # those that are still there
    if changes.rewritten or index.fact(_UNGROUPED_FACT) is not None:
        index.group_hard_links()
        index.set_fact(_UNGROUPED_FACT, None)
    index.commit()
    return changes


def _links(kind: int, status: os.stat_result) -> int:
    return status.st_nlink if kind == 0 else 1


def _note_unseen(index: Index, unseen: list[tuple[bytes]]) -> None:
    for path in unseen:
        index.execute("INSERT OR IGNORE INTO unseen VALUES (?)", path)
    unseen.clear()


def _mark_gone(index: Index, changes: Changes) -> None:
    gone, proven, content_less = int(State.GONE), int(State.PROVEN), (int(Kind.DIRECTORY), int(Kind.SYMLINK))
    cursor = index.execute(
        f"UPDATE entry SET state={gone}, hardlink=NULL, size=coalesce(stored_size, size) "
        f"WHERE path IN (SELECT path FROM unseen) AND state!={gone} "
        f"AND (object IS NOT NULL OR (state={proven} AND kind IN {content_less}))"
    )
    changes.vanished = cursor.rowcount
    cursor = index.execute(f"DELETE FROM entry WHERE path IN (SELECT path FROM unseen) AND state!={gone}")
    changes.rewritten += changes.vanished + cursor.rowcount


def _unstorable(index: Index) -> list[Finding]:
    return [
        Finding(
            shown(entry.path.replace(b"\0", b"/")),
            f"a {Kind(entry.kind).name.lower().replace('_', ' ')} cannot be copied",
            "a file, directory or link, or a garbage rule",
            "",
            "remove it, or name it in a garbage rule",
        )
        for entry in index.entries("state=?", (int(State.UNSTORABLE),))
    ]


def _entry(seen: Seen, is_known: bool, index: Index, check_ids: list[str], changes: Changes) -> Entry | None:
    """The row of an entry that is new or differs; what an earlier evacuation proved of it is carried along."""
    status, kind = seen.status, seen.kind
    old = next(index.entries("path=?", (seen.key,)), None) if is_known else None
    is_garbage = seen.tier == _GARBAGE
    size = status.st_size if kind is Kind.FILE else 0
    link = xattrs = None
    state = State.LEFT_BEHIND if is_garbage else State.PROVEN
    if not is_garbage:
        try:
            _let_tick_pass(status.st_ctime_ns)
            if kind is Kind.SYMLINK:
                link = os.readlink(seen.path)
            if kind <= Kind.SYMLINK:
                xattrs = _read_xattrs(seen.path)
        except FileNotFoundError:
            return None  # the closing walk tells
        except OSError as error:
            changes.findings.append(
                Finding(shown(seen.path), "the entry cannot be read", "its attributes", error.strerror or str(error))
            )
            state = State.UNREADABLE
        if kind > Kind.SYMLINK:
            state = State.UNSTORABLE
        elif kind is Kind.FILE and state is State.PROVEN:
            state = State.PENDING
    check_id = (check_ids[seen.rule] if seen.rule >= 0 else "whole") if kind is Kind.FILE and not is_garbage else None
    entry = Entry(
        path=seen.key,
        kind=kind,
        tier=seen.tier,
        rule=seen.rule,
        size=size,
        mode=status.st_mode & 0o7777,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
        ino=signed(status.st_ino),
        dev=signed(status.st_dev),
        nlink=_links(kind, status),
        uid=status.st_uid,
        gid=status.st_gid,
        link=link,
        xattrs=xattrs,
        sparse=int(kind is Kind.FILE and status.st_blocks * 512 < size),
        state=state,
        sha256=None,
        object=None,
        offset=None,
        stored_size=None,
        hardlink=None,
        checks=None,
        check_id=check_id,
    )
    if old is not None and old.kind == Kind.FILE and kind is Kind.FILE and not is_garbage:
        entry = entry._replace(sha256=old.sha256, object=old.object, offset=old.offset, stored_size=old.stored_size)
        if _content_is_proven(old, entry):
            entry = entry._replace(state=int(State.PROVEN), checks=old.checks)
    if old is not None and old.state in _WAITING and entry == old._replace(checks=None, hardlink=None):
        return None  # as it was
    changes.rewritten += 1
    return entry


def _content_is_proven(old: Entry, new: Entry) -> bool:
    """Only its tier, its rule or the device's number differ: the file was not written to since it was proven."""
    same = ("size", "mode", "mtime_ns", "ctime_ns", "ino", "nlink", "uid", "gid", "check_id")
    return old.state == State.PROVEN and all(getattr(old, name) == getattr(new, name) for name in same)


def _let_tick_pass(ctime_ns: int) -> None:
    """Waits where a change after the reading could carry the stamp that the walk has just seen; see _wait_for_tick."""
    tick_s = TICK_S if ctime_ns % 1_000_000_000 else COARSE_TICK_S
    if 0 <= time.time_ns() - ctime_ns < tick_s * 1e9:
        time.sleep(tick_s)


def _read_xattrs(path: bytes) -> str | None:
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError as error:
        if error.errno in (95, 38):  # this filesystem has none
            return None
        raise
    if not names:
        return None
    values = {}
    for name in sorted(names):
        if name.startswith("system.") and name not in ("system.posix_acl_access", "system.posix_acl_default"):
            continue  # made up by the filesystem
        values[name] = base64.b64encode(os.getxattr(path, name, follow_symlinks=False)).decode("ascii")
    return json.dumps(values) if values else None
