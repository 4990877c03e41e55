"""Where a recipe being written starts from, and what its fields may be set to."""

import re
from typing import Any

from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import transaction
from django.http import Http404, HttpRequest

from contracts.curation import RULES
from contracts.execution import LimitProfile
from contracts.old_recipes import upgrade
from contracts.recipe import Recipe
from webapp.accounts.access import AnyUser
from webapp.accounts.models import Project
from webapp.datasets.queries import benchmark_choices, dataset_choices
from webapp.runs.access import get_run
from webapp.runs.actions import create_run
from webapp.runs.models import Checkpoint, Run

RUN_PATH = re.compile(r"^artifacts:runs/(?P<run>[0-9a-f-]{36})/")
MODELS = [("models/tiny-base", "models/tiny-base (ships with Astrolabe)")]
MAX_CHECKPOINTS = 30
SAMPLED_CHECKS = [  # the paper's; other counts are possible in the YAML
    ("agreement 2 of 16", "agreement: at least 2 of 16 samples match"),
    ("difficulty 1 to 15 of 16", "difficulty: 1 to 15 of 16 samples match"),
]
LAUNCHED_KEY = "launched"
MAX_LAUNCHED = 20


def artifact_path(checkpoint: Checkpoint) -> str:
    return f"artifacts:runs/{checkpoint.run_id}/{checkpoint.path}"


def checkpoint_choices(project: Project) -> list[tuple[str, str]]:
    """The newest checkpoints that still exist, by run."""
    found = Checkpoint.objects.filter(run__project=project, pruned_at=None).select_related("run")
    return [
        (artifact_path(c), f"{c.run.name} · {c.label or c.path.rpartition('/')[2]} · step {c.step}")
        for c in found.order_by("-created_at")[:MAX_CHECKPOINTS]
    ]


def profile_choices() -> list[tuple[str, str]]:
    """The limit profiles with their wall time and memory."""
    limits = [(profile.value, profile.limits) for profile in LimitProfile]
    return [(name, f"{name}: {limit.wall_s:g} s, {limit.memory_mb:,} MB") for name, limit in limits]


def choices(project: Project, tree: dict[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """By field name: what a person may choose. Anything else is still possible in the YAML."""
    checkpoints = checkpoint_choices(project)
    written = tree.get("stages")
    stages = written if isinstance(written, list) else []
    benchmarks = benchmark_choices(project)
    own = [str(s.get("name")) for s in stages if isinstance(s, dict) and s.get("kind") in ("sft", "rl")]
    return {
        "source": [("synthetic", "generated word problems"), *dataset_choices(project)],
        "benchmark": [("held_out", "held-out problems of this run"), *benchmarks],
        "model": [*MODELS, *checkpoints],
        **({"decontaminate": benchmarks} if benchmarks else {}),  # paths are typed where there are none to tick
        "checks": [(rule, rule) for rule in RULES] + SAMPLED_CHECKS,
        "profile": profile_choices(),
        "checkpoints": [
            ("latest", "latest of this run"),
            ("base", "the starting model"),
            *((name, f"after stage {name}") for name in own),
            *checkpoints,
        ],
    }


def run_of_path(user: AnyUser, path: str) -> Run | None:
    """The run whose artifact a path names, if the user may see it."""
    match = RUN_PATH.match(path)
    if match is None:
        return None
    try:
        return get_run(user, match["run"])
    except (Http404, ValueError):
        return None


def evaluation_of(checkpoint: str, benchmark: str, board: str, run: Run | None) -> dict[str, Any]:
    """A recipe of one evaluate stage; model, tool and sampling as the run had them."""
    name = re.sub(r"[^A-Za-z0-9 ._-]+", " ", f"evaluate {run.name if run else 'checkpoint'}")[:80].strip()
    stage: dict[str, Any] = {"kind": "evaluate", "name": "evaluate", "checkpoints": [checkpoint], "board": board}
    if benchmark:
        stage["benchmark"] = benchmark
    tree: dict[str, Any] = {"name": name, "stages": [stage]}
    if run is not None:
        recipe = upgrade(run.recipe)
        tree |= {key: recipe[key] for key in ("seed", "model", "tool") if key in recipe}
        evaluations = [s for s in recipe.get("stages", []) if s.get("kind") == "evaluate"]
        if evaluations:
            stage |= {key: evaluations[-1][key] for key in ("k", "sampling") if key in evaluations[-1]}
    return tree


def first_benchmark(project: Project) -> str:
    return next((value for value, _ in benchmark_choices(project)), "")


def launch_once(request: HttpRequest, key: str, project: Project, recipe: Recipe, parent: Run | None) -> Run:
    """The run of this form, made at the first of however many times it is sent.

    The session's row is the lock: a second click waits for the first and finds its run in the session.
    """
    assert isinstance(request.user, User)  # noqa: S101  views ask for a login
    with transaction.atomic():
        held = Session.objects.select_for_update().filter(session_key=request.session.session_key).first()
        launched = held.get_decoded().get(LAUNCHED_KEY, {}) if held else {}
        if key and (run_id := launched.get(key)) and (run := Run.objects.filter(pk=run_id, project=project).first()):
            return run
        run = create_run(project, request.user, recipe.model_dump(mode="json"), parent)
        kept = dict(list(launched.items())[-MAX_LAUNCHED:])
        request.session[LAUNCHED_KEY] = kept | {key: str(run.pk)}
        request.session.save()
        return run


def with_source(tree: dict[str, Any], source: str) -> dict[str, Any]:
    """The recipe with its curate stages reading this data set."""
    stages = [{**s, "source": source} if s.get("kind") == "curate" else s for s in tree["stages"]]
    return {**tree, "stages": stages}
