"""A failure says where, what, both sides and what to run, in one line, and has its exit code."""

from __future__ import annotations

import pytest

from decamp.errors import BadInput, DamagedArchive, DecampError, Interrupted, NotSafe, StoreFailure
from decamp.findings import Finding


@pytest.mark.parametrize("kind", [DecampError, Finding])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "/a: broke"),
        ({"expected": "x"}, "/a: broke: expected x"),
        ({"found": "y"}, "/a: broke: found y"),
        ({"expected": "x", "found": "y"}, "/a: broke: expected x, found y"),
        ({"expected": "x", "found": "y", "run": "z"}, "/a: broke: expected x, found y; run: z"),
        ({"run": "z"}, "/a: broke; run: z"),
    ],
)
def test_the_one_form_of_messages(kind: type, fields: dict[str, str], message: str) -> None:
    assert str(kind("/a", "broke", **fields)) == message


def test_a_failure_without_a_place_starts_with_what_failed() -> None:
    assert str(DecampError("", "broke", run="z")) == "broke; run: z"


def test_every_class_has_its_exit_code() -> None:
    codes = {kind: kind("a", "b").exit_code for kind in (BadInput, NotSafe, StoreFailure, DamagedArchive, Interrupted)}
    assert codes == {BadInput: 2, NotSafe: 3, StoreFailure: 4, DamagedArchive: 5, Interrupted: 130}


def test_a_finding_as_a_document_leaves_out_what_is_empty() -> None:
    assert Finding("/a", "broke", found="y").document() == {"path": "/a", "what": "broke", "found": "y"}
