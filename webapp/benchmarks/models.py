"""Evaluations, the leaderboards they are rows of, and the links that show a board to anyone."""

from django.conf import settings
from django.db import models
from django.utils import timezone

from webapp.accounts.models import Project
from webapp.runs.models import Run


class Leaderboard(models.Model):
    """Made by the first evaluation that names it."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="leaderboards", db_index=False)
    name = models.CharField(max_length=80)
    slug = models.SlugField(max_length=80, db_index=False)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "slug"], name="leaderboard_once")]

    def __str__(self) -> str:
        return self.name


class Evaluation(models.Model):
    """One checkpoint on one benchmark with k samples. `step` is its place in its stage, from 1."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="evaluations", db_index=False)
    leaderboard = models.ForeignKey(Leaderboard, null=True, on_delete=models.SET_NULL, related_name="evaluations")
    attempt = models.PositiveIntegerField()
    stage = models.SmallIntegerField()
    step = models.IntegerField()
    created_at = models.DateTimeField()
    benchmark = models.TextField(help_text="'held_out', or a path as the recipe gave it")
    checkpoint = models.TextField()
    label = models.TextField()
    k = models.IntegerField()
    temperature = models.FloatField()
    max_response_tokens = models.IntegerField()
    max_turns = models.IntegerField()
    avg = models.FloatField(null=True, help_text="avg@k; null: nothing could be graded")
    half_width = models.FloatField(null=True, help_text="95 %, clustered by problem")
    problems = models.IntegerField()
    samples = models.IntegerField(help_text="graded ones")
    ungraded = models.IntegerField()
    pass_at_k = models.FloatField(null=True)
    tool_error_ratio_right = models.FloatField(null=True)
    mean_response_tokens = models.FloatField()
    mean_tool_calls = models.FloatField()
    correct_by_problem = models.JSONField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "stage", "step"], name="evaluation_once")]

    def __str__(self) -> str:
        return f"{self.label} on {self.benchmark}"


class Share(models.Model):
    """A link that shows one board to whoever has it. Only the hash of its token is stored."""

    leaderboard = models.ForeignKey(Leaderboard, on_delete=models.CASCADE, related_name="shares")
    token_hash = models.CharField(max_length=64, unique=True, help_text="SHA-256")
    note = models.CharField(max_length=80, blank=True, help_text="whom it was made for")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return self.note or f"share {self.pk}"

    @property
    def is_expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= timezone.now()
