"""Runs and what they report. States change only by `actions.move_run`; the table of allowed moves is here."""

import uuid
from typing import Any

from django.conf import settings
from django.db import models

from contracts.events import DesiredState, LogLevel
from webapp.accounts.models import Project
from webapp.choices import TextChoices


class RunState(TextChoices):
    DRAFT = "draft"
    QUEUED = "queued"
    SUBMITTING = "submitting"
    STARTING = "starting"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    STOPPING = "stopping"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL_STATES

    @property
    def is_active(self) -> bool:
        """A Ray job may exist for it."""
        return self in ACTIVE_STATES


_S = RunState
_ENDS = {_S.FINISHED, _S.FAILED, _S.CANCELLED, _S.LOST}

TERMINAL_STATES = frozenset(_ENDS)
ACTIVE_STATES = frozenset({_S.SUBMITTING, _S.STARTING, _S.RUNNING, _S.PAUSING, _S.PAUSED, _S.STOPPING})
RESUMABLE_STATES = frozenset({_S.FAILED, _S.CANCELLED, _S.LOST})
STOPPABLE_STATES = frozenset({_S.QUEUED, _S.SUBMITTING, _S.STARTING, _S.RUNNING, _S.PAUSING, _S.PAUSED})

ALLOWED_MOVES: dict[RunState, frozenset[RunState]] = {
    _S.DRAFT: frozenset({_S.QUEUED, _S.CANCELLED}),
    _S.QUEUED: frozenset({_S.SUBMITTING, _S.CANCELLED}),
    # The job may report before submitting it has returned, so it may run, or even end, from here.
    _S.SUBMITTING: frozenset({_S.QUEUED, _S.STARTING, _S.RUNNING, _S.STOPPING, *_ENDS}),
    _S.STARTING: frozenset({_S.RUNNING, _S.STOPPING, *_ENDS}),
    _S.RUNNING: frozenset({_S.PAUSING, _S.STOPPING, *_ENDS}),
    _S.PAUSING: frozenset({_S.PAUSED, _S.RUNNING, _S.STOPPING, *_ENDS}),
    _S.PAUSED: frozenset({_S.RUNNING, _S.STOPPING, *_ENDS}),
    _S.STOPPING: frozenset(_ENDS),
    _S.FINISHED: frozenset(),
    _S.FAILED: frozenset({_S.QUEUED}),
    _S.CANCELLED: frozenset({_S.QUEUED}),
    _S.LOST: frozenset({_S.QUEUED}),
}

DESIRED_CHOICES = [(d.value, d.value) for d in DesiredState]


class Run(models.Model):
    """One recipe and one seed, from its first stage to its end."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="runs")
    name = models.CharField(max_length=80)
    recipe = models.JSONField(help_text="the resolved recipe")
    seed = models.BigIntegerField()
    parent = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="children")
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="created_runs"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    archived_at = models.DateTimeField(null=True, blank=True)

    state = models.CharField(max_length=10, choices=RunState, default=RunState.DRAFT)
    state_since = models.DateTimeField(auto_now_add=True)
    state_reason = models.TextField(blank=True)
    desired = models.CharField(max_length=4, choices=DESIRED_CHOICES, default=DesiredState.RUN.value)
    stopped_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    stop_requested_at = models.DateTimeField(null=True, blank=True)
    stop_deadline = models.DateTimeField(null=True, blank=True)
    kill_sent_at = models.DateTimeField(null=True, blank=True)
    submit_after = models.DateTimeField(null=True, blank=True, help_text="not before then to Ray again")
    attempt_number = models.PositiveIntegerField(default=0, help_text="the newest attempt; 0 before the first")
    started_at = models.DateTimeField(null=True, blank=True, help_text="first attempt's run_started")
    ended_at = models.DateTimeField(null=True, blank=True)

    revision = models.BigIntegerField(default=0, help_text="rises with every change a page could show")
    last_event_at = models.DateTimeField(null=True, blank=True)
    last_heartbeat_at = models.DateTimeField(null=True, blank=True, help_text="by our clock, any event counts")
    doing = models.CharField(max_length=200, blank=True)
    stage = models.IntegerField(null=True, blank=True, help_text="index of the stage that began last")
    step = models.IntegerField(default=0, help_text="newest RL step")
    total_steps = models.IntegerField(default=0)
    stages = models.JSONField(default=list, help_text="see queries.StageView")
    versions = models.JSONField(default=dict, blank=True)
    git_commit = models.CharField(max_length=64, blank=True)

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(state__in=RunState.values), name="run_state_known")]
        indexes = [
            models.Index(fields=["project", "-created_at", "id"], name="run_newest"),
            models.Index(fields=["project", "name", "id"], name="run_by_name"),
            models.Index(fields=["project", "state", "-created_at"], name="run_by_state"),
            models.Index(
                fields=["state"], condition=~models.Q(state__in=sorted({*_ENDS, _S.DRAFT})), name="run_unended"
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def run_state(self) -> RunState:
        return RunState(self.state)


class Attempt(models.Model):
    """One launch of a run: one Ray job."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="attempts")
    number = models.PositiveIntegerField()
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    token_hash = models.CharField(max_length=64, help_text="SHA-256 of the bearer token of its driver")
    ray_job_id = models.CharField(max_length=80, unique=True)
    resumes = models.BooleanField(default=False)
    submitted_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    resumed_from_step = models.IntegerField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=10, blank=True, help_text="finished, failed, cancelled or lost")
    reason = models.TextField(blank=True)
    log_tail = models.TextField(blank=True, help_text="end of Ray's log, kept when the attempt ended without saying so")
    seen = models.JSONField(
        default=list, help_text="sequence numbers taken in, as inclusive ranges [[1, 57], [60, 61]]"
    )

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "number"], name="attempt_once")]

    def __str__(self) -> str:
        return f"attempt {self.number} of {self.run_id}"


class RunHistory(models.Model):
    """Who moved the run from where to where and why. Rows are only ever added."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="history")
    created_at = models.DateTimeField(auto_now_add=True)
    from_state = models.CharField(max_length=10, choices=RunState, blank=True)
    to_state = models.CharField(max_length=10, choices=RunState)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    attempt = models.PositiveIntegerField(default=0)
    reason = models.TextField(blank=True)

    class Meta:
        indexes = [models.Index(fields=["run", "id"], name="history_of_run")]

    def __str__(self) -> str:
        return f"{self.from_state} -> {self.to_state}"


class MetricPoint(models.Model):
    """One number. `value` is float8 and may be NaN or infinite; the newest attempt's number stands."""

    pk = models.CompositePrimaryKey("run_id", "name", "stage", "step")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="+", db_index=False)
    name = models.CharField(max_length=64)
    stage = models.SmallIntegerField()
    step = models.IntegerField()
    value = models.FloatField()
    attempt = models.PositiveIntegerField()
    revision = models.BigIntegerField(help_text="the run's revision that brought it")
    time = models.DateTimeField(help_text="by the driver's clock")

    class Meta:
        indexes = [models.Index(fields=["run", "revision"], name="metric_new")]

    def __str__(self) -> str:
        return f"{self.name}@{self.step}={self.value}"


class LogLine(models.Model):
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="+", db_index=False)
    attempt = models.PositiveIntegerField()
    seq = models.BigIntegerField()
    time = models.DateTimeField(help_text="by the driver's clock")
    level = models.CharField(max_length=7, choices=[(x.value, x.value) for x in LogLevel])
    source = models.CharField(max_length=60)
    text = models.TextField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "attempt", "seq"], name="log_line_once")]
        indexes = [models.Index(fields=["run", "id"], name="log_line_order")]

    def __str__(self) -> str:
        return self.text[:80]


class StepReport(models.Model):
    """A report on one step as the driver sent it, whole; the newest attempt's stands."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="+", db_index=False)
    attempt = models.PositiveIntegerField()
    stage = models.SmallIntegerField()
    step = models.IntegerField()
    report = models.JSONField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self._meta.verbose_name} of step {self.step}"


class TokenReportRow(StepReport):
    """`contracts.events.TokenReport`."""

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "stage", "step"], name="token_report_once")]


class TimelineRow(StepReport):
    """`contracts.events.StepTimeline`."""

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "stage", "step"], name="timeline_once")]


class Checkpoint(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="checkpoints", db_index=False)
    attempt = models.PositiveIntegerField()
    stage = models.SmallIntegerField()
    step = models.IntegerField()
    path = models.CharField(max_length=400, help_text="under the run's artifact folder")
    label = models.CharField(max_length=120, blank=True)
    size_bytes = models.BigIntegerField()
    pruned_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "path"], name="checkpoint_once")]
        indexes = [models.Index(fields=["run", "stage", "step"], name="checkpoint_order")]

    def __str__(self) -> str:
        return self.path


def stages_of_recipe(recipe: dict[str, Any]) -> list[dict[str, Any]]:
    """The stage strip before anything has happened: every stage of the recipe, none begun."""
    strip = []
    first_step = 1
    for index, stage in enumerate(recipe["stages"]):
        steps = stage.get("steps", 0)
        strip.append(
            {
                "index": index,
                "name": stage["name"],
                "kind": stage["kind"],
                "steps": steps,
                "first_step": first_step if stage["kind"] == "rl" else 0,
                "step": 0,
                "started_at": None,
                "duration_s": None,
                "done": 0,
                "total": 0,
                "what": "",
            }
        )
        first_step += steps if stage["kind"] == "rl" else 0
    return strip
