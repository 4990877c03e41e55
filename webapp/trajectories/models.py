"""One index row for each trajectory. Tokens, turns and texts stay in the Parquet shard, see `shards.py`."""

from django.db import models

from contracts.scoring import UngradedReason
from contracts.trajectory import Decision, StopReason
from webapp.runs.models import Run


class Trajectory(models.Model):
    """`contracts.trajectory.TrajectoryIndex`, flattened. The shard tells a training step from an evaluation."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="trajectories", db_index=False)
    attempt = models.PositiveIntegerField()
    stage = models.SmallIntegerField()
    stage_name = models.CharField(max_length=60)
    step = models.IntegerField()
    is_evaluation = models.BooleanField()
    prompt_id = models.TextField()
    sample = models.IntegerField()
    problem = models.TextField(help_text="the first 300 characters")
    reference_answer = models.TextField()
    answer = models.TextField(null=True, help_text="null: none in the required place")
    reward = models.FloatField(null=True, help_text="null: ungraded")
    ungraded_reason = models.CharField(max_length=20, blank=True, choices=[(r.value, r.value) for r in UngradedReason])
    ungraded_detail = models.TextField(blank=True)
    advantage = models.FloatField(null=True)
    decision = models.CharField(max_length=14, choices=[(d.value, d.value) for d in Decision])
    weight = models.FloatField(null=True)
    p_err = models.FloatField(null=True)
    p_format = models.FloatField(null=True)
    draw_probability = models.FloatField(null=True)
    stop_reason = models.CharField(max_length=20, choices=[(s.value, s.value) for s in StopReason])
    turns = models.IntegerField()
    tool_calls = models.IntegerField()
    tool_errors = models.IntegerField()
    prompt_tokens = models.IntegerField()
    response_tokens = models.IntegerField()
    policy_tokens = models.IntegerField()
    mean_entropy = models.FloatField(null=True)
    forking_tokens = models.IntegerField()
    reflection_tokens = models.IntegerField()
    duration_s = models.FloatField()
    policy_version = models.IntegerField()
    shard = models.CharField(max_length=400, help_text="path under the run's artifact folder")
    row = models.IntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "shard", "prompt_id", "sample"], name="trajectory_once"),
        ]
        indexes = [
            models.Index(
                fields=["run", "stage", "step", "is_evaluation", "prompt_id", "sample"], name="trajectory_of_step"
            ),
        ]

    def __str__(self) -> str:
        return f"rollout {self.sample} of {self.prompt_id}"

    @property
    def number(self) -> int:
        """The sample as people count."""
        return self.sample + 1
