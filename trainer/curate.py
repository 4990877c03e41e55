"""The curate stage: sources of problems become a training set, a held-out set and a list of refusals.

Files under `problems/stage-NN/`: train.jsonl and held_out.jsonl (`trainer.data.problems`), rejected.jsonl
(`contracts.curation.RejectedRow`, check by check) and manifest.json: version, sources with their SHA-256, checks,
counts. Paths of them are in the stage's Funnel event.
"""

import json
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from contracts.curation import Check, Screening
from contracts.events import Funnel as FunnelEvent
from contracts.events import LogLevel, StageProgress
from contracts.recipe import CurateStage
from contracts.scoring import Graded
from trainer.context import RunContext
from trainer.data.curation import Accepted, Funnel, curate_rows
from trainer.data.overlap import BenchmarkProblem, Refusal, index_benchmark
from trainer.data.problems import check_schema, compute_version, dump_problems, split_held_out, to_problem
from trainer.data.sources import DataError, RawRow, Source, gather_rows, hash_text, open_source
from trainer.data.synthetic import SyntheticProblem, generate_problems
from trainer.files import held_out_file, manifest_file, rejected_file, train_file
from trainer.measure import is_right
from trainer.outage import Occasion
from trainer.rollout.agent import RolloutRequest
from trainer.rollout.trajectory import Problem, Trajectory
from trainer.seeds import derive_seed

SYNTHETIC = "synthetic"
SYNTHETIC_NOISE = 0.06  # repeated and unusable rows in the raw set, so that the funnel has work
SCREENED_AT_ONCE = 32  # problems


def generate_source(run_seed: int, stage_index: int, stage: CurateStage) -> list[SyntheticProblem]:
    """The generated raw set of a curate stage, the same whenever it is asked for (SFT asks again)."""
    return generate_problems(stage.count, derive_seed(run_seed, "synthetic", stage_index), noise=SYNTHETIC_NOISE)


def run_curate(context: RunContext, index: int, stage: CurateStage) -> None:
    """Read, filter, split, write; one Funnel event. Raises DataError when nothing usable is left, with the refused
    rows written all the same."""
    sources = [s for name in stage.sources for s in _open_source(context, index, stage, name)]
    rows = _gather(context, stage, sources)
    context.reporter.emit(StageProgress(stage=index, done=0, total=len(rows), what="problems"))
    funnel = _apply_rules(context, stage, rows)
    if screening := stage.parsed_checks.screening:
        _screen(context, index, stage, screening, funnel)
    _write(context, index, stage, sources, funnel)
    context.reporter.emit(StageProgress(stage=index, done=len(rows), total=len(rows), what="problems"))
    if len(funnel.accepted) <= stage.held_out:
        raise DataError(
            f"stage {stage.name!r}: {len(funnel.accepted)} of {len(rows)} rows of {', '.join(stage.sources)} are "
            f"usable, which leaves none to train on after {stage.held_out} held-out ones. {_most_refused(funnel)}"
        )


def _open_source(context: RunContext, index: int, stage: CurateStage, name: str) -> list[Source]:
    if name != SYNTHETIC:
        return open_source(name, context.places.resolve)
    seed = context.recipe.seed
    return [Source(name, hash_text(f"{name} {seed} {index}"), lambda: _synthetic_rows(seed, index, stage))]


def _synthetic_rows(seed: int, index: int, stage: CurateStage) -> list[RawRow]:
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
        for line, p in enumerate(generate_source(seed, index, stage), start=1)
    ]


def _gather(context: RunContext, stage: CurateStage, sources: Sequence[Source]) -> list[RawRow]:
    rows, has_more = gather_rows(sources, stage.count)
    if has_more:
        text = f"{stage.name}: only the first {stage.count} rows were read; the sources have more: raise 'count'"
        context.reporter.log(LogLevel.WARNING, text)
    return rows


def _apply_rules(context: RunContext, stage: CurateStage, rows: Sequence[RawRow]) -> Funnel:
    started = time.monotonic()
    grams = _read_benchmarks(context, stage.decontaminate)
    rules = stage.parsed_checks.rules
    funnel = curate_rows(rows, rules, max_problem_chars=stage.parsed_checks.max_problem_chars, grams=grams)
    took = time.monotonic() - started
    text = f"{stage.name}: the rules kept {len(funnel.accepted)} of {len(rows)} rows in {took:.1f} s"
    context.reporter.log(LogLevel.INFO, text)
    return funnel


def _read_benchmarks(context: RunContext, names: Sequence[str]) -> dict[tuple[str, ...], BenchmarkProblem]:
    """Their 8-grams. A benchmark of which nothing can be read would let everything pass: DataError."""
    grams: dict[tuple[str, ...], BenchmarkProblem] = {}
    for name in names:
        rows = [row for source in open_source(name, context.places.resolve) for row in source.read()]
        problems = [to_problem(row) for row in rows if not check_schema(row)]
        if not problems:
            raise DataError(f"the benchmark {name} of 'decontaminate' has no row with a problem and an answer")
        if len(problems) < len(rows):
            text = f"{len(rows) - len(problems)} of {len(rows)} rows of the benchmark {name} are no problems"
            context.reporter.log(LogLevel.WARNING, text)
        grams = index_benchmark(name, problems) | grams
    return grams


def _screen(context: RunContext, index: int, stage: CurateStage, screening: Screening, funnel: Funnel) -> None:
    """Model agreement (4.2: at least 2 of 16) and the difficulty band, both from the same rollouts of the newest
    policy. A sample without a grade counts for neither side: a problem is refused only if no grade of it could
    have saved it."""
    counts: dict[int, _Count] = {}
    for start in range(0, len(funnel.accepted), SCREENED_AT_ONCE):
        context.reporter.doing = f"{stage.name}: {start} of {len(funnel.accepted)} problems sampled"
        chunk = funnel.accepted[start : start + SCREENED_AT_ONCE]
        for item, trajectories in zip(chunk, _sample(context, index, stage, screening, chunk), strict=True):
            counts[id(item.row)] = _Count(trajectories)
            item.problem = _with_counts(item.problem, counts[id(item.row)])
    for check, judge in ((Check.AGREEMENT, _judge_agreement), (Check.DIFFICULTY, _judge_difficulty)):
        if check in stage.parsed_checks.rules:
            own = [counts[id(item.row)] for item in funnel.accepted]
            funnel.apply(check, [judge(count, screening) for count in own])


class _Count:
    """What the samples of one problem said."""

    def __init__(self, trajectories: Sequence[Trajectory]) -> None:
        self.samples = len(trajectories)
        self.graded = sum(isinstance(t.grade, Graded) for t in trajectories)
        self.right = sum(map(is_right, trajectories))
        wrong = [t.grade.answer for t in trajectories if isinstance(t.grade, Graded) and not is_right(t)]
        self.others = Counter(answer for answer in wrong if answer)

    @property
    def at_most(self) -> int:
        """Right ones, if every sample without a grade were right."""
        return self.right + self.samples - self.graded

    def __str__(self) -> str:
        text = f"{self.right} of {self.graded} samples match"
        if not self.others:
            return text
        answer, count = self.others.most_common(1)[0]
        return f"{text}; {count} said {answer[:40]!r}"


def _judge_agreement(count: _Count, screening: Screening) -> Refusal | None:
    agree = screening.agree or 0
    return Refusal(f"{count}, fewer than {agree}") if count.at_most < agree else None


def _judge_difficulty(count: _Count, screening: Screening) -> Refusal | None:
    low, high = screening.low or 0, screening.samples if screening.high is None else screening.high
    if count.at_most < low:
        return Refusal(f"too hard: {count}, fewer than {low}")
    return Refusal(f"too easy: {count}, more than {high}") if count.right > high else None


def _sample(
    context: RunContext, index: int, stage: CurateStage, screening: Screening, chunk: Sequence[Accepted]
) -> list[list[Trajectory]]:
    size = screening.samples
    requests = [
        RolloutRequest(item.problem, sample, derive_seed(context.recipe.seed, "curate", index, item.problem.id, sample))
        for item in chunk
        for sample in range(size)
    ]
    occasion = Occasion(index, 0, "screening rollouts")
    trajectories = context.sampler.sample(requests, stage.sampling, occasion, context.reporter)
    return [trajectories[i * size : (i + 1) * size] for i in range(len(chunk))]


def _with_counts(problem: Problem, count: _Count) -> Problem:
    """How often the policy was right stays with the problem: later stages may choose by it."""
    counted = {"right_samples": str(count.right), "graded_samples": str(count.graded)}
    return Problem(problem.id, problem.text, problem.answer, problem.extra | counted)


def _most_refused(funnel: Funnel) -> str:
    worst = max(funnel.rows, key=lambda row: row.entered - row.left)
    refused = worst.entered - worst.left
    return f"Most were refused by the check {worst.filter!r} ({refused}), e.g. {worst.examples[0]}" if refused else ""


def _write(context: RunContext, index: int, stage: CurateStage, sources: Sequence[Source], funnel: Funnel) -> None:
    problems = funnel.problems
    train, held_out = split_held_out(problems, stage.held_out, derive_seed(context.recipe.seed, "split", index))
    event = FunnelEvent(
        stage=index,
        rows=funnel.rows,
        train=len(train),
        held_out=len(held_out),
        train_path=train_file(index),
        held_out_path=held_out_file(index),
        rejected_path=rejected_file(index),
        version=compute_version(problems),
    )
    context.write(event.train_path, dump_problems(train))
    context.write(event.held_out_path, dump_problems(held_out))
    lines = (json.dumps(row.model_dump(), ensure_ascii=False) + "\n" for row in funnel.rejected)
    context.write(event.rejected_path, "".join(lines).encode())
    manifest = _make_manifest(stage, sources, event)
    context.write(manifest_file(index), json.dumps(manifest, indent=1, ensure_ascii=False).encode())
    context.reporter.emit(event)
    text = f"{stage.name}: {len(problems)} problems accepted, version {event.version[:16]}"
    context.reporter.log(LogLevel.INFO, text)


def _make_manifest(stage: CurateStage, sources: Sequence[Source], event: FunnelEvent) -> dict[str, Any]:
    return {
        "version": event.version,
        "sources": [{"name": source.name, "sha256": source.fingerprint} for source in sources],
        "checks": stage.checks,
        "decontaminate": stage.decontaminate,
        "funnel": {row.filter: row.left for row in event.rows},
        "train": event.train,
        "held_out": event.held_out,
    }
