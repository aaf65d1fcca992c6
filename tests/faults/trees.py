"""Seeded makers of strange trees: every kind of entry a workspace can hold, small by default."""

from __future__ import annotations

import os
import random
import socket
import stat
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.faults import formats

ORDINARY = [b"config.yaml", b"PROGRESS.md", b"train.log", b"shard.bin", b"notes.txt", b"data.dat", b"a", b"b.tmp"]
ODD = [
    b"new\nline", b"tail blank ", b" lead", b"100%", b"%2e%2e", b"a+b", b"tab\there", b"\x01\x02\x7f", b"q?x=1&y#z",
    "zero\u200bwidth".encode(), "bidi\u202eabc".encode(), "e\u0301".encode(), "\u00e9".encode(), "日本".encode(),
    "\U0001f600".encode(), b"back\\slash", b"'quote\"", b"-rf", b"~", b"$HOME", b"*", b"[a]", b"!not", b"#hash", b"...",
    b".hidden", b"cr\rhere", b"nul%00", b"<xml>&amp;", b"a:b", b"..data", b"trailing.",
    b"\xef\xbf\xbe", b"\xef\xbf\xbf",
]  # fmt: skip
INVALID = [b"\xff", b"\xc3\x28", b"ok\xfe.bin", b"\xed\xa0\x80", b"\x80\n", b"\xf4\x90\x80\x80"]
OURS = [
    b"manifest-sha256.txt", b"tagmanifest-sha256.txt", b"bagit.txt", b"bag-info.txt", b"fetch.txt", b".packs/0001.tar",
    b"decamp/receipt.json", b"decamp/entries.jsonl", b"data/x", b".packs/entries.jsonl", b"decamp-probe",
]  # fmt: skip
LONG = [b"n" * 255, "é".encode() * 127, b"\xff" * 255, b"%" * 255]
MODES = [0o000, 0o111, 0o200, 0o400, 0o444, 0o600, 0o644, 0o755, 0o777, 0o4755, 0o2755, 0o6711, 0o1644]
MTIMES_NS = [0, 1, -1, -1_500_000_001, -(2**31) * 10**9 + 5, 10**9 - 1, 1_700_000_000_123_456_789, 2**32 * 10**9 + 7,
             7_258_118_400_000_000_001]  # fmt: skip
DIRECTORIES = ["data", "data/hidden", "logs", "cache", "ckpt"]
SUFFIXES = [".tmp", ".log", ".bin"]


@dataclass
class Tree:
    """What was made: where, with which features, and whether something in it can never be kept."""

    root: bytes
    features: list[str] = field(default_factory=list)
    specials: list[bytes] = field(default_factory=list)
    torn: list[bytes] = field(default_factory=list)


class Maker:
    """Makes one tree from one random source; the methods named like features add what their names say."""

    def __init__(self, rng: random.Random, root: bytes) -> None:
        self.rng = rng
        self.tree = Tree(root)
        os.makedirs(root, exist_ok=True)

    def place(self, directory: bytes = b"") -> bytes:
        """A directory of the tree, made when it is not there."""
        chosen = directory or self.rng.choice([b"", *(name.encode() for name in DIRECTORIES)])
        path = os.path.join(self.tree.root, chosen) if chosen else self.tree.root
        os.makedirs(path, exist_ok=True)
        return path

    def content(self, most: int = 4096) -> bytes:
        size = self.rng.choice([0, 1, 2, 511, 512, 513, self.rng.randint(0, most), self.rng.randint(0, most)])
        return self.rng.randbytes(size)

    def write(self, path: bytes, body: bytes | None = None) -> bytes:
        """A new file; an existing entry of that name is left alone."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        except (FileExistsError, IsADirectoryError):
            return path
        with os.fdopen(descriptor, "wb") as sink:
            sink.write(self.content() if body is None else body)
        return path

    def files(self) -> list[bytes]:
        found = []
        for place, _, names in os.walk(self.tree.root):
            found += [os.path.join(place, name) for name in names]
        return sorted(path for path in found if stat.S_ISREG(os.lstat(path).st_mode))

    def entries(self) -> list[bytes]:
        found = [self.tree.root]
        for place, directories, names in os.walk(self.tree.root):
            found += [os.path.join(place, name) for name in (*directories, *names)]
        return sorted(found)

    # --- features ---
    def ordinary(self) -> None:
        for _ in range(self.rng.randint(2, 10)):
            name = self.rng.choice(ORDINARY)
            self.write(os.path.join(self.place(), self.rng.choice([name, b"%d-%s" % (self.rng.randint(0, 99), name)])))

    def odd_names(self) -> None:
        for name in self.rng.sample(ODD, self.rng.randint(1, 10)):
            self._entry(os.path.join(self.place(), name))

    def invalid_names(self) -> None:
        for name in self.rng.sample(INVALID, self.rng.randint(1, 4)):
            self._entry(os.path.join(self.place(), name))

    def _entry(self, path: bytes) -> None:
        """A file, a directory with a file, an empty directory or a symlink of that name."""
        choice = self.rng.random()
        if os.path.lexists(path):
            return
        if choice < 0.6:
            self.write(path)
        elif choice < 0.8:
            os.mkdir(path)
            if choice < 0.7:
                self.write(os.path.join(path, b"inside"))
        else:
            os.symlink(os.path.basename(path), path)

    def long_names(self) -> None:
        for name in self.rng.sample(LONG, self.rng.randint(1, 3)):
            self._entry(os.path.join(self.place(), name))

    def deep_paths(self) -> None:
        """Keys beyond 1,024 bytes, while the path still fits into one system call."""
        path = self.place()
        limit = self.rng.choice([1010, 1040, 2500, 3500])
        while len(path) < limit:
            path = os.path.join(path, self.rng.choice([b"d", b"deep" * 12, b"x" * 200]))
        self.write(os.path.join(path, b"bottom"))
        if self.rng.random() < 0.5:
            os.makedirs(os.path.join(path, b"empty"), exist_ok=True)

    def case_pairs(self) -> None:
        place = self.place()
        for name in (b"Case", b"case", b"CASE"):
            self.write(os.path.join(place, name))

    def empties(self) -> None:
        self.write(os.path.join(self.place(), b"nothing"), b"")
        os.makedirs(os.path.join(self.place(), b"empty", b"nested"), exist_ok=True)

    def our_names(self) -> None:
        for name in self.rng.sample(OURS, self.rng.randint(1, 5)):
            # Whole where the name promises a format: this is about names.
            body = formats.whole_file(name, self.rng)
            self.write(os.path.join(self.place(self.rng.choice([b"", b"data"])), name), body)

    def symlinks(self) -> None:
        targets = [
            b"nowhere",
            b"loop",
            b"/etc/passwd",
            b"../../../..",
            b".",
            b"a",
            b"data",
            b"\xff\n",
            b"x" * 300,
            b"./a/",
        ]
        for number, target in enumerate(self.rng.sample(targets, self.rng.randint(1, 6))):
            path = os.path.join(self.place(), b"loop" if target == b"loop" else b"link%d" % number)
            if not os.path.lexists(path):
                os.symlink(target, path)

    def hard_links(self) -> None:
        files = self.files() or [self.write(os.path.join(self.place(), b"linked"), b"linked content")]
        for number in range(self.rng.randint(1, 4)):
            path = os.path.join(self.place(), b"hard%d%s" % (number, self.rng.choice([b"", b".tmp", b".log"])))
            if not os.path.lexists(path):
                os.link(self.rng.choice(files), path, follow_symlinks=False)

    def sparse_files(self) -> None:
        path = os.path.join(self.place(), b"sparse.dat")
        if os.path.lexists(path):
            return
        with open(path, "wb") as sink:
            sink.truncate(self.rng.choice([1 << 20, 3 << 20, 300_001]))
            for _ in range(self.rng.randint(0, 3)):
                sink.seek(self.rng.randint(0, 299_000))
                sink.write(self.rng.randbytes(100))

    def xattrs(self) -> None:
        for path in self._some(self.entries()):
            if stat.S_IFMT(os.lstat(path).st_mode) in (stat.S_IFREG, stat.S_IFDIR):  # others have none of a user's
                os.setxattr(path, b"user.note", self.rng.choice([b"", b"text", bytes(range(256)), b"v" * 1000]))

    def owners(self) -> None:
        if os.geteuid() == 0:
            for path in self._some(self.entries()):
                os.chown(
                    path,
                    self.rng.choice([0, 1000, 65534, 2**31 + 5]),
                    self.rng.choice([0, 1000]),
                    follow_symlinks=False,
                )

    def modes(self) -> None:
        for path in self._some(self.entries()):
            if not os.path.islink(path):
                os.chmod(path, self.rng.choice(MODES))

    def times(self) -> None:
        # Deepest first: making an entry changes the directory above, setting times does not.
        for path in self._some(self.entries()):
            stamp = self.rng.choice(MTIMES_NS)
            os.utime(path, ns=(stamp, stamp), follow_symlinks=False)

    def last_times(self) -> None:
        """Times beyond 2262, which 63 bits of nanoseconds do not hold and ext4 and XFS do."""
        for path in self._some(self.entries()):
            stamp = self.rng.choice([9_223_372_037 * 10**9, 15_032_385_535 * 10**9 + 1])
            os.utime(path, ns=(stamp, stamp), follow_symlinks=False)

    def known_formats(self) -> None:
        for name, body in formats.whole_files(self.rng):
            if self.rng.random() < 0.5:
                self.write(os.path.join(self.place(), name), body)

    def many_files(self) -> None:
        place = self.place(b"many")
        for number in range(self.rng.randint(50, 300)):
            self.write(os.path.join(place, b"%05d.txt" % number), self.rng.randbytes(self.rng.randint(0, 300)))

    def large_files(self) -> None:
        self.write(os.path.join(self.place(), b"large.dat"), self.rng.randbytes(self.rng.choice([300_000, 2_000_000])))

    def huge_file(self) -> None:
        """Large enough for several parts of a multipart upload."""
        self.write(os.path.join(self.place(), b"huge.dat"), self.rng.randbytes(1 << 20) * self.rng.choice([9, 18]))

    def special_files(self) -> None:
        place = self.place()
        for name in self.rng.sample([b"run.sock", b"pipe", b"null"], self.rng.randint(1, 3)):
            path = os.path.join(place, name)
            if os.path.lexists(path) or len(path) > 100:
                continue
            if name == b"run.sock":
                with socket.socket(socket.AF_UNIX) as endpoint:
                    endpoint.bind(path)
            elif name == b"pipe":
                os.mkfifo(path)
            elif os.geteuid() == 0:
                os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
            else:
                continue
            self.tree.specials.append(os.path.relpath(path, self.tree.root))

    def torn_files(self) -> None:
        name, body = self.rng.choice(formats.torn_files(self.rng))
        self.tree.torn.append(
            os.path.relpath(self.write(os.path.join(self.place(), b"torn-" + name), body), self.tree.root)
        )

    def _some(self, paths: list[bytes]) -> list[bytes]:
        return self.rng.sample(paths, self.rng.randint(1, max(1, len(paths) // 2)))


CONTENT_FEATURES = [
    "odd_names", "invalid_names", "long_names", "deep_paths", "case_pairs", "empties", "our_names", "symlinks",
    "sparse_files", "known_formats", "many_files", "large_files",
]  # fmt: skip
# After the content, in this order: owners change modes' special bits, and times come last of all.
DRESSING_FEATURES = ["hard_links", "xattrs", "owners", "modes", "times"]
RARE_FEATURES = {"special_files": 0.06, "torn_files": 0.04, "huge_file": 0.03, "last_times": 0.02}


def random_features(rng: random.Random) -> list[str]:
    """A few features of each group; the rare ones at their own rates."""
    chosen = ["ordinary", *rng.sample(CONTENT_FEATURES, rng.randint(1, 5))]
    chosen += [name for name, share in RARE_FEATURES.items() if rng.random() < share]
    dressing = rng.sample(DRESSING_FEATURES, rng.randint(0, len(DRESSING_FEATURES)))
    chosen += [name for name in DRESSING_FEATURES if name in dressing]
    return sorted(chosen, key=lambda name: name == "last_times")


def make_tree(rng: random.Random, root: bytes, features: list[str] | None = None) -> Tree:
    """A tree at `root` with the given features (else random ones); the same seed makes the same tree.

    Owners, modes and devices need root; a file system may round times and lack extended attributes.
    """
    maker = Maker(rng, root)
    chosen = random_features(rng) if features is None else features
    for name in chosen:
        step: Callable[[], None] = getattr(maker, name)
        step()
    maker.tree.features = chosen
    return maker.tree
