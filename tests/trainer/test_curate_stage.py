"""The curate stage in a run: files, event and manifest, its version, sampled checks, and honest failures."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from contracts.curation import RULES
from contracts.events import LogLevel, Outcome
from contracts.scoring import Grade, Graded, Ungraded, UngradedReason
from tests.trainer.pipeline_run import SAMPLING, TinyRun
from trainer.rollout.agent import RolloutRequest
from trainer.rollout.collect import collect

ROWS = [
    {"id": "a", "problem": "What is 1 + 1?", "answer": "2", "level": "easy"},
    {"id": "b", "problem": "What is 2 + 2?", "answer": "+4"},
    {"id": "c", "problem": "What is 1 +  1?", "answer": "2"},
    {"id": "d", "problem": "Is it?", "answer": "yes"},
    {"id": "e", "problem": "What is 3 + 3?", "answer": 6},
]


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def curate(folder: Path, patch: pytest.MonkeyPatch, source: str, **fields: Any) -> TinyRun:
    stage = {"kind": "curate", "name": "curate", "source": source, "held_out": 1, "sampling": SAMPLING, **fields}
    return TinyRun(folder, patch, stages=[stage])


def read_lines(run: TinyRun, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.out / f"problems/stage-00/{name}.jsonl").read_text().splitlines()]


def test_the_files_hold_every_row_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_rows(tmp_path / "rows.jsonl", ROWS)
    run = curate(tmp_path / "a", monkeypatch, source)
    assert run.start() is Outcome.FINISHED
    accepted = read_lines(run, "train") + read_lines(run, "held_out")
    assert sorted((row["id"], row["answer"]) for row in accepted) == [("a", "2"), ("b", "4"), ("e", "6")]
    rejected = read_lines(run, "rejected")
    assert [(r["source"], r["line"], r["id"], r["filter"], r["match"]) for r in rejected] == [
        (source, 4, "d", "unverifiable answer", ""),
        (source, 3, "c", "duplicate", "a"),
    ]
    assert json.loads(rejected[0]["row"]) == ROWS[3]
    (funnel,) = run.payloads("funnel")
    assert (funnel.train, funnel.held_out) == (2, 1)
    assert (funnel.rows[0].entered, funnel.rows[-1].left) == (5, 3)
    manifest = json.loads((run.out / "problems/stage-00/manifest.json").read_text())
    assert manifest["version"] == funnel.version
    assert [s["name"] for s in manifest["sources"]] == [source]


def test_the_version_does_not_depend_on_the_order_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write_rows(tmp_path / "first.jsonl", ROWS[:2])
    second = write_rows(tmp_path / "second.jsonl", ROWS[2:])
    versions, files = [], []
    for name, sources, more in (
        ("a", [first, second], {}),
        ("b", [second, first], {}),
        ("c", [first, second], {"x": 1}),
    ):
        checks = [check for check in RULES if not (more and "duplicate" in check)]
        run = curate(tmp_path / name, monkeypatch, sources[0], more_sources=sources[1:], checks=checks)
        run.start()
        versions.append(run.payloads("funnel")[0].version)
        files.append(read_lines(run, "train"))
    assert versions[0] == versions[1] != versions[2]
    assert files[0] == files[1]


def test_rows_beyond_the_count_are_said_to_be_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = curate(tmp_path / "a", monkeypatch, write_rows(tmp_path / "rows.jsonl", ROWS), count=4)
    run.start()
    (warning,) = [p.text for p in run.payloads("log") if p.level is LogLevel.WARNING]
    assert "only the first 4 rows were read" in warning


def test_nothing_usable_is_a_failure_that_keeps_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = curate(tmp_path / "a", monkeypatch, write_rows(tmp_path / "rows.jsonl", [ROWS[3]] * 3))
    assert run.start() is Outcome.FAILED
    reason = run.payloads("run_ended")[0].reason
    assert "0 of 3 rows" in reason
    assert "'unverifiable answer' (3), e.g. line 1: a rule cannot verify the answer 'yes'" in reason
    assert len(read_lines(run, "rejected")) == 3
    assert run.payloads("funnel")[0].train == 0


def test_a_benchmark_without_problems_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark = write_rows(tmp_path / "benchmark.jsonl", [{"text": "x"}])
    source = write_rows(tmp_path / "rows.jsonl", ROWS)
    run = curate(tmp_path / "a", monkeypatch, source, decontaminate=[benchmark])
    assert run.start() is Outcome.FAILED
    assert "benchmark.jsonl of 'decontaminate' has no row" in run.payloads("run_ended")[0].reason


def grade_as(patch: pytest.MonkeyPatch, grades: dict[str, list[Grade]]) -> None:
    """Each problem's samples get these grades."""

    async def graded(requests: Sequence[RolloutRequest], rollouts: Any, watch: Any = None) -> Any:
        trajectories = await collect(requests, rollouts, watch)
        for request, trajectory in zip(requests, trajectories, strict=True):
            trajectory.grade = grades[request.problem.id][request.sample]
        return trajectories

    patch.setattr("trainer.sampler.collect", graded)


def right(count: int, said: str = "7") -> list[Grade]:
    return [Graded(reward=float(i < count), answer="x" if i < count else said) for i in range(4)]


def test_sampled_checks_keep_the_band(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"id": str(n), "problem": f"What is {n} + 0?", "answer": n} for n in range(5)]
    checks = ["agreement 1 of 4", "difficulty 2 to 3 of 4"]
    run = curate(tmp_path / "a", monkeypatch, write_rows(tmp_path / "r.jsonl", rows), held_out=0, checks=checks)
    grade_as(monkeypatch, {str(n): right(n) for n in range(5)})
    assert run.start() is Outcome.FINISHED
    kept = read_lines(run, "train")
    assert [(r["id"], r["right_samples"], r["graded_samples"]) for r in kept] == [("2", "2", "4"), ("3", "3", "4")]
    assert [(r["id"], r["filter"], r["reason"]) for r in read_lines(run, "rejected")] == [
        ("0", "agreement", "0 of 4 samples match; 4 said '7', fewer than 1"),
        ("1", "difficulty", "too hard: 1 of 4 samples match; 3 said '7', fewer than 2"),
        ("4", "difficulty", "too easy: 4 of 4 samples match, more than 3"),
    ]
    assert [row.filter for row in run.payloads("funnel")[0].rows] == ["schema", "agreement", "difficulty"]


def test_a_sample_without_a_grade_refuses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Ungraded(reason=UngradedReason.SANDBOX_UNAVAILABLE)
    rows = [{"id": str(n), "problem": f"What is {n} + 0?", "answer": n} for n in range(2)]
    source = write_rows(tmp_path / "r.jsonl", rows)
    run = curate(tmp_path / "a", monkeypatch, source, held_out=0, checks=["agreement 2 of 4"])
    grade_as(monkeypatch, {"0": [*right(0)[:2], failed, failed], "1": [*right(0)[:3], failed]})
    assert run.start() is Outcome.FINISHED
    assert [r["id"] for r in read_lines(run, "train")] == ["0"]
    assert read_lines(run, "rejected")[0]["reason"] == "0 of 3 samples match; 3 said '7', fewer than 2"
