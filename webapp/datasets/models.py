"""Data sets that people uploaded or kept of a curation, and the curation funnels that runs reported."""

import uuid

from django.conf import settings
from django.db import models

from webapp.accounts.models import Project
from webapp.runs.models import Run


class Use(models.TextChoices):
    TRAINING = "training"
    BENCHMARK = "benchmark"


class Dataset(models.Model):
    """Problems with integer answers. Its files lie under `datasets/<id>/` of the artifact store."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="datasets")
    name = models.CharField(max_length=80)
    use = models.CharField(max_length=9, choices=Use, default=Use.TRAINING)
    file_name = models.CharField(max_length=200, help_text="as the browser sent it; shown, never used as a path")
    is_csv = models.BooleanField()
    content_hash = models.CharField(max_length=64, help_text="SHA-256 of the uploaded file, or the curation's version")
    size_bytes = models.BigIntegerField()
    accepted = models.IntegerField()
    rejected = models.IntegerField()
    rejected_by_reason = models.JSONField(default=dict)
    extra_columns = models.JSONField(default=list)
    run = models.ForeignKey(
        Run,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        help_text="whose curation it is; null: uploaded",
    )
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    archived_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["project", "content_hash"],
                condition=models.Q(archived_at__isnull=True),
                name="dataset_content_once",
            ),
            models.UniqueConstraint(
                fields=["project", "name"],
                condition=models.Q(archived_at__isnull=True, use="benchmark"),
                name="benchmark_name_once",
            ),
            models.CheckConstraint(condition=models.Q(use__in=Use.values), name="dataset_use_known"),
        ]
        indexes = [models.Index(fields=["project", "-created_at", "id"], name="dataset_newest")]

    def __str__(self) -> str:
        return self.name

    @property
    def folder(self) -> str:
        return f"datasets/{self.pk}"

    @property
    def recipe_path(self) -> str:
        """How a recipe names it."""
        return f"artifacts:{self.folder}/problems.jsonl"


class Funnel(models.Model):
    """`contracts.events.Funnel` of one stage; the newest attempt's stands."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="funnels", db_index=False)
    attempt = models.PositiveIntegerField()
    stage = models.SmallIntegerField()
    rows = models.JSONField()
    train = models.IntegerField()
    held_out = models.IntegerField()
    train_path = models.TextField(blank=True)
    held_out_path = models.TextField(blank=True)
    rejected_path = models.TextField(blank=True)
    version = models.CharField(max_length=64, blank=True, default="")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "stage"], name="funnel_once")]

    def __str__(self) -> str:
        return f"funnel of stage {self.stage}"

    @property
    def accepted(self) -> int:
        return self.train + self.held_out

    @property
    def train_source(self) -> str:
        """How a recipe names its training problems."""
        return f"artifacts:runs/{self.run_id}/{self.train_path}"

    @property
    def refused(self) -> dict[str, int]:
        """Rows refused by check, in the order of the checks; those that refused none are left out."""
        counts = {row["filter"]: row["entered"] - row["left"] for row in self.rows}
        return {name: count for name, count in counts.items() if count}
