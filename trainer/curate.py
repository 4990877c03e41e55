"""The curate stage: a source of problems becomes a training set, a held-out set and a list of refusals."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from contracts.events import Funnel, FunnelRow, StageProgress
from contracts.recipe import CurateStage
from trainer.data.problems import (
    DataError,
    RawRow,
    curate_rows,
    dump_problems,
    read_contaminated,
    read_rows,
    split_held_out,
)
from trainer.data.synthetic import SyntheticProblem, generate_problems
from trainer.seeds import derive_seed

if TYPE_CHECKING:
    from trainer.pipeline import RunContext

SYNTHETIC = "synthetic"
SYNTHETIC_NOISE = 0.06  # repeated and unusable rows in the raw set, so that the funnel has work


def train_file(stage: int) -> str:
    """Path of the curated training problems under the run's artifact folder."""
    return f"problems/stage-{stage:02d}/train.jsonl"


def held_out_file(stage: int) -> str:
    return f"problems/stage-{stage:02d}/held_out.jsonl"


def rejected_file(stage: int) -> str:
    return f"problems/stage-{stage:02d}/rejected.jsonl"


def generate_source(run_seed: int, stage_index: int, stage: CurateStage) -> list[SyntheticProblem]:
    """The generated raw set of a curate stage, the same whenever it is asked for (SFT asks again)."""
    return generate_problems(stage.count, derive_seed(run_seed, "synthetic", stage_index), noise=SYNTHETIC_NOISE)


def run_curate(context: "RunContext", index: int, stage: CurateStage) -> None:
    """Read, filter, split, write; one Funnel event. Raises DataError when nothing usable is left."""
    rows = _read_source(context, index, stage)
    context.reporter.emit(StageProgress(stage=index, done=0, total=len(rows), what="problems"))
    contaminated = read_contaminated(context.places.resolve(path) for path in stage.decontaminate)
    curated = curate_rows(rows, max_problem_chars=stage.max_problem_chars, contaminated=contaminated)
    if len(curated.problems) <= stage.held_out:
        raise DataError(
            f"stage {stage.name!r}: {len(curated.problems)} of {len(rows)} rows of {stage.source!r} are usable, "
            f"which leaves none to train on after {stage.held_out} held-out ones"
        )
    train, held_out = split_held_out(curated.problems, stage.held_out, derive_seed(context.recipe.seed, "split", index))
    context.write(train_file(index), dump_problems(train))
    context.write(held_out_file(index), dump_problems(held_out))
    rejected = "".join(json.dumps(asdict(r), ensure_ascii=False) + "\n" for r in curated.rejected)
    context.write(rejected_file(index), rejected.encode())
    left = len(curated.problems)
    context.reporter.emit(
        Funnel(
            stage=index,
            rows=[*curated.funnel, FunnelRow(filter="held-out split", entered=left, left=len(train))],
            train=len(train),
            held_out=len(held_out),
            train_path=train_file(index),
            held_out_path=held_out_file(index),
            rejected_path=rejected_file(index),
        )
    )
    context.reporter.emit(StageProgress(stage=index, done=len(rows), total=len(rows), what="problems"))


def _read_source(context: "RunContext", index: int, stage: CurateStage) -> list[RawRow]:
    if stage.source != SYNTHETIC:
        return read_rows(context.places.resolve(stage.source), stage.count)
    return [
        RawRow(
            line,
            {
                "id": p.id,
                "problem": p.problem,
                "answer": p.answer,
                "family": p.family,
                "difficulty": str(p.difficulty),
            },
        )
        for line, p in enumerate(generate_source(context.recipe.seed, index, stage), start=1)
    ]
