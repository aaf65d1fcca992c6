"""meta/argument_specs.yml is the one description of a role's variables: it and the role's defaults agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

ROLES = sorted(path.parent.parent for path in Path(__file__).resolve().parents[2].glob("roles/*/tasks/main.yml"))
TYPES: dict[str, tuple[type, ...]] = {
    "str": (str, float),  # a version such as 0.5.23 or 3.12 may be written without quotes
    "path": (str,),
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "list": (list,),
    "dict": (dict,),
}


def read(path: Path) -> dict[str, Any]:
    return (yaml.safe_load(path.read_text()) or {}) if path.exists() else {}


def find_default(value: Any, preset_name: str) -> Any:
    """Returns what a default is without a preset: `{{ _sglang_preset.NAME | default(X) }}` is X."""
    start = f"{{{{ _sglang_preset.{preset_name} | default("
    if isinstance(value, str) and value.startswith(start):
        return yaml.safe_load(value[len(start) :].removesuffix(") }}"))
    return value


@pytest.mark.parametrize("role", ROLES, ids=[role.name for role in ROLES])
def test_defaults_equal_argument_specs(role: Path) -> None:
    specs = read(role / "meta" / "argument_specs.yml")["argument_specs"]
    options: dict[str, Any] = specs["main"]["options"]
    defaults = {name: find_default(value, name) for name, value in read(role / "defaults" / "main.yml").items()}
    described = {name: option["default"] for name, option in options.items() if "default" in option}
    assert defaults == described
    assert all(option.get("required") or "default" in option for option in options.values())
    assert all(name.startswith(f"{role.name}_") for name in options)


@pytest.mark.parametrize("role", ROLES, ids=[role.name for role in ROLES])
def test_defaults_have_the_type_they_are_said_to_have(role: Path) -> None:
    for name, option in read(role / "meta" / "argument_specs.yml")["argument_specs"]["main"]["options"].items():
        default = option.get("default")
        if default is not None and not (isinstance(default, str) and "{{" in default):
            assert isinstance(default, TYPES[option["type"]]), name
            assert "choices" not in option or default in option["choices"], name
