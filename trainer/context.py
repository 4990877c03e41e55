"""What every stage works with: the parts of the run, its policy, its place in the recipe, its checkpoints."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from contracts.events import CheckpointWritten, LogLevel, ResumePoint
from contracts.recipe import CurateStage, Recipe, RlStage, SftStage
from trainer.analysis.tokens import MarkSettings, TokenAnalysis, analyze
from trainer.files import done_file, hard_file
from trainer.journal import read_payloads
from trainer.policy.checkpoint import Checkpoint, CheckpointStore, Counters, Recovery
from trainer.policy.learners import Learner
from trainer.policy.rank_host import LearnerLost
from trainer.refusal import RunRefused
from trainer.reporter import Reporter
from trainer.rollout.rows import Credit, RowPlace, build_row
from trainer.rollout.trajectory import Trajectory
from trainer.sampler import Sampler, Stopped
from trainer.seeds import derive_seed, seed_generators
from trainer.store import Places, write_atomically, write_shard

MAX_LOSSES = 4  # of ranks in one piece of work: then the work itself is what kills them
_T = TypeVar("_T")


@dataclass(slots=True)
class Policy:
    """What is trained."""

    learner: Learner
    version: int = 0


@dataclass(frozen=True, slots=True)
class Training:
    """What it takes to have the learner again as it was after some step of a stage: see `RunContext.on_learner`.

    `relearn(stage_step)` does a step's updates again. `reference`: what KL terms hold on to.
    """

    index: int
    reset_optimizer: bool
    relearn: Callable[[int], object]
    reference: Path | None = None


@dataclass(slots=True)
class RunContext:
    """What every stage works with."""

    recipe: Recipe
    places: Places
    reporter: Reporter
    sampler: Sampler
    policy: Policy
    checkpoints: CheckpointStore
    resumed: Checkpoint | None = None
    saved_at: tuple[int, int] = field(default=(-1, -1))
    training: Training | None = None

    @property
    def out(self) -> Path:
        return self.places.out

    def write(self, path: str, data: bytes) -> None:
        """A small file under the run's artifact folder, atomically."""
        write_atomically(self.out / path, data)

    def curated_before(self, index: int) -> tuple[int, CurateStage]:
        """The newest curate stage before a stage; the recipe's validator has seen to it that there is one."""
        for i in range(index - 1, -1, -1):
            stage = self.recipe.stages[i]
            if isinstance(stage, CurateStage):
                return i, stage
        raise RunRefused(f"no curate stage before stage {index}")

    def first_step(self, index: int) -> int:
        """The run's RL step with which an RL stage begins; steps count from 1 over all RL stages."""
        return 1 + sum(stage.steps for stage in self.recipe.stages[:index] if isinstance(stage, RlStage))

    def begin_training(self, training: Training) -> int:
        """Steps of the stage that are done. A stage that begins gets a fresh optimizer if it asks for one."""
        self.training = training
        done = _count_done(self.resumed, training.index)
        self.on_learner(partial(self._prepare_learner, training, done), done=done)
        self.on_learner(self.publish, done=done)
        return done

    def _prepare_learner(self, training: Training, done: int) -> None:
        if done == 0 and training.reset_optimizer:
            self.policy.learner.reset_optimizer()
        self.policy.learner.hold_reference(training.reference)

    def on_learner(self, work: Callable[[], _T], *, done: int) -> _T:
        """Do something with the learner, which has learned `done` steps of the stage.

        When one of its ranks dies, all start anew from the newest checkpoint, the steps since then are learned again
        from what is stored of them, and so is `work`. LearnerLost when that happens MAX_LOSSES times.
        """
        for losses in range(1, MAX_LOSSES + 1):
            try:
                if losses > 1:
                    self._start_learner_again(done)
                return work()
            except LearnerLost as lost:
                self.reporter.log(LogLevel.WARNING, str(lost))
        raise LearnerLost(f"ranks of the learner died {MAX_LOSSES} times in the same step")

    def _start_learner_again(self, done: int) -> None:
        learner, training = self.policy.learner, self.training
        learner.restart()
        newest = self.checkpoints.recover().checkpoint
        folder = newest.path if newest else self.places.resolve(self.recipe.model)
        learner.restore(folder)
        if training is None:
            self.reporter.log(LogLevel.WARNING, f"the learner goes on from {folder.name}")
            return
        first = _count_done(newest, training.index) + 1
        self._prepare_learner(training, first - 1)
        again = f", then steps {first} to {done} of the stage again" if first <= done else ""
        self.reporter.log(LogLevel.WARNING, f"the learner goes on from {folder.name}{again}, then the step it was in")
        for stage_step in range(first, done + 1):
            training.relearn(stage_step)

    def publish(self) -> None:
        """The policy to the engines."""
        self.policy.learner.offer()
        self.sampler.publish(self.policy.version)

    def begin_step(self, index: int, stage: SftStage | RlStage, stage_step: int) -> None:
        """The safe point before a step of the stage: raises Stopped when a stop was asked for.

        Nothing of ours draws from the libraries' global generators; what does begins each step alike.
        """
        if self.reporter.should_stop:
            self.save_checkpoint(index, stage, stage_step - 1)
            raise Stopped
        seed_generators(derive_seed(self.recipe.seed, "libraries", index, stage_step))

    def save_checkpoint(
        self, index: int, stage: SftStage | RlStage, stage_step: int, *, is_stage_end: bool = False
    ) -> None:
        """After `stage_step` steps of the stage. The journal is made durable first: it may never lag behind."""
        if self.saved_at == (index, stage_step) or stage_step == 0:
            return
        step = self.first_step(index) - 1 + (stage_step if isinstance(stage, RlStage) else 0)
        counters = Counters(
            stage=index,
            stage_name=stage.name,
            stage_step=stage_step,
            step=step,
            policy_version=self.policy.version,
            cursor=stage_step * (stage.prompts_per_step if isinstance(stage, RlStage) else stage.batch_size),
            is_stage_end=is_stage_end,
            recipe=self.recipe.model_dump(mode="json"),
        )
        self.reporter.sync()
        save = partial(self.policy.learner.save, self.checkpoints, counters)
        written = self.on_learner(save, done=stage_step)
        self.saved_at = (index, stage_step)
        self._tell_checkpoint(written.checkpoint, [str(path.relative_to(self.out)) for path in written.pruned])

    def _tell_checkpoint(self, checkpoint: Checkpoint, pruned: Sequence[str]) -> None:
        counters = checkpoint.counters
        name, step = counters.stage_name, counters.stage_step
        self.reporter.emit(
            CheckpointWritten(
                stage=counters.stage,
                step=counters.step,
                path=str(checkpoint.path.relative_to(self.out)),
                label=f"after {name}" if counters.is_stage_end else f"{name}, step {step}",
                size_bytes=checkpoint.size_bytes,
                pruned=list(pruned),
            )
        )

    def tell_untold_checkpoints(self) -> None:
        """Make up for the event that a kill right after a checkpoint, or damage to one, has left out."""
        if self.resumed is None:
            return
        told: set[str] = set()
        for payload in read_payloads(self.reporter.journal.path, CheckpointWritten):
            told = (told - set(payload.pruned)) | {payload.path}
        there = {str(c.path.relative_to(self.out)) for c in self.checkpoints.find_all()}
        if told != there:
            self._tell_checkpoint(self.resumed, sorted(told - there))

    def restore_policy(self) -> Recovery:
        """The newest sound checkpoint's weights, optimizer and version; those of the recipe's model where there is
        none."""
        recovery = self.checkpoints.recover()
        newest = recovery.checkpoint
        self.policy.learner.restore(newest.path if newest else self.places.resolve(self.recipe.model))
        self.policy.version = newest.counters.policy_version if newest else 0
        self.publish()
        self.saved_at = (newest.counters.stage, newest.counters.stage_step) if newest else (-1, -1)
        return recovery

    def count_finished(self) -> int:
        """Stages that need not run again. One that trains is finished when its last checkpoint is there, or that of
        a later stage; another one by its note, unless a stage before it has to be done again."""
        counters = self.resumed.counters if self.resumed else None
        finished = counters.stage if counters else 0
        for index, stage in enumerate(self.recipe.stages[finished:], start=finished):
            is_trained = counters is not None and counters.stage == index and counters.is_stage_end
            if not (self.out / done_file(index)).exists() or (isinstance(stage, SftStage | RlStage) and not is_trained):
                return index
        return len(self.recipe.stages)

    def resume_point(self) -> ResumePoint:
        """From where on what older attempts reported is superseded. Step 0 of an RL stage is its screening."""
        index = self.count_finished()
        stage = self.recipe.stages[index] if index < len(self.recipe.stages) else None
        counters = self.resumed.counters if self.resumed else None
        done = counters.stage_step if counters and counters.stage == index else 0
        if isinstance(stage, RlStage):
            is_screened = not stage.hard_subset or (self.out / hard_file(index)).exists()
            return ResumePoint(stage=index, step=self.first_step(index) + done if is_screened else 0)
        return ResumePoint(stage=index, step=done + 1 if isinstance(stage, SftStage) else 0)

    def store_trajectories(
        self,
        trajectories: Sequence[Trajectory],
        credits: Sequence[Credit],
        shard: str,
        *,
        stage: tuple[int, str],
        step: int,
    ) -> list[TokenAnalysis]:
        """Write the shard, then tell of its rows; the token analysis of each trajectory comes back."""
        chat = self.sampler.chat
        marks = MarkSettings(self.recipe.forking_share, self.recipe.reflection_window)
        analyses = [analyze(t, chat.token_texts(t.response_ids), marks) for t in trajectories]
        place = RowPlace(self.reporter.run, self.reporter.attempt, stage[0], stage[1], step, shard)
        rows = [
            build_row(t, analysis, credit, place, number, chat)
            for number, (t, analysis, credit) in enumerate(zip(trajectories, analyses, credits, strict=True))
        ]
        write_shard(self.out / shard, rows)
        self.reporter.trajectories([row.index for row in rows])
        return analyses


def _count_done(checkpoint: Checkpoint | None, index: int) -> int:
    """Steps of a stage that are done in the checkpoint."""
    return checkpoint.counters.stage_step if checkpoint and checkpoint.counters.stage == index else 0
