"""The form of the launch page, made from the pydantic recipe: no field is written down twice.

A field's name in the HTML is its path in the recipe, `stages.1.sampling.max_turns`. An empty field takes the
default of the class. What a person sent becomes a plain tree (`parse`), pydantic judges it (`validate`), and
`build` shows the same tree again with the errors beside their fields.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from contracts.execution import Limits
from contracts.old_recipes import upgrade
from contracts.recipe import CurateStage, EvaluateStage, Recipe, RlStage, SftStage

STAGE_MODELS: dict[str, type[BaseModel]] = {
    "curate": CurateStage,
    "sft": SftStage,
    "rl": RlStage,
    "evaluate": EvaluateStage,
}
ACRONYMS = {"sft": "SFT", "k": "k", "gpus": "GPUs"}
OF_PROFILE = "the profile's"  # what an empty limit is; which profile is chosen in the same form
Tree = dict[str, Any]
Errors = dict[str, list[str]]
Choices = Mapping[str, list[tuple[str, str]]]


class Widget(StrEnum):
    TEXT = "text"
    NUMBER = "number"
    CHECK = "check"
    SELECT = "select"
    CHECKS = "checks"
    LINES = "lines"


@dataclass(frozen=True)
class FieldView:
    name: str
    label: str
    help: str
    widget: Widget
    value: Any
    placeholder: str = ""
    choices: list[tuple[str, str]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    required: bool = False

    @property
    def id(self) -> str:
        return "f-" + self.name.replace(".", "-")

    @property
    def is_wide(self) -> bool:
        return self.widget in (Widget.LINES, Widget.CHECKS) or self.name == "description"


@dataclass(frozen=True)
class Section:
    """One model: its own fields, then the models inside it."""

    name: str
    title: str
    help: str
    fields: list[FieldView]
    parts: list["Section"]
    errors: list[str]
    kind: str = ""

    @property
    def has_errors(self) -> bool:
        return bool(self.errors) or any(f.errors for f in self.fields) or any(p.has_errors for p in self.parts)


@dataclass(frozen=True)
class RecipeForm:
    general: Section
    stages: list[Section]
    errors: list[str]


# --- from the browser to a tree ------------------------------------------------------------------


def parse(data: Mapping[str, str], lists: Mapping[str, list[str]]) -> Tree:
    """The tree a person sent. `data` has the last value of a name, `lists` all of them."""
    count = 0
    while f"stages.{count}.kind" in data:
        count += 1
    tree = _parse_model(Recipe, "", data, lists)
    tree["stages"] = []
    for index in range(min(count, 50)):
        model = STAGE_MODELS.get(data[f"stages.{index}.kind"])
        if model is not None:
            stage = _parse_model(model, f"stages.{index}.", data, lists)
            tree["stages"].append({"kind": data[f"stages.{index}.kind"], **stage})
    return tree


def _parse_model(
    model: type[BaseModel],
    prefix: str,
    data: Mapping[str, str],
    lists: Mapping[str, list[str]],
    default: BaseModel | None = None,
) -> Tree:
    """Only what differs from the defaults; `default` is the part's own default in its stage, where it has one."""
    tree: Tree = {}
    for name, info in model.model_fields.items():
        path = prefix + name
        if name in ("stages", "kind"):
            continue
        own_default = _own_default(model, name, info, default)
        inner = _inner_model(info)
        if inner is None:
            value = _parse_leaf(path, info, data, lists)
            if value is not None and _text(value) != _text(own_default):
                tree[name] = value
        elif part := _parse_model(inner, path + ".", data, lists, own_default):
            tree[name] = part
    if (
        tree and default is not None and model is not Limits
    ):  # a part that is given is given whole: pydantic knows the class's defaults only
        for name, info in model.model_fields.items():
            if getattr(default, name) != _default(info):
                tree.setdefault(name, default.model_dump(mode="json")[name])
    return tree


def _parse_leaf(path: str, info: FieldInfo, data: Mapping[str, str], lists: Mapping[str, list[str]]) -> Any:
    if info.annotation is bool:
        return path in data
    if _is_list(info):
        return _items(lists.get(path, [])) or None
    if _is_mapping(info):
        return _pairs(lists.get(path, [])) or None
    return data.get(path, "").strip().replace("\x00", "") or None


def _own_default(model: type[BaseModel], name: str, info: FieldInfo, part: BaseModel | None) -> Any:
    """What an empty field becomes. A limit's is the profile's, so whatever is written there is kept."""
    if model is Limits:
        return None
    return getattr(part, name) if part else _default(info)


def _default(info: FieldInfo) -> Any:
    return None if info.is_required() else info.get_default(call_default_factory=True)


def _items(values: list[str]) -> list[str]:
    return [line.strip() for value in values for line in value.splitlines() if line.strip()]


def _pairs(values: list[str]) -> dict[str, str]:
    """Lines of a name and a value, with or without a colon between them."""
    parts = [line.replace(":", " ").partition(" ") for line in _items(values)]
    return {name: value.strip() for name, _, value in parts}


def edit(tree: Tree, operation: str) -> Tree:
    """`add:rl`, `remove:2`, `up:2`, `down:2` on the stages; anything else changes nothing."""
    verb, _, what = operation.partition(":")
    stages = list(tree.get("stages", []))
    if verb == "add" and what in STAGE_MODELS:
        names = {s.get("name") for s in stages if isinstance(s, dict)}
        name = next(n for n in (what, *(f"{what}-{i}" for i in range(2, 99))) if n not in names)
        stages.append({"kind": what, "name": name})
    elif what.isdigit() and int(what) < len(stages):
        at = int(what)
        if verb == "remove":
            stages.pop(at)
        elif verb == "up" and at > 0:
            stages[at - 1], stages[at] = stages[at], stages[at - 1]
        elif verb == "down" and at + 1 < len(stages):
            stages[at], stages[at + 1] = stages[at + 1], stages[at]
    return {**tree, "stages": stages}


def ordered(resolved: Tree) -> Tree:
    """A stored recipe in the order of its class: jsonb keeps none. One that no longer holds stays as it is."""
    upgraded = upgrade(resolved)
    try:
        shown = Recipe.model_validate(upgraded).model_dump(mode="json")
    except ValidationError:
        return resolved
    return shown if upgraded is resolved else shown | {"tool": resolved["tool"]}  # as the run was run


def sparse(resolved: Tree) -> Tree:
    """A resolved recipe without what equals the defaults: what a person would have written."""
    recipe = Recipe.model_validate(upgrade(resolved))
    tree = recipe.model_dump(mode="json", exclude_defaults=True)
    if limits := recipe.tool.own_limits():
        tree["tool"]["limits"] = limits
    elif "tool" in tree:
        tree["tool"].pop("limits", None)
    tree["stages"] = [
        {"kind": stage.kind, **stage.model_dump(mode="json", exclude_defaults=True)} for stage in recipe.stages
    ]
    return tree


# --- judged ----------------------------------------------------------------------------------------

MESSAGES = {
    "missing": "this is needed",
    "int_parsing": "write a whole number",
    "int_from_float": "write a whole number",
    "float_parsing": "write a number",
    "bool_parsing": "write yes or no",
    "string_too_short": "this is needed",
    "extra_forbidden": "there is no such field",
    "union_tag_invalid": "there is no such kind of stage",
    "union_tag_not_found": "a stage needs its kind: curate, sft, rl or evaluate",
}


def validate(tree: Any) -> tuple[Recipe | None, Errors]:
    """The recipe, or the sentences to show, by the path of the field ('' for the recipe as a whole)."""
    try:
        return Recipe.model_validate(tree), {}
    except ValidationError as problem:
        errors: Errors = {}
        for one in problem.errors(include_url=False):
            errors.setdefault(_path(one["loc"]), []).append(_sentence(one["type"], one["msg"]))
        return None, errors


def _path(loc: tuple[int | str, ...]) -> str:
    parts = list(loc)
    if len(parts) > 2 and parts[0] == "stages" and parts[2] in STAGE_MODELS:
        del parts[2]  # the tag of the union
    return ".".join(str(p) for p in parts)


def _sentence(kind: str, message: str) -> str:
    if kind == "string_pattern_mismatch":
        return "begin with a letter or digit; then letters, digits, blanks, '.', '_' and '-'"
    message = MESSAGES.get(kind, message)
    return message.removeprefix("Value error, ").replace("Input should be", "this must be")


# --- shown -----------------------------------------------------------------------------------------


def build(tree: Tree, errors: Errors, choices: Choices) -> RecipeForm:
    general = _section(Recipe, "", tree, errors, choices)
    raw_stages = tree.get("stages")
    stages = []
    for index, stage in enumerate(raw_stages if isinstance(raw_stages, list) else []):
        kind = stage.get("kind") if isinstance(stage, dict) else None
        if kind in STAGE_MODELS:
            section = _section(STAGE_MODELS[kind], f"stages.{index}.", stage, errors, choices)
            stages.append(replace(section, kind=kind, title=str(stage.get("name") or kind)))
    shown = {f.name for s in _all_sections([general, *stages]) for f in s.fields} | {
        s.name for s in _all_sections(stages)
    }
    loose = [f"{path}: {m}" if path else m for path, ms in errors.items() if path not in shown for m in ms]
    return RecipeForm(general, stages, loose)


def _all_sections(sections: list[Section]) -> list[Section]:
    return [s for section in sections for s in (section, *_all_sections(section.parts))]


def _section(model: type[BaseModel], prefix: str, tree: Any, errors: Errors, choices: Choices) -> Section:
    tree = tree if isinstance(tree, dict) else {}
    fields, parts = [], []
    for name, info in model.model_fields.items():
        path = prefix + name
        if name in ("stages", "kind"):
            continue
        inner = _inner_model(info)
        if inner is None:
            fields.append(_field(path, name, info, tree.get(name), errors, choices))
            continue
        default = _default(info)
        part = _section(inner, path + ".", tree.get(name), errors, choices)
        if inner is Limits:
            part = replace(part, fields=[replace(f, placeholder=OF_PROFILE) for f in part.fields])
        elif isinstance(default, BaseModel):
            part = _with_defaults(part, default)
        parts.append(part)
    own = prefix.rstrip(".")
    title = label(own.rpartition(".")[2]) if own else "General"
    return Section(own, title, (model.__doc__ or "").strip(), fields, parts, errors.get(own, []) if own else [])


def _with_defaults(part: Section, default: BaseModel) -> Section:
    """The placeholders of a part follow the part's default in its stage (an evaluation samples cooler)."""
    fields = [
        replace(f, placeholder=_text(getattr(default, f.name.rpartition(".")[2]))) if f.widget is Widget.NUMBER else f
        for f in part.fields
    ]
    return replace(part, fields=fields)


def _field(path: str, name: str, info: FieldInfo, value: Any, errors: Errors, choices: Choices) -> FieldView:
    default = _default(info)
    widget, options = _widget(name, info, choices)
    chosen = default if value is None and widget in (Widget.CHECK, Widget.SELECT, Widget.CHECKS) else value
    if widget is Widget.CHECKS:
        chosen = [str(v) for v in chosen] if isinstance(chosen, list) else [str(chosen or "")]
        options = options + [(v, v) for v in chosen if v and v not in {o for o, _ in options}]
    elif widget is Widget.SELECT:
        chosen = _text(chosen)
        options = options if chosen in {o for o, _ in options} else [(chosen, chosen), *options]
    elif widget is Widget.LINES:
        chosen = "\n".join(_lines(chosen))
    elif widget is Widget.CHECK:
        chosen = chosen in (True, "true", "on", "yes")
    else:
        chosen = _text(chosen)
    own_errors = [m for p, ms in errors.items() if p == path or p.startswith(path + ".") for m in ms]
    return FieldView(
        name=path,
        label=label(name),
        help=info.description or "",
        widget=widget,
        value=chosen,
        placeholder="" if default in (None, "", [], {}) else _text(default),
        choices=options,
        errors=own_errors,
        required=info.is_required(),
    )


def _widget(name: str, info: FieldInfo, choices: Choices) -> tuple[Widget, list[tuple[str, str]]]:
    kind = info.annotation
    if _is_list(info):
        return (Widget.CHECKS, list(choices[name])) if name in choices else (Widget.LINES, [])
    if _is_mapping(info):
        return Widget.LINES, []
    if name in choices:
        return Widget.SELECT, list(choices[name])
    if kind is bool:
        return Widget.CHECK, []
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return Widget.SELECT, [(m.value, m.value.replace("_", " ")) for m in kind]
    return (Widget.NUMBER if kind in (int, float) else Widget.TEXT), []


def _inner_model(info: FieldInfo) -> type[BaseModel] | None:
    kind = info.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _is_list(info: FieldInfo) -> bool:
    return get_origin(info.annotation) is list and get_origin(get_args(info.annotation)[0]) is not Literal


def _is_mapping(info: FieldInfo) -> bool:
    return get_origin(info.annotation) is dict


def _lines(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [f"{name}: {_text(inner)}" for name, inner in value.items()]
    return [str(v) for v in value] if isinstance(value, list) else [_text(value)]


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


def label(name: str) -> str:
    return ACRONYMS.get(name) or name.replace("_", " ").capitalize()
