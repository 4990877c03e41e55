"""Reads of data sets and funnels."""

from django.db.models import QuerySet

from webapp.accounts.access import AnyUser, projects_of
from webapp.accounts.models import Project
from webapp.datasets.models import Dataset, Funnel, Use
from webapp.runs.models import Run

MAX_CHOICES = 200


def _choices(project: Project, use: Use) -> list[tuple[str, str]]:
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


def datasets_of(project: Project) -> QuerySet[Dataset]:
    return Dataset.objects.filter(project=project, archived_at__isnull=True).order_by("-created_at", "id")


def visible_datasets(user: AnyUser) -> QuerySet[Dataset]:
    return Dataset.objects.filter(project__in=projects_of(user)).select_related("project")
