"""Recipes as YAML text: read what a person wrote, write what was resolved, with the defaults told apart."""

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import unified_diff
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

MAX_YAML_CHARS = 200_000


class YamlProblem(ValueError):
    """The text is not a YAML mapping; the message says where."""


@dataclass(frozen=True)
class Line:
    text: str
    is_default: bool


@dataclass(frozen=True)
class Preset:
    key: str
    name: str
    description: str
    text: str


def read(text: str) -> dict[str, Any]:
    if len(text) > MAX_YAML_CHARS:
        raise YamlProblem(f"this is longer than {MAX_YAML_CHARS:,} characters")
    try:
        tree = yaml.safe_load(text.replace("\x00", ""))
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        mark = getattr(problem, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise YamlProblem(f"{where}{getattr(problem, 'problem', None) or 'this is not YAML'}") from problem
    if not isinstance(tree, dict):
        raise YamlProblem("a recipe is a mapping of fields, for example 'name: my run'")
    return tree


def write(tree: dict[str, Any]) -> str:
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=100, default_flow_style=None)


def lines(resolved: dict[str, Any], given: Any) -> list[Line]:
    """The resolved recipe line by line; a line is a default when nobody wrote it."""
    return list(_mapping(resolved, given, ""))


def _mapping(tree: dict[str, Any], given: Any, indent: str) -> Iterator[Line]:
    for key, value in tree.items():
        theirs = given.get(key) if isinstance(given, dict) else None
        if isinstance(value, dict) and value:
            yield Line(f"{indent}{key}:", theirs is None)
            yield from _mapping(value, theirs, indent + "  ")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            yield Line(f"{indent}{key}:", theirs is None)
            for index, item in enumerate(value):
                own = theirs[index] if isinstance(theirs, list) and index < len(theirs) else None
                for number, line in enumerate(_mapping(item, own, "")):
                    yield Line(f"{indent}  {'- ' if number == 0 else '  '}{line.text}", line.is_default)
        else:
            yield Line(f"{indent}{key}: {_scalar(value)}", theirs is None)


def _scalar(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, str]]:
    """(sign, line) of the lines that differ, with two lines around them; empty when nothing does."""
    old, new = ([line.text for line in lines(tree, None)] for tree in (before, after))
    return [(line[0], line[1:]) for line in list(unified_diff(old, new, lineterm="", n=2))[2:]]


@lru_cache(maxsize=4)
def presets(folder: Path) -> tuple[Preset, ...]:
    """The recipes that ship with the project, the demo first."""
    found = []
    for path in sorted(folder.glob("*.yaml"), key=lambda p: (p.stem != "demo", p.stem)):
        text = path.read_text()
        tree = read(text)
        found.append(Preset(path.stem, str(tree.get("name", path.stem)), str(tree.get("description", "")), text))
    return tuple(found)
