"""A spec is understood whole or refused whole, with every problem in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from decamp.errors import BadInput
from decamp.spec import SpecProblems, parse_spec, read_spec


def problems_of(document: Any) -> list[str]:
    with pytest.raises(SpecProblems) as caught:
        parse_spec(document)
    assert caught.value.exit_code == 2
    return caught.value.problems


def test_the_smallest_spec_keeps_everything() -> None:
    spec = parse_spec({"root": "/w"})
    assert (spec.roots, spec.default_tier, spec.rules) == ((b"/w",), "irreplaceable", ())
    assert (spec.prefer_existing, spec.allow_empty, spec.mount) == ((), False, None)


def test_a_whole_spec_is_understood(tmp_path: Path) -> None:
    path = tmp_path / "spec.yml"
    path.write_text("""
root: [/z/b/, /a//./x]
default_tier: useful
allow_empty: true
mount: /z/
prefer_existing: [s3://bucket/some/where/]
rules:
  - {match: "*.arrow", tier: irreplaceable, check: {kind: arrow, column: loss_mask, min_mean_sum: 64}}
  - {match: tmp/, tier: garbage, reason: scratch, optional: true}
  - {match: "*.jsonl", tier: useful, on_failure: mark, check: {kind: jsonl, required: [id], min_rows: 3}}
""")
    spec = read_spec(path)
    assert spec.roots == (b"/a/x", b"/z/b")
    assert (spec.default_tier, spec.allow_empty, spec.mount) == ("useful", True, "/z")
    assert spec.prefer_existing == ("s3://bucket/some/where/",)
    first, second, third = spec.rules
    assert first.check is not None
    assert first.check.document() == {"kind": "arrow", "column": "loss_mask", "min_mean_sum": 64}
    assert (second.tier, second.reason, second.optional) == ("garbage", "scratch", True)
    assert third.mark_only
    assert not first.mark_only


def test_every_problem_is_told_at_once() -> None:
    problems = problems_of({
        "rot": "/w", "root": ["relative", "/a/../b", "/x", "/x/y"], "default_tier": "precious", "allow_empty": "yes",
        "mount": "mnt", "prefer_existing": ["bucket/x"],
        "rules": [
            "text", {"match": "!a", "tier": "useful"}, {"match": 3, "tier": "trash", "reason": [1], "optional": 1},
            {"match": "a", "tier": "garbage", "check": {"kind": "json"}, "on_failure": "ignore", "teir": 1},
            {"match": "b", "tier": "useful", "check": {"kind": "xml"}},
            {"match": "[z-a]", "tier": "useful", "check": {"kind": "arrow", "min_mean": 1, "colum": "x"}},
        ],
    })  # fmt: skip
    told = "\n".join(problems)
    for part in (
        "rot: unknown key", "'relative'", "'/a/../b'", "/x/y lies inside /x", "default_tier", "allow_empty", "mount",
        "prefer_existing", "rules[0]: expected a mapping", "rules[1].match", "rules[2].match", "rules[2].tier",
        "rules[2].reason", "rules[2].optional", "rules[3].check: garbage", "rules[3].on_failure", "rules[3].teir",
        "rules[4].check: expected a mapping whose kind is one of", "rules[5].match", "rules[5].check.colum",
        "rules[5].check.column: expected the name of the column",
    ):  # fmt: skip
        assert part in told
    assert len(problems) == 21


@pytest.mark.parametrize(
    ("roots", "is_fine"),
    [
        (["/a", "/b"], True), (["/a", "/ab"], True), (["/a", "/a"], False), (["/a", "/a/b"], False),
        (["/", "/a"], False), (["/a/b", "/a/b/../b"], False), (["/a/", "/a"], False),
        (["/a/b", "/a/bc", "/a/b/c"], False),
    ],
)  # fmt: skip
def test_roots_do_not_lie_inside_each_other(roots: list[str], is_fine: bool) -> None:
    if is_fine:
        assert len(parse_spec({"root": roots}).roots) == len(roots)
    else:
        assert problems_of({"root": roots})


@pytest.mark.parametrize("root", ["/\ud800", None, "", [], {}, 3, [3], "/a\0b", ["/a", None], "w/x"])
def test_a_root_is_an_absolute_path(root: Any) -> None:
    assert any(problem.startswith("root:") for problem in problems_of({"root": root}))


def test_a_root_may_be_bytes_that_are_no_text() -> None:
    assert parse_spec({"root": "/\udcff\udcfe"}).roots == (b"/\xff\xfe",)


@pytest.mark.parametrize(
    ("check", "complaint"),
    [
        ({"kind": "jsonl", "min_rows": "3"}, "min_rows: expected a number"),
        ({"kind": "jsonl", "min_rows": True}, "min_rows: expected a number"),
        ({"kind": "jsonl", "min_rows": float("nan")}, "min_rows: expected a number"),
        ({"kind": "jsonl", "min_rows": 10**400}, "min_rows: expected a number"),
        ({"kind": "jsonl", "required": "id"}, "required: expected a list"),
        ({"kind": "jsonl", "run": "x"}, "run: unknown parameter"),
        ({"kind": "json", "min_rows": 3}, "min_rows: unknown parameter"),
        ({"kind": "arrow", "column": ""}, "column: expected text"),
        ({"kind": "parquet", "max_sum": 3}, "column: expected the name"),
        ({"kind": "safetensors", "column": "x"}, "column: unknown parameter"),
        ({"kind": "command"}, "run: expected the command"),
        ({"kind": "command", "run": []}, "run: expected"),
        ({"kind": "command", "run": "   "}, "run: expected"),
        ({"kind": "command", "run": "x 'y"}, "run: "),
        ({"kind": "command", "run": "x\0y"}, "run: "),
        ({"kind": "command", "run": ["x", "y\0"]}, "run: "),
        ({"kind": "command", "run": "x", "timeout_s": 0}, "timeout_s: expected"),
        ({"kind": "command", "run": "x", "timeout_s": -3}, "timeout_s: expected"),
        ({"kind": ["json"]}, "expected a mapping whose kind"),
        ("json", "expected a mapping whose kind"),
    ],
)
def test_parameters_of_checks_are_checked(check: Any, complaint: str) -> None:
    rule = {"match": "a", "tier": "useful", "check": check}
    problems = problems_of({"root": "/w", "rules": [rule]})
    assert len(problems) == 1
    assert complaint in problems[0]


@pytest.mark.parametrize(
    "text",
    [
        "root: [", "root: !!python/object:os.system x", "root: 2024-01-01", "root: 2024-99-99", "root: !!binary aGk=",
        "&a [*a]", "root: &r [*r]", "? [a]\n: b", "root: /w\n---\nroot: /x", "\x01", "a: b: c",
        "root: !!set {a}", 'root: "/\\ud800"',
    ],
)  # fmt: skip
def test_what_is_no_plain_yaml_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "spec.yml"
    path.write_text(text)
    with pytest.raises(BadInput) as caught:
        read_spec(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["", "- a", "word", "3"])
def test_a_spec_is_a_mapping(tmp_path: Path, text: str) -> None:
    path = tmp_path / "spec.yml"
    path.write_text(text)
    with pytest.raises(SpecProblems, match="expected a mapping"):
        read_spec(path)


def test_a_spec_that_cannot_be_read_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"root: /\xff")
    for path in (tmp_path / "none.yml", tmp_path, tmp_path / "latin"):
        with pytest.raises(BadInput, match="cannot be read"):
            read_spec(path)


def test_two_files_that_say_the_same_have_the_same_digest(tmp_path: Path) -> None:
    one, two = tmp_path / "one.yml", tmp_path / "two.yml"
    one.write_text("root: /w\ndefault_tier: useful\n")
    two.write_text("# note\ndefault_tier: 'useful'\nroot: \"/w\"\n")
    assert read_spec(one).sha256 == read_spec(two).sha256
    two.write_text("root: /w\ndefault_tier: garbage\n")
    assert read_spec(one).sha256 != read_spec(two).sha256


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.sampled_from(["/w", "/w/x", "useful", "garbage", "a/**", "[z-a]", "arrow", "s3://b/", "\ud800",
                     "/\ud800", "\0"]),
)  # fmt: skip
KEYS = st.one_of(
    st.sampled_from(["root", "default_tier", "rules", "prefer_existing", "allow_empty", "mount", "match", "tier",
                     "reason", "check", "on_failure", "optional", "kind", "run", "column", "min_rows", "required"]),
    st.integers(), st.text(max_size=3),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)


@given(VALUES)
@settings(max_examples=100, deadline=None)
def test_any_document_is_a_spec_or_has_problems(document: Any) -> None:
    try:
        spec = parse_spec(document)
    except SpecProblems as problems:
        assert problems.problems
        return
    assert spec.roots
    assert len(spec.sha256) == 64


@given(st.dictionaries(KEYS, VALUES, max_size=6).map(lambda rest: {"root": "/w", "rules": [rest]}))
@settings(max_examples=100, deadline=None)
def test_any_rule_is_a_rule_or_has_problems(document: Any) -> None:
    try:
        parse_spec(document)
    except SpecProblems as problems:
        assert problems.problems


def test_yaml_of_a_spec_says_the_same_again() -> None:
    spec = parse_spec({"root": "/w", "rules": [{"match": "a", "tier": "useful", "reason": "é\n"}]})
    assert parse_spec(yaml.safe_load(yaml.safe_dump(spec.document))).sha256 == spec.sha256
