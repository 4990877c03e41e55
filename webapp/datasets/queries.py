"""Reads of data sets and funnels."""

from uuid import UUID

from django.http import Http404
from django.utils.dateparse import parse_datetime

from webapp.accounts.access import AnyUser, projects_of, require_role
from webapp.accounts.models import Project, Role
from webapp.datasets.models import Dataset, Funnel, Use
from webapp.runs.models import Checkpoint, Run

MAX_CHOICES = 200
PAGE = 50


def _choices(project: Project, use: str) -> list[tuple[str, str]]:
    found = Dataset.objects.filter(project=project, archived_at__isnull=True, accepted__gt=0, use=use)
    return [(d.recipe_path, f"{d.name} · {d.accepted:,} problems") for d in found.order_by("-created_at")[:MAX_CHOICES]]


def dataset_choices(project: Project) -> list[tuple[str, str]]:
    """(value for a recipe, label) of the newest data sets for training."""
    return _choices(project, Use.TRAINING)


def benchmark_choices(project: Project) -> list[tuple[str, str]]:
    """(value for a recipe, label) of the newest benchmarks."""
    return _choices(project, Use.BENCHMARK)


def funnels_for_run(run: Run) -> list[Funnel]:
    return list(Funnel.objects.filter(run=run).order_by("stage"))


def get_funnel(run: Run, stage: int) -> Funnel:
    found = Funnel.objects.filter(run=run, stage=stage).first()
    if found is None:
        raise Http404("this stage has reported no funnel")
    return found


def get_dataset(user: AnyUser, pk: UUID, role: Role = Role.VIEWER) -> Dataset:
    """The data set, archived or not, with its project; Http404 for strangers."""
    found = (
        Dataset.objects.filter(pk=pk, project__in=projects_of(user))
        .select_related("project", "created_by", "run")
        .first()
    )
    if found is None:
        raise Http404("no such data set")
    require_role(user, found.project, role)
    return found


def page_of_datasets(project: Project, before: str = "") -> tuple[list[Dataset], str]:
    """Newest first, with the cursor of the next page ('' at the end)."""
    rows = Dataset.objects.filter(project=project, archived_at__isnull=True).order_by("-created_at", "-id")
    if moment := parse_datetime(before) if before else None:
        rows = rows.filter(created_at__lt=moment)
    found = list(rows[: PAGE + 1])
    return found[:PAGE], found[PAGE - 1].created_at.isoformat() if len(found) > PAGE else ""


def checkpoints_of(project: Project) -> list[tuple[str, str]]:
    """(value for a recipe, label) of the newest checkpoints that are still there."""
    rows = Checkpoint.objects.filter(run__project=project, pruned_at__isnull=True).select_related("run")
    return [
        (f"artifacts:runs/{c.run_id}/{c.path}", f"{c.run.name} · {c.label or c.path} · step {c.step}")
        for c in rows.order_by("-created_at")[:MAX_CHOICES]
    ]


def benchmark_name(names: dict[str, str], value: str) -> str:
    """What people call a benchmark of a recipe: the data set's name, 'held-out problems', or the path."""
    return names.get(value) or ("held-out problems" if value == "held_out" else value)


def benchmark_names(project: Project) -> dict[str, str]:
    """Recipe value -> name, of every data set that is or was a benchmark here."""
    rows = Dataset.objects.filter(project=project).order_by("-created_at")[:MAX_CHOICES]
    return {d.recipe_path: d.name for d in rows}
