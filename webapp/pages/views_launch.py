"""The launch page: preset, clone or checkpoint -> form or YAML -> resolved recipe -> run."""

import uuid
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from contracts.recipe import Recipe
from webapp.accounts.access import require_role
from webapp.accounts.models import Project, Role
from webapp.pages import launching, recipe_form, recipe_yaml
from webapp.pages.current import require_project
from webapp.runs.access import get_run
from webapp.runs.models import Run

STAGE_KINDS = (("curate", "curation"), ("sft", "SFT"), ("rl", "RL"), ("evaluate", "evaluation"))
OWN_PROBLEMS = "own-problems"  # the preset a data set is launched with
BLANK = {"name": "my run", "stages": []}


@dataclass
class Draft:
    """What the page shows: a recipe being written, as a tree and, in YAML mode, as the person's own text."""

    project: Project
    tree: dict[str, Any]
    mode: str = "form"
    yaml_text: str = ""
    yaml_error: str = ""
    parent: Run | None = None
    preset: str = ""
    origin: str = ""
    evaluate: bool = False
    key: str = ""


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def launch(request: HttpRequest) -> HttpResponse:
    project = require_project(request)
    if request.method == "POST":
        return _post(request, project)
    draft = _draft_from_query(request, project)
    require_role(request.user, draft.project, Role.OPERATOR)
    draft.key = uuid.uuid4().hex
    return _render(request, draft, checked=False)


@login_required
@require_POST
def preview(request: HttpRequest) -> HttpResponse:
    """The right side of the page while the form is being filled in."""
    draft = _draft_from_post(request, require_project(request))
    recipe, errors = recipe_form.validate(draft.tree) if not draft.yaml_error else (None, {})
    return render(request, "pages/_preview.html", _preview(draft, recipe, errors))


def _draft_from_query(request: HttpRequest, project: Project) -> Draft:
    query = request.GET
    if run_id := query.get("from"):
        parent = get_run(request.user, run_id)
        tree = recipe_form.sparse(parent.recipe)
        return Draft(parent.project, tree, parent=parent, origin=f"clone of {parent.name}")
    if checkpoint := query.get("evaluate") or ("base" if query.get("benchmark") else ""):
        run = launching.run_of_path(request.user, checkpoint)
        owner = run.project if run else project
        benchmark = query.get("benchmark") or launching.first_benchmark(owner)
        tree = launching.evaluation_of(checkpoint, benchmark, query.get("board", ""), run)
        return Draft(owner, tree, parent=run, origin="evaluation of one checkpoint", evaluate=True)
    presets = {p.key: p for p in recipe_yaml.presets(settings.RECIPES_DIR)}
    source = query.get("source")
    key = query.get("preset") or (OWN_PROBLEMS if source else next(iter(presets), "blank"))
    if key not in presets:
        return Draft(project, dict(BLANK), preset="blank")
    tree = recipe_yaml.read(presets[key].text)
    if source:
        tree = launching.with_source(tree, source)
    return Draft(project, tree, preset=key)


def _draft_from_post(request: HttpRequest, project: Project) -> Draft:
    data = request.POST
    parent = get_run(request.user, data["parent"]) if data.get("parent") else None
    draft = Draft(
        parent.project if parent else project,
        {},
        mode="yaml" if data.get("mode") == "yaml" else "form",
        parent=parent,
        preset=data.get("preset", ""),
        key=data.get("key", "")[:64],
    )
    if draft.mode == "form":
        draft.tree = recipe_form.parse(data, dict(data.lists()))
        return draft
    draft.yaml_text = data.get("yaml", "")
    try:
        draft.tree = recipe_yaml.read(draft.yaml_text)
    except recipe_yaml.YamlProblem as problem:
        draft.yaml_error = str(problem)
    return draft


def _post(request: HttpRequest, project: Project) -> HttpResponse:
    draft = _draft_from_post(request, project)
    require_role(request.user, draft.project, Role.OPERATOR)
    operation = request.POST.get("op", "check")
    if operation == "launch" and not draft.yaml_error:
        recipe, _ = recipe_form.validate(draft.tree)
        if recipe is not None:
            run = launching.launch_once(request, draft.key, draft.project, recipe, draft.parent)
            return redirect("pages:run", run.pk)
    elif operation == "to_yaml":
        draft.mode, draft.yaml_text = "yaml", recipe_yaml.write(draft.tree)
    elif operation == "to_form" and not draft.yaml_error:
        draft.mode = "form"
    elif operation != "check":
        draft.tree = recipe_form.edit(draft.tree, operation)
    return _render(request, draft, checked=operation in ("check", "launch"))


def _render(request: HttpRequest, draft: Draft, *, checked: bool) -> HttpResponse:
    recipe, errors = recipe_form.validate(draft.tree) if not draft.yaml_error else (None, {})
    shown = errors if checked else {}
    form = recipe_form.build(draft.tree, shown, launching.choices(draft.project, draft.tree))
    problems = [f"{path + ': ' if path else ''}{m}" for path, messages in shown.items() for m in messages]
    if draft.yaml_error and checked:
        problems = [draft.yaml_error]
    context = {
        "place": "launch",
        "presets": recipe_yaml.presets(settings.RECIPES_DIR),
        "preset_key": draft.preset,
        "form": form,
        "problems": problems,
        "stage_kinds": STAGE_KINDS,
        **vars(draft),
        **_preview(draft, recipe, errors),
    }
    return render(request, "pages/launch.html", context, status=422 if problems else 200)


def _preview(draft: Draft, recipe: Recipe | None, errors: dict[str, list[str]]) -> dict[str, Any]:
    if recipe is None:
        return {"resolved": None, "errors": errors, "yaml_error": draft.yaml_error}
    resolved = recipe.model_dump(mode="json")
    before, name = _origin(draft)
    steps = recipe.total_rl_steps
    return {
        "resolved": recipe_yaml.lines(resolved, draft.tree),
        "summary": f"{len(recipe.stages)} stage{'s' * (len(recipe.stages) != 1)}, {steps} RL step{'s' * (steps != 1)}",
        "differs": recipe_yaml.differences(before, resolved) if before else [],
        "differs_from": name,
    }


def _origin(draft: Draft) -> tuple[dict[str, Any] | None, str]:
    """What the recipe is compared with: its parent run, else its preset."""
    if draft.parent is not None:
        return recipe_form.ordered(draft.parent.recipe), draft.parent.name
    for one in recipe_yaml.presets(settings.RECIPES_DIR):
        if one.key == draft.preset:
            recipe, _ = recipe_form.validate(recipe_yaml.read(one.text))
            return (recipe.model_dump(mode="json") if recipe else None), one.name
    return None, ""
