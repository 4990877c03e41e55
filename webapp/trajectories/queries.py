"""Reads of index rows: the steps of a run, the groups of a step, the rollouts of a group. All bounded."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.db.models import Avg, Count, F, Q, QuerySet
from django.http import Http404
from django.urls import reverse

from contracts.trajectory import Decision
from webapp.accounts.access import AnyUser, projects_of
from webapp.runs.models import Run
from webapp.trajectories.models import Trajectory

STEPS_PAGE = 50
GROUPS_PAGE = 40
MAX_GROUP = 512
# The ledger's order and words, the same everywhere.
DECISIONS = (
    (Decision.KEPT_RIGHT, "kept right"),
    (Decision.KEPT_WRONG, "kept wrong"),
    (Decision.KEPT_TRUNCATED, "kept truncated"),
    (Decision.NOT_SELECTED, "not drawn"),
    (Decision.EQUAL_REWARD, "equal reward"),
    (Decision.TOO_FEW, "too few graded"),
    (Decision.UNGRADED, "ungraded"),
    (Decision.EVALUATION, "evaluation"),
)
DECISION_WORDS = {decision.value: words for decision, words in DECISIONS}
SORTS = {
    "sample": ("sample", False),
    "reward": ("reward", True),
    "advantage": ("advantage", True),
    "p_err": ("p_err", False),
    "weight": ("weight", True),
    "turns": ("turns", False),
    "tokens": ("response_tokens", False),
    "errors": ("tool_errors", True),
    "entropy": ("mean_entropy", True),
}


@dataclass(frozen=True, slots=True)
class StepKey:
    """One step of a run, or the rollouts of one evaluation."""

    run: Run
    stage: int
    step: int
    is_evaluation: bool

    def rows(self) -> QuerySet[Trajectory]:
        return Trajectory.objects.filter(
            run=self.run, stage=self.stage, step=self.step, is_evaluation=self.is_evaluation
        )

    @property
    def url(self) -> str:
        name = "trajectories:evaluation" if self.is_evaluation else "trajectories:step"
        return reverse(name, args=[self.run.pk, self.stage, self.step])

    def group_url(self, prompt_id: str) -> str:
        return f"{self.url}group/?{urlencode({'prompt': prompt_id})}"


@dataclass(frozen=True, slots=True)
class LedgerLine:
    decision: str
    words: str
    count: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """Where the generated rollouts went; the lines add up to `generated`."""

    lines: list[LedgerLine]
    generated: int
    right: int
    wrong: int
    ungraded: int


@dataclass(frozen=True, slots=True)
class Group:
    prompt_id: str
    url: str
    problem: str
    reference_answer: str
    rollouts: list[Trajectory]

    @property
    def right(self) -> int:
        return sum(is_right(t.reward) for t in self.rollouts)

    @property
    def ungraded(self) -> int:
        return sum(t.reward is None for t in self.rollouts)

    @property
    def wrong(self) -> int:
        return len(self.rollouts) - self.right - self.ungraded

    @property
    def kept(self) -> int:
        return sum(t.decision.startswith("kept") for t in self.rollouts)

    @property
    def decisions(self) -> list[LedgerLine]:
        return _lines(Counter(t.decision for t in self.rollouts))


def is_right(reward: float | None) -> bool:
    return reward is not None and reward > 0


def trajectory_for(user: AnyUser, pk: int) -> Trajectory:
    found = Trajectory.objects.filter(pk=pk, run__project__in=projects_of(user)).select_related("run__project").first()
    if found is None:
        raise Http404("no such trajectory")
    return found


def steps_of_run(run: Run, before: tuple[int, int] | None = None) -> list[dict[str, Any]]:
    """Steps with stored trajectories, newest first, each with its counts. `before`: (stage, step), exclusive."""
    rows = Trajectory.objects.filter(run=run)
    if before is not None:
        stage, step = before
        rows = rows.filter(Q(stage__lt=stage) | Q(stage=stage, step__lt=step))
    return list(
        rows.values("stage", "stage_name", "step", "is_evaluation")
        .annotate(
            generated=Count("pk"),
            groups=Count("prompt_id", distinct=True),
            right=Count("pk", filter=Q(reward__gt=0)),
            wrong=Count("pk", filter=Q(reward__lte=0)),
            ungraded=Count("pk", filter=Q(reward__isnull=True)),
            kept=Count("pk", filter=Q(decision__startswith="kept")),
            tokens=Avg("response_tokens"),
        )
        .order_by("-stage", "-step", "is_evaluation")[: STEPS_PAGE + 1]
    )


def training_step(run: Run, step: int) -> StepKey | None:
    rows = Trajectory.objects.filter(run=run, step=step, is_evaluation=False)
    stage = rows.order_by("-stage").values_list("stage", flat=True).first()
    return None if stage is None else StepKey(run, stage, step, False)


def ledger_of(key: StepKey) -> Ledger | None:
    """None when nothing of the step is stored."""
    found = key.rows().aggregate(
        generated=Count("pk"),
        right=Count("pk", filter=Q(reward__gt=0)),
        wrong=Count("pk", filter=Q(reward__lte=0)),
        no_reward=Count("pk", filter=Q(reward__isnull=True)),
        **{d.value: Count("pk", filter=Q(decision=d.value)) for d, _ in DECISIONS},
    )
    if not found["generated"]:
        return None
    lines = _lines(Counter({d.value: found[d.value] for d, _ in DECISIONS}))
    return Ledger(lines, found["generated"], found["right"], found["wrong"], found["no_reward"])


def groups_of(key: StepKey, after: str = "") -> tuple[list[Group], str]:
    """A page of groups by prompt id, and the id to continue after ('' at the end)."""
    prompts = key.rows().order_by("prompt_id").values_list("prompt_id", flat=True).distinct()
    if after:
        prompts = prompts.filter(prompt_id__gt=after)
    ids = list(prompts[: GROUPS_PAGE + 1])
    shown = ids[:GROUPS_PAGE]
    rows = key.rows().filter(prompt_id__in=shown, sample__lt=MAX_GROUP).order_by("prompt_id", "sample")
    return _group(key, rows), shown[-1] if len(ids) > GROUPS_PAGE else ""


def group_of(key: StepKey, prompt_id: str, sort: str = "sample") -> Group:
    """The rollouts of one prompt."""
    column, descending = SORTS.get(sort, SORTS["sample"])
    order = F(column).desc(nulls_last=True) if descending else F(column).asc(nulls_last=True)
    found = _group(key, key.rows().filter(prompt_id=prompt_id).order_by(order, "sample")[:MAX_GROUP])
    if not found:
        raise Http404("no such group")
    return found[0]


def key_of(trajectory: Trajectory) -> StepKey:
    return StepKey(trajectory.run, trajectory.stage, trajectory.step, trajectory.is_evaluation)


def neighbours(group: Group, trajectory: Trajectory) -> tuple[Trajectory | None, Trajectory | None]:
    """The rollouts before and after it in its group."""
    ids = [t.pk for t in group.rollouts]
    at = ids.index(trajectory.pk) if trajectory.pk in ids else 0
    previous = group.rollouts[at - 1] if at > 0 else None
    return previous, group.rollouts[at + 1] if at + 1 < len(ids) else None


def _group(key: StepKey, rows: Iterable[Trajectory]) -> list[Group]:
    by_prompt: dict[str, list[Trajectory]] = defaultdict(list)
    for row in rows:
        by_prompt[row.prompt_id].append(row)
    return [
        Group(prompt, key.group_url(prompt), ts[0].problem, ts[0].reference_answer, ts)
        for prompt, ts in by_prompt.items()
    ]


def _lines(counts: Counter[str]) -> list[LedgerLine]:
    return [LedgerLine(d.value, words, counts[d.value]) for d, words in DECISIONS if counts[d.value]]


def position_in(group: Group, trajectory: Trajectory) -> int:
    return 1 + next((i for i, t in enumerate(group.rollouts) if t.pk == trajectory.pk), 0)
