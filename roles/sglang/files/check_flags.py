#!/usr/bin/env python3
"""Accepts or refuses a launch command by SGLang's own argument classes and names; needs msgspec, neither torch nor GPU.

    check_flags.py SITE_PACKAGES -- --model-path m --dp-size 8 --enable-hierarchical-cache

SITE_PACKAGES holds the package sglang (an installed environment's directory, or an unpacked wheel). Exit 0: accepted.
Exit 2: every complaint, one a line. The parser is the one that `ServerArgs.add_cli_args` makes, with its types, choices
and aliases; modules that arguments do not need are replaced by hollow ones, so nothing heavy is imported. Besides the
parser: abbreviated flags are refused (the next version may make them ambiguous), and so are a speculative algorithm
that SGLang does not know and combinations that it refuses only after the model was loaded.
"""

from __future__ import annotations

import argparse
import ast
import enum
import importlib
import importlib.abc
import importlib.machinery
import json
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

# Modules that are read as they are; every other module below sglang is hollow.
REAL = (
    "sglang.srt.arg_groups.argparse_actions",
    "sglang.srt.arg_groups.arg_utils",
    "sglang.srt.arg_groups.choices",
    "sglang.srt.arg_groups.field_order",
    "sglang.srt.arg_groups.fields",
    "sglang.srt.function_call.parser_names",
    "sglang.srt.model_executor.cuda_graph_config",
    "sglang.srt.parser.reasoning_parser_names",
    "sglang.srt.server_args",
)


class HollowModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for the modules below sglang that are not about arguments."""

    def __init__(self, source: Path) -> None:
        self.source = source

    def find_spec(  # the names are the base class's
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: types.ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.split(".")[0] != "sglang" or fullname.startswith(REAL):
            return None
        spec = importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        spec.submodule_search_locations = [str(self.source.joinpath(*fullname.split(".")))]
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__path__ = list(spec.submodule_search_locations or [])
        if spec.name == "sglang.srt.utils.common":
            module.__dict__.update(
                json_list_type=json.loads,
                nullable_str=lambda text: None if text in ("None", "null") else text,
                human_readable_int=_human_readable_int,
                SUPPORTED_LORA_TARGET_MODULES=[],
                LORA_TARGET_ALL_MODULES="all",
            )
        module.__dict__["__getattr__"] = _hollow_attribute
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class Hollow:
    """Answers any call and attribute with itself or False."""

    def __call__(self, *_arguments: Any, **_named: Any) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return (lambda *_arguments, **_named: False) if name == "get" else self

    def __bool__(self) -> bool:
        return False


def _hollow_attribute(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if name.isupper():
        return []
    if name[:1].isupper():
        return enum.Enum(name, []) if name.endswith("Modes") or name == "RealKvHashMode" else type(name, (), {})
    return Hollow()


def _human_readable_int(text: str) -> int:
    """As SGLang's: 4096, 4k, 1M; its own needs torch beside it."""
    factors = {"k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
    for suffix, factor in sorted(factors.items(), key=lambda item: -len(item[0])):
        if text.lower().endswith(suffix):
            return int(float(text[: -len(suffix)]) * factor)
    return int(text)


class CollectingParser(argparse.ArgumentParser):
    """Raises instead of printing and exiting."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def build_parser(source: Path) -> argparse.ArgumentParser:
    """Returns SGLang's own parser, without abbreviations."""
    sys.meta_path.insert(0, HollowModules(source))
    server_args = importlib.import_module("sglang.srt.server_args")
    parser = CollectingParser(prog="sglang serve", allow_abbrev=False, add_help=False)
    server_args.ServerArgs.add_cli_args(parser)
    return parser


def read_algorithms(source: Path) -> set[str]:
    """Returns the names of SpeculativeAlgorithm and its reserved aliases, read without importing them."""
    names: set[str] = set()
    directory = source / "sglang" / "srt" / "speculative"
    for node in ast.walk(ast.parse((directory / "spec_info.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef) and node.name == "SpeculativeAlgorithm":
            names |= {
                target.id
                for item in node.body
                if isinstance(item, ast.Assign)
                for target in item.targets
                if isinstance(target, ast.Name)
            }
    for node in ast.walk(ast.parse((directory / "spec_registry.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "_RESERVED_ALIASES" for target in node.targets
        ):
            names |= {str(item.value) for item in ast.walk(node.value) if isinstance(item, ast.Constant)}
    if "EAGLE" not in names:
        raise SystemExit(f"{directory}: this SGLang names its algorithms otherwise; the check must be adapted")
    return names - {"NONE"}


def find_complaints(source: Path, arguments: list[str]) -> list[str]:
    """Returns every reason for which the command would be refused, now or after minutes of loading."""
    parser = build_parser(source)
    complaints: list[str] = []
    try:
        parsed, unknown = parser.parse_known_args(arguments)
    except ValueError as error:
        return [str(error)]
    complaints += [f"unknown flag: {flag}" for flag in unknown if flag.startswith("-")]
    if unknown and not complaints:
        complaints.append(f"not a flag and no flag's value: {' '.join(unknown)}")
    flags = [argument.split("=")[0] for argument in arguments if argument.startswith("--")]
    complaints += [
        f"given more than once: {flag}" for flag in sorted({flag for flag in flags if flags.count(flag) > 1})
    ]
    if not parsed.model_path:
        complaints.append("--model-path: missing")
    algorithm = parsed.speculative_algorithm
    if algorithm is not None and algorithm.upper() not in read_algorithms(source):
        known = ", ".join(sorted(read_algorithms(source)))
        complaints.append(f"--speculative-algorithm: unknown: expected one of {known}, found {algorithm}")
    steps, drafts = parsed.speculative_num_steps, parsed.speculative_num_draft_tokens
    if algorithm and parsed.speculative_eagle_topk == 1 and steps and drafts and drafts != steps + 1:
        # speculative_hook.py of 0.5.23 sets the number right with a warning; what was asked for is not what would run.
        complaints.append(f"--speculative-num-draft-tokens: expected {steps + 1} with top-k 1, found {drafts}")
    if parsed.dp_size > 1 and parsed.nnodes > 1:
        complaints.append(f"--dp-size {parsed.dp_size}: refused together with --nnodes {parsed.nnodes}")
    if parsed.hicache_size and parsed.hicache_ratio:
        complaints.append("--hicache-ratio: without effect beside --hicache-size; give one of the two")
    return complaints


def main() -> int:
    if len(sys.argv) < 3 or sys.argv[2] != "--":
        sys.exit("usage: check_flags.py SITE_PACKAGES -- FLAGS...")
    complaints = find_complaints(Path(sys.argv[1]).resolve(), sys.argv[3:])
    print("\n".join(complaints) or "accepted")
    return 2 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
