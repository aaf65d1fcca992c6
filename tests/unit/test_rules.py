"""Rules name what git would ignore, whatever the names; the first rule that fits decides."""

from __future__ import annotations

import itertools
import os
import subprocess

import pytest

from decamp.rules import GARBAGE, IRREPLACEABLE, TIERS, USEFUL, Rule, RuleBook, compile_pattern

DIRECTORIES = ["", "foo", "foo/bar", "foo/bar/baz", "logs", "logs/old", "a", "a/b", "a/x", "a/x/y", "x", ".hid", "d e"]
NAMES = ["foo", "b", "c", "x.log", ".env", "w x", "bar", "logs", "a-b", "A.LOG", "a[1]", "$HOME", "#c", "!i", "t ", "9"]
PATTERNS = [
    "foo", "/foo", "foo/", "/foo/", "foo/*", "foo/**", "/foo/**", "**/foo", "**/foo/**", "foo/**/baz", "foo/bar",
    "foo/bar/", "bar/b", "/foo/bar/*", "*", "*.log", "/*.log", "foo/*.log", "**/*.log", "*/", "/*/", "**", "/**",
    "**/", "a/**/b", "a/**/y/b", "/a/**/b", "**/x/b", "a**", "?", "??", "a?b", "a/?", "[ab]", "[!ab]", "[a-c]",
    "a[!b]b", "a[.-0]b", "a[^x]b", ".*", ".hid/", "\\!i", "\\#c", "\\*", "a\\[1\\]", "a[[]1]", "w x", "d e/", "d e/b",
    "t\\ ", "t", "$HOME", "logs/", "logs", "logs/old/", "logs/**/b", "x/", "*o*", "f*o/b*", "foo/**/", "***",
    "/*", "/*/*", "*/*", "foo  ", "foo\\/b", "[]a]", "[]-a]", "[!]a]", "[a-]", "a[-]b", "[\\]a]", "[0-9]",
    "/[!.]*/**", "foo/***/b", "x**/y", "/***", "/a/x", "a/x/**", "**/**/b", "x.log/", "A.LOG", "a.log",
]  # fmt: skip


def decide(pattern: str, path: str | bytes, is_directory: bool = False) -> bool:
    """Whether a rule with the pattern names the path."""
    raw = os.fsencode(path)
    return RuleBook((Rule(pattern, GARBAGE),), IRREPLACEABLE).decide(raw, is_directory) == (TIERS.index(GARBAGE), 0)


@pytest.fixture(scope="module")
def git_answers(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[bool, bool]]:
    """For each pattern and path: whether it is a directory, and whether git's own matcher takes the pattern for it."""
    root = tmp_path_factory.mktemp("git")
    environment = {"PATH": os.environ["PATH"], "HOME": str(root), "GIT_CONFIG_NOSYSTEM": "1"}
    work = root / "work"
    for directory in DIRECTORIES:
        (work / directory).mkdir(parents=True, exist_ok=True)
    for directory, name in itertools.product(DIRECTORIES, NAMES):
        path = work / directory / name
        if not path.is_dir():
            path.touch()
    kinds = {str(path.relative_to(work)): path.is_dir() for path in work.rglob("*")}
    subprocess.run(["git", "init", "-q", "."], cwd=work, check=True, env=environment)
    listed = "\0".join(kinds).encode() + b"\0"
    answers = {}
    for pattern in PATTERNS:
        (root / "excludes").write_text(pattern + "\n", encoding="utf-8")
        command = ["git", "-c", f"core.excludesFile={root}/excludes", "check-ignore", "-z", "--no-index", "--stdin"]
        done = subprocess.run(
            command, cwd=work, env=environment, input=listed, capture_output=True, timeout=60, check=False
        )
        assert done.returncode in (0, 1), done.stderr
        ignored = set(done.stdout.decode().split("\0"))
        answers.update({(pattern, path): (is_directory, path in ignored) for path, is_directory in kinds.items()})
    return answers


def test_patterns_name_what_git_ignores(git_answers: dict[tuple[str, str], tuple[bool, bool]]) -> None:
    wrong = [
        (pattern, path, ignored)
        for (pattern, path), (is_directory, ignored) in git_answers.items()
        if decide(pattern, path, is_directory) != ignored
    ]
    assert sum(ignored for _, ignored in git_answers.values()) > 2000
    assert not wrong, wrong[:20]


@pytest.mark.parametrize(
    ("pattern", "named", "not_named"),
    [
        (
            "*.tmp",
            [b"a.tmp", b"x/y.tmp", b"x\n/y.tmp", b"a\nb.tmp", b"\xff.tmp", b"a$.tmp"],
            [b"a.tmp\n", b"a.tmp2", b"tmp"],
        ),
        (
            "cache/**",
            [b"cache/x", b"cache/x/y", b"cache/\n", b"cache/\xfe\xff"],
            [b"cache", b"a/cache/x", b"cache\n/x"],
        ),
        ("$x", [b"$x", b"d/$x"], [b"x", b"$x\n"]),
        ("a?b", [b"a\nb", b"a\xffb", b"a b", "a\u00fcb".encode()], [b"a/b", b"ab"]),
        ("end", [b"end", b"end/below", b"x/end"], [b"end\n", b"\nend\n", b"ended"]),
        ("/only", [b"only", b"only/x"], [b"x/only"]),
        ("p%2F+q", [b"p%2F+q"], [b"p/+q", b"p%2Fq"]),
        ("(a|b).txt", [b"(a|b).txt"], [b"a.txt"]),
        ("x.y", [b"x.y"], [b"x-y"]),
        ("\udcff.bin", [b"\xff.bin"], [b"\xfe.bin"]),
    ],
)
def test_names_are_bytes(pattern: str, named: list[bytes], not_named: list[bytes]) -> None:
    assert [path for path in named if not decide(pattern, path)] == []
    assert [path for path in not_named if decide(pattern, path)] == []


def test_directory_patterns_name_directories_and_what_they_hold() -> None:
    assert decide("logs/", "logs", is_directory=True)
    assert not decide("logs/", "logs", is_directory=False)
    assert decide("logs/", "logs/a")
    assert decide("logs/", "x/logs/deep/a")
    assert not decide("logs/**", "logs", is_directory=True)
    assert decide("logs/**", "logs/sub", is_directory=True)


def test_the_first_rule_that_fits_decides() -> None:
    rules = (Rule("keep/*.log", IRREPLACEABLE), Rule("*.log", GARBAGE), Rule("keep", USEFUL), Rule("*", GARBAGE))
    book = RuleBook(rules, USEFUL)
    decided = {path: book.decide(path, False) for path in (b"keep/a.log", b"a.log", b"keep/x", b"other")}
    assert decided == {b"keep/a.log": (0, 0), b"a.log": (2, 1), b"keep/x": (1, 2), b"other": (2, 3)}
    assert book.matched == {0, 1, 2, 3}


def test_an_entry_that_no_rule_names_has_the_default_tier() -> None:
    book = RuleBook((Rule("x", GARBAGE),), USEFUL)
    assert book.decide(b"y", False) == (1, -1)
    assert book.matched == set()


def test_the_root_itself_is_never_named() -> None:
    assert RuleBook((Rule("**", GARBAGE), Rule("*", GARBAGE)), IRREPLACEABLE).decide(b"", True) == (0, -1)


@pytest.mark.parametrize(
    ("pattern", "complaint"),
    [
        ("", "empty"), ("   ", "empty"), ("# note", "comment"),
        ("!keep", "exception before it"), ("/", "names nothing"),
        ("//", "names nothing"), ("a//b", "names nothing"), ("./a", "names nothing"), ("a/..", "names nothing"),
        ("x\\", "backslash"), ("[z-a]", "bad character range"), ("[[:alpha:]]x", "[:alpha:]"), ("[", "never closed"),
        ("a[]", "never closed"), ("[a\\]", "never closed"),
    ],
)  # fmt: skip
def test_what_is_no_pattern_is_refused(pattern: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=r".*") as caught:
        compile_pattern(pattern)
    assert complaint in str(caught.value)
