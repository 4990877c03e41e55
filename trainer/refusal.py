"""Why a run may not start as asked: its folder is in use, or what it was made from has changed since."""

import json
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from contracts.old_recipes import upgrade
from contracts.recipe import Recipe
from trainer.files import RECIPE_FILE
from trainer.inputs import check_inputs
from trainer.store import Places, write_atomically

MAX_DIFFERENCES = 10
MAY_CHANGE = {"ranks"}  # fields that a resume may have otherwise: any number of ranks reads a checkpoint
_ABSENT = object()


class RunRefused(Exception):
    """The run cannot start as asked; the message is for the person who asked."""


def check_recipe(recipe: Recipe, places: Places, *, resume: bool) -> None:
    """Write the resolved recipe of a new run and note what it reads; RunRefused for a folder in use, or for a
    recipe or an input that changed since, with each difference."""
    out, path = places.out, places.out / RECIPE_FILE
    resolved = recipe.model_dump(mode="json")
    if path.exists():
        if not resume:
            raise RunRefused(f"{out} already holds a run: add --resume to continue it, or choose another folder")
        differences = list_differences(_without_free(_stored(path)), _without_free(resolved))
        _refuse(f"the recipe differs from the one {out} was started with", differences)
    _refuse(f"what {out} was made from has changed", check_inputs(recipe, places))
    write_atomically(path, json.dumps(resolved, indent=1).encode())


def _without_free(recipe: Any) -> Any:
    return {k: v for k, v in recipe.items() if k not in MAY_CHANGE} if isinstance(recipe, dict) else recipe


def _refuse(what: str, differences: Sequence[str]) -> None:
    if not differences:
        return
    shown = "".join(f"\n  {line}" for line in differences[:MAX_DIFFERENCES])
    more = f"\n  and {len(differences) - MAX_DIFFERENCES} more" if len(differences) > MAX_DIFFERENCES else ""
    raise RunRefused(
        f"{what}:{shown}{more}\nPut it back as it was to resume this run, or start a new run in another folder "
        "(its model can be a checkpoint of this one)"
    )


def _stored(path: Path) -> Any:
    """The recipe a run was started with, in today's fields where it still holds."""
    stored = json.loads(path.read_text())
    try:
        return Recipe.model_validate(upgrade(stored)).model_dump(mode="json")
    except (ValueError, AttributeError):
        return stored


def list_differences(old: Any, new: Any, at: str = "") -> list[str]:
    """'field: old -> new' for each leaf of two JSON values that differs; what only one has is absent in the other."""
    if isinstance(old, dict) and isinstance(new, dict):
        pairs = {key: (old.get(key, _ABSENT), new.get(key, _ABSENT)) for key in sorted(old.keys() | new.keys())}
    elif isinstance(old, list) and isinstance(new, list):
        pairs = {str(i): pair for i, pair in enumerate(zip_longest(old, new, fillvalue=_ABSENT))}
    else:
        return [] if old == new else [f"{at}: {_shown(old)} -> {_shown(new)}"]
    return [d for key, (a, b) in pairs.items() for d in list_differences(a, b, f"{at}.{key}" if at else key)]


def _shown(value: Any) -> str:
    return "absent" if value is _ABSENT else json.dumps(value)
