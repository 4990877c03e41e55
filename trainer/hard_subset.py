"""The hard subset of an RL stage (rStar2-Agent 4.3): problems the newest policy does not always solve.

A sample without a grade counts for neither side. A problem is hard as soon as one graded sample is wrong, easy when
all samples are graded and right. Where the graded ones are right and others have no grade it is undecided: it is
not trained on, for it is likely easy, or a problem whose reference nobody can read, and it is counted apart.
"""

from collections.abc import Sequence
from enum import StrEnum

import numpy as np

from contracts.events import Funnel, FunnelRow, LogLevel
from contracts.recipe import RlStage
from contracts.scoring import Graded
from contracts.trajectory import Decision
from trainer.context import RunContext
from trainer.data.problems import dump_problems, load_problems
from trainer.files import hard_file, screening_shard
from trainer.measure import is_right
from trainer.outage import Occasion
from trainer.rollout.agent import RolloutRequest
from trainer.rollout.rows import Credit
from trainer.rollout.trajectory import Problem, Trajectory
from trainer.seeds import derive_seed

CHUNK = 64  # problems screened at once
SCREEN_FACTOR = 2  # at most so many times the problems the stage can use are screened
EXAMPLES = 5


class Verdict(StrEnum):
    HARD = "hard"
    EASY = "easy"
    UNDECIDED = "undecided"


def hard_problems(context: RunContext, index: int, stage: RlStage, problems: Sequence[Problem]) -> list[Problem]:
    """Screened with the policy the stage began with, once: a resume reads the file."""
    path = context.out / hard_file(index)
    if not path.exists():
        context.write(hard_file(index), dump_problems(_screen(context, index, stage, problems)))
    return load_problems(path)


def judge(samples: Sequence[Trajectory]) -> Verdict:
    """Of all samples of one problem."""
    if any(isinstance(t.grade, Graded) and not is_right(t) for t in samples):
        return Verdict.HARD
    return Verdict.EASY if all(map(is_right, samples)) else Verdict.UNDECIDED


def _screen(context: RunContext, index: int, stage: RlStage, problems: Sequence[Problem]) -> list[Problem]:
    """In a fixed order, until there are as many hard ones as the stage's steps can use. None left: all problems
    are used, and the log says so."""
    needed = min(len(problems), stage.steps * stage.prompts_per_step)
    order = np.random.default_rng(derive_seed(context.recipe.seed, "hard", index)).permutation(len(problems))
    queue = [problems[int(i)] for i in order[: SCREEN_FACTOR * needed]]
    found: dict[Verdict, list[Problem]] = {verdict: [] for verdict in Verdict}
    chunks = 0
    while queue and len(found[Verdict.HARD]) < needed:
        chunk, queue = queue[:CHUNK], queue[CHUNK:]
        chunks += 1
        context.reporter.doing = f"{stage.name}: hard subset, {len(found[Verdict.HARD])} of {needed} problems"
        trajectories = _sample(context, index, stage, chunk, stage.hard_subset)
        credits = [Credit(Decision.EVALUATION)] * len(trajectories)
        shard = screening_shard(index, chunks)
        context.store_trajectories(trajectories, credits, shard, stage=(index, stage.name), step=0)
        for i, problem in enumerate(chunk):
            found[judge(trajectories[i * stage.hard_subset : (i + 1) * stage.hard_subset])].append(problem)
    hard = found[Verdict.HARD]
    context.reporter.emit(_describe(index, stage.hard_subset, found, train=len(hard) or len(problems)))
    if not hard:
        screened = sum(map(len, found.values()))
        context.reporter.log(LogLevel.WARNING, f"{stage.name}: no hard problem among {screened}; all are used")
    return hard or list(problems)


def _sample(
    context: RunContext, index: int, stage: RlStage, chunk: Sequence[Problem], samples: int
) -> list[Trajectory]:
    requests = [
        RolloutRequest(p, sample, derive_seed(context.recipe.seed, "hard", index, p.id, sample))
        for p in chunk
        for sample in range(samples)
    ]
    return context.sampler.sample(requests, stage.sampling, Occasion(index, 0, "screening rollouts"), context.reporter)


def _describe(index: int, samples: int, found: dict[Verdict, list[Problem]], train: int) -> Funnel:
    """Undecided ones leave the funnel in a line of their own, which is there only if there are any."""
    hard, easy, undecided = (found[v] for v in (Verdict.HARD, Verdict.EASY, Verdict.UNDECIDED))
    decided = len(hard) + len(easy)
    rows = [FunnelRow(filter=f"right {samples} of {samples}", entered=decided, left=len(hard), examples=_texts(easy))]
    if undecided:
        rows.insert(
            0,
            FunnelRow(
                filter="samples without a grade, the others right",
                entered=decided + len(undecided),
                left=decided,
                examples=_texts(undecided),
            ),
        )
    return Funnel(stage=index, rows=rows, train=train, held_out=0, train_path=hard_file(index))


def _texts(problems: Sequence[Problem]) -> list[str]:
    return [problem.text[:160] for problem in problems[:EXAMPLES]]
