"""The known ways in which tests.faults.mutants breaks the engine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class Mutant:
    """A defect: `old`, found exactly once in all of the engine, however it is laid out, becomes `new`.

    Attributes:
        directed: names of the directed plans that are about this defect; tried before the random ones.
        also: names of mutants that come with it: the other guards of something that is guarded more than once.
        guarded: what else guards the same, so that no case is expected to notice this defect alone.
    """

    name: str
    what: str
    old: str
    new: str
    directed: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    guarded: str = ""

    @property
    def pattern(self) -> re.Pattern[str]:
        """Matches `old` whatever blanks, line ends and commas before closing brackets are in it."""
        text = ""
        for token in re.findall(r"\w+|[^\w\s]", self.old):
            if token in ")]}":
                text += r",?\s*"
            text += (r"\b" if token[0].isalnum() else "") + re.escape(token) + r"\s*"
        return re.compile(text.removesuffix(r"\s*"))

    def place(self) -> str:
        """The name of the module that the defect is made in, wherever the engine keeps that code by now.

        Raises:
            LookupError: the code is not there, or more than once.
        """
        found = [
            ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
            for path in sorted((REPOSITORY / "decamp").rglob("*.py"))
            for _ in self.pattern.findall(path.read_text())
        ]
        if len(found) != 1:
            raise LookupError(f"mutant {self.name}: expected 1 place, found {found or 'none'}")
        return found[0]

    def apply(self, text: str) -> str:
        """A module's source with the defect in it."""
        return self.pattern.sub(lambda _: self.new.strip(), text)

    def together(self) -> list[Mutant]:
        """This mutant and those that come with it."""
        return [self, *(MUTANTS[name] for name in self.also)]


_ALL = [
    Mutant(
        "no closing look",
        "the walk after the copy is not compared with the one before",
        "if closing.sha256 != census.sha256 or closing.findings != census.findings:",
        "if False:",
        ("change at every request",),
    ),
    Mutant(
        "no look at the open file",
        "a file's identity, size and times are not checked before and after it is read",
        "or signed(status.st_ino) != entry.ino): raise EntryChanged",
        "or signed(status.st_ino) != entry.ino): return",
        ("change at every request", "link at every request"),
        guarded="the closing look finds every such change",
    ),
    Mutant(
        "links are followed",
        "files are opened through symlinks",
        "os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC",
        "os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC",
        ("link at every request",),
        guarded="the open file's identity is compared with the census, and so is the closing look",
    ),
    Mutant(
        "links are followed unseen",
        "files are opened through symlinks, and neither the open file nor the closing look is compared",
        "        self.path = plain_path(entry.path)\n",
        "        self.path = plain_path(entry.path)\n        assert self.path\n",
        ("link at every request",),
        also=("links are followed", "no look at the open file", "no closing look"),
    ),
    Mutant(
        "census by size and mtime",
        "a change is one of size or mtime; ctime is not looked at",
        "status.st_mtime_ns, status.st_ctime_ns, status.st_ino",
        "status.st_mtime_ns, 0, 0",
        ("unseen change at every request",),
    ),
    Mutant(
        "rerun by size and mtime",
        "a rerun takes a file for unchanged when size and mtime are",
        "and known[7] == status.st_ctime_ns",
        "",
        ("unseen change between runs",),
    ),
    Mutant(
        "the answer is not looked at",
        "a store that was seen to check checksums is believed to have checked this one",
        "self._traits.checks_puts and answer.sha256 == checksum",
        "self._traits.checks_puts",
        ("one wrong upload",),
    ),
    Mutant(
        "no checksum is sent",
        "uploads carry no checksum although the store was seen to check it, and the ETag is enough",
        "  # type: ignore[arg-type]  # the stubs lack bytearray\n"
        "                                            ChecksumSHA256=base64_digest(digest))",
        "**({'ChecksumSHA256': base64_digest(digest)} if '/.probe/' in key else {}))",
        ("corrupted uploads",),
        also=("the answer is not looked at",),
    ),
    Mutant(
        "the store is taken at its word",
        "what an untrustworthy store took is not read back",
        "        if not is_attested:\n            confirm_kept(self._store, key, digest, size)",
        "        if False:\n            confirm_kept(self._store, key, digest, size)",
        ("careless store",),
    ),
    Mutant(
        "an entry is dropped from the census",
        "the walk leaves out one name in every directory of four or more",
        "        names.sort()\n        return names",
        "        names.sort()\n        return names[:-1] if len(names) > 3 else names",
        ("plain",),
    ),
    Mutant(
        "writers are ignored",
        "nobody looks for processes that have files open for writing",
        "    writers = find_writers()\n    findings = []\n",
        "    from decamp.host import Writers\n\n    writers = Writers({}, 0)\n    findings = []\n",
        ("held open", "mapped"),
    ),
    Mutant(
        "mappings are ignored",
        "a shared mapping whose descriptor is closed is nobody's business",
        "return _add_mappings(pid, thread, found) or has_any",
        "return has_any",
        ("mapped",),
    ),
    Mutant(
        "a read error is ignored",
        "a file that cannot be read is named nowhere",
        "self._index.set_state(path, State.UNREADABLE)",
        "self._index.set_state(path, State.LEFT_BEHIND); return",
        ("unreadable",),
    ),
    Mutant(
        "places in a pack start anew",
        "members of a pack's second batch are said to lie where those of its first do",
        "Member(member.entry, start + member.offset, member.sha256, member.checks)",
        "Member(member.entry, member.offset, member.sha256, member.checks)",
        ("plain",),
    ),
    Mutant(
        "no wait for the tick",
        "a file is read in the same tick of the clock in which the walk saw it",
        "        time.sleep(COARSE_TICK_S if coarse else TICK_S)",
        "        time.sleep(0)",
        ("same second",),
    ),
    Mutant(
        "a stale index is trusted",
        "an index of another time is not held against the bag",
        "    if receipt is not None and index.fact(RECEIPT_FACT) == receipt.sha256:\n        return receipt",
        "    if receipt is not None and index.fact(RECEIPT_FACT) is not None:\n        return receipt",
        ("old state",),
        guarded="the listing is held against the index, object by object",
    ),
    Mutant(
        "a stale index is trusted unseen",
        "neither the receipt nor the listing is held against an index of another time",
        "    if body is None and index.fact(PROGRESS_FACT)",
        "    if index.fact(PROGRESS_FACT)",
        ("old state", "tampered between runs"),
        also=("a stale index is trusted", "the listing is not held against the index"),
    ),
    Mutant(
        "the listing is not held against the index",
        "what the index says is in the store is in the store",
        "for record in index.objects_listed_otherwise():",
        "for record in ():",
        ("tampered between runs",),
    ),
    Mutant(
        "a missing object is not missed",
        "an object that the listing does not show is taken to be there",
        "return stored is not None and _holds(record, stored)",
        "return stored is None or _holds(record, stored)",
        ("emptied between runs", "tampered between runs", "one lost upload"),
    ),
    Mutant(
        "a cut listing is complete",
        "a page that promises another one without a token for it ends the listing",
        "            if not token or token in tokens:\n                raise",
        "            if not token:\n                return\n            if token in tokens:\n                raise",
        ("forgotten tokens",),
        guarded="an object that is not listed is asked for by its name",
    ),
    Mutant(
        "the receipt comes early",
        "the receipt is written while files are still pending",
        "                if self._pending()[0] == 0:\n",
        "                if True:\n",
        ("change at every request",),
        also=("no closing look",),
    ),
    Mutant(
        "the old receipt stays",
        "the receipt of the last run stays in place while the bag is changed",
        "            self._store.delete(RECEIPT)\n            if self._store.exists(RECEIPT):",
        "            if False:",
        ("killed while changing",),
        guarded="the receipt names the manifest, which is another one then",
    ),
    Mutant(
        "a damaged index is used",
        "the index is not held against its digest",
        "if is_kept and not has_its_digest(path):",
        "if False:",
        ("damaged state",),
        also=("the list is not held against the walk",),
    ),
    Mutant(
        "the list is not held against the walk",
        "entries.jsonl need not list what the walk met",
        "if listed_sha256 != census.sha256:",
        "if False:",
        ("damaged state",),
        guarded="an index that is damaged has another digest",
    ),
    Mutant(
        "no look after the reading back",
        "the answer of an unchanged archive that was read back is about the workspace as it was before that",
        "                census = Census(self._spec, read_mounts())\n                changes = self._walk(census)\n"
        "                holds = self._proof_holds(receipt, agreement, census, changes)",
        "                pass",
        ("change while read back",),
    ),
    Mutant(
        "a killed run forgets what it found",
        "the index is brought in line with a changed bag, and still counts as what the receipt speaks of",
        "if outcome.dropped or unknown:",
        "if False:",
        ("killed after tampering",),
    ),
    Mutant(
        "a reading beats a checksum",
        "an unknown object is what its first reading says, whatever the store says of it",
        "if read.is_confirmed_by(stored):",
        "if True:",
        ("unknown objects read wrongly",),
    ),
]
MUTANTS = {mutant.name: mutant for mutant in _ALL}
