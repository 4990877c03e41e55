"""From what a person or another run hands in to a resolved recipe, or to the errors beside its fields."""

from typing import Any

from pydantic import ValidationError

from contracts.recipe import Recipe


class RecipeInvalid(ValueError):
    """The recipe cannot run. `errors` maps a field's path, e.g. `stages.1.steps`, to one message; '' is the whole."""

    def __init__(self, errors: dict[str, str]) -> None:
        self.errors = errors
        super().__init__("; ".join(f"{path or 'recipe'}: {message}" for path, message in errors.items()))


def validate_recipe(data: Any) -> Recipe:
    """The recipe, or RecipeInvalid."""
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        raise RecipeInvalid(field_errors(error)) from None


def resolve(recipe: Recipe) -> dict[str, Any]:
    """Every field with its value, as JSON carries it."""
    return recipe.model_dump(mode="json")


def field_errors(error: ValidationError) -> dict[str, str]:
    """The first message of each field. Tags of discriminated unions are no part of a path."""
    kinds = {"curate", "sft", "rl", "evaluate"}
    errors: dict[str, str] = {}
    for item in error.errors(include_url=False, include_input=False):
        path = ".".join(str(part) for part in item["loc"] if part not in kinds)
        errors.setdefault(path, item["msg"].removeprefix("Value error, "))
    return errors
