"""The generator makes what its features promise, and the judge of tiers agrees with gitignore's own rules."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pathspec
import pytest

from tests.faults.comparison import Picture, take_picture
from tests.faults.specs import random_spec
from tests.faults.trees import CONTENT_FEATURES, DIRECTORIES, DRESSING_FEATURES, RARE_FEATURES, SUFFIXES, make_tree


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Picture]:
    """One picture a feature, each made with the ordinary files and three seeds together."""
    made: dict[str, Picture] = {}
    for feature in [*CONTENT_FEATURES, *DRESSING_FEATURES, *RARE_FEATURES]:
        made[feature] = {}
        for seed in range(3):
            root = os.fsencode(tmp_path_factory.mktemp(feature) / str(seed))
            make_tree(random.Random(seed), root, ["ordinary", feature])
            made[feature] |= {b"%d/%s" % (seed, path): node for path, node in take_picture(root).items()}
    return made


def test_names_are_as_strange_as_promised(pictures: dict[str, Picture]) -> None:
    odd = b"\0".join(pictures["odd_names"])
    assert b"%" in odd and "\u200b".encode() in odd and b"\n" in odd
    with pytest.raises(UnicodeDecodeError):
        b"/".join(pictures["invalid_names"]).decode()
    assert max(len(part) for path in pictures["long_names"] for part in path.split(b"/")) == 255
    assert max(len(path) for path in pictures["deep_paths"]) > 1024
    cases = [path for path in pictures["case_pairs"] if path.lower().endswith(b"case")]
    assert len({path.lower() for path in cases}) < len(cases)
    assert any(path.endswith(b"manifest-sha256.txt") for path in pictures["our_names"])
    assert any(path.endswith(b"decamp/receipt.json") for path in pictures["our_names"])


def test_contents_and_attributes_are_as_strange_as_promised(pictures: dict[str, Picture]) -> None:
    assert any(node.size == 0 and node.kind == "file" for node in pictures["empties"].values())
    assert any(path.endswith(b"empty/nested") for path in pictures["empties"])
    assert any(node.hole_bytes > 200_000 for node in pictures["sparse_files"].values())
    targets = {node.target for node in pictures["symlinks"].values() if node.kind == "symlink"}
    assert len(targets) > 5
    files = [node.identity for node in pictures["hard_links"].values() if node.kind == "file"]
    assert len(set(files)) < len(files)
    assert any(node.xattrs for node in pictures["xattrs"].values())
    assert len({node.uid for node in pictures["owners"].values()}) > 2
    modes = {node.mode for node in pictures["modes"].values()}
    assert any(mode & 0o6000 for mode in modes) and len(modes) > 5
    stamps = [node.mtime_ns for node in pictures["times"].values()]
    assert min(stamps) < 0 and max(stamps) > 2**32 * 10**9 and any(stamp % 1000 for stamp in stamps)
    assert max(node.mtime_ns for node in pictures["last_times"].values()) > 2**63
    assert {"fifo", "socket", "character device"} <= {node.kind for node in pictures["special_files"].values()}
    assert max(node.size for node in pictures["huge_file"].values()) > 9_000_000


def test_every_seed_gives_the_same_tree_again(tmp_path: Path) -> None:
    for seed in range(5):
        trees = [make_tree(random.Random(seed), os.fsencode(tmp_path / f"{seed}-{copy}")) for copy in range(2)]
        assert trees[0].features == trees[1].features
        one, two = (take_picture(tree.root) for tree in trees)
        assert {(path, node.kind, node.size, node.mode) for path, node in one.items()} == {
            (path, node.kind, node.size, node.mode) for path, node in two.items()
        }


def test_the_judge_of_tiers_agrees_with_gitignore() -> None:
    paths = [
        f"{directory}/{name}" for directory in DIRECTORIES for name in ("x", "y.tmp", "deep/z.log", "hidden/w.bin")
    ]
    paths += ["x.tmp", "logs.txt", "sub/logs/x", "d.tmp/inside", "dataset/x"]
    judged = 0
    for seed in range(200):
        spec = random_spec(random.Random(seed), ["/ws"], DIRECTORIES, SUFFIXES)
        for path in paths:
            expected = next(
                (
                    rule.tier
                    for rule in spec.rules
                    if pathspec.GitIgnoreSpec.from_lines([rule.pattern]).match_file(path)
                ),
                spec.default_tier,
            )
            assert spec.tier(path.encode(), "file") == expected, (spec.rules, path)
            judged += 1
    assert judged == 200 * len(paths)
