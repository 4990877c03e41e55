"""Shards: rows come back, columns are as documented, hostile text is made safe; paths stay where they may lead."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from contracts.scoring import Graded
from contracts.text import clean_text
from contracts.trajectory import (
    Decision,
    EntropyKind,
    StopReason,
    TokenClass,
    TokenMark,
    ToolCallRow,
    ToolStatus,
    TrajectoryIndex,
    TrajectoryRow,
    TurnRow,
    VersionSpan,
)
from trainer.files import evaluation_shard, train_shard
from trainer.store import PathError, Places, iter_rows, read_row, write_shard

COLUMNS = {
    "run": "string",
    "attempt": "int32",
    "index": "string",
    "problem": "string",
    "prompt_text": "string",
    "prompt_ids": "list<element: int32>",
    "response_ids": "list<element: int32>",
    "token_texts": "list<element: string>",
    "response_mask": "list<element: int8>",
    "sampling_logprobs": "list<element: float>",
    "entropies": "list<element: float>",
    "entropy_kind": "string",
    "token_classes": "list<element: string>",
    "token_marks": "list<element: string>",
    "turns": "string",
    "tool_calls": "string",
    "version_spans": "list<element: struct<version: int32, start: int32, end: int32>>",
}


def make_row(number: int = 0, problem: str = "What is 1 + 1?", output: str = "2") -> TrajectoryRow:
    index = TrajectoryIndex(
        stage=1,
        stage_name="rl",
        step=3,
        prompt_id="p",
        sample=number,
        problem=problem,
        reference_answer="2",
        answer="2",
        grade=Graded(reward=1.0, answer="2"),
        advantage=0.5,
        decision=Decision.KEPT_RIGHT,
        stop_reason=StopReason.ANSWERED,
        turns=1,
        tool_calls=1,
        tool_errors=0,
        prompt_tokens=2,
        response_tokens=3,
        policy_tokens=2,
        mean_entropy=0.25,
        forking_tokens=1,
        reflection_tokens=0,
        duration_s=0.5,
        policy_version=1,
        shard="s",
        row=number,
    )
    call = ToolCallRow(
        turn=0, name="f", code="print(2)", status=ToolStatus.OK, call_start=0, call_end=1, response_start=1,
        response_end=2, response_text=output,
    )  # fmt: skip
    return TrajectoryRow(
        run="r",
        attempt=1,
        index=index,
        problem=problem,
        prompt_text="x",
        prompt_ids=[1, 2],
        response_ids=[3, 4, 5],
        token_texts=["a", "b", "c"],
        response_mask=[1, 0, 1],
        sampling_logprobs=[-0.5, 0.0, -0.25],
        entropies=[0.5, 0.0, 0.0],
        entropy_kind=EntropyKind.FULL,
        token_classes=[TokenClass.CODE, TokenClass.TOOL_RESPONSE, TokenClass.ANSWER],
        token_marks=[TokenMark.FORKING, TokenMark.NONE, TokenMark.NONE],
        turns=[TurnRow(turn=0, start=0, end=3)],
        tool_calls=[call],
        version_spans=[VersionSpan(version=1, start=0, end=2), VersionSpan(version=2, start=2, end=3)],
    )


def test_every_row_comes_back(tmp_path: Path) -> None:
    rows = [make_row(number) for number in range(70)]
    path = tmp_path / train_shard(2, 5)
    write_shard(path, rows)
    assert [read_row(path, i) for i in (0, 31, 32, 69)] == [rows[i] for i in (0, 31, 32, 69)]
    assert [p.name for p in path.parent.iterdir()] == ["step-00005.parquet"]
    with pq.ParquetFile(path) as file:
        assert file.num_row_groups == 3


def test_a_shard_that_says_nothing_of_versions_is_read(tmp_path: Path) -> None:
    path = tmp_path / "old.parquet"
    write_shard(path, [make_row()])
    pq.write_table(pq.read_table(path).drop_columns(["version_spans"]), path)
    expected = make_row().model_copy(update={"version_spans": []})
    assert [read_row(path, 0), *iter_rows(path)] == [expected, expected]


@pytest.mark.parametrize("row", [-1, 1, 500])
def test_a_row_that_is_not_there(tmp_path: Path, row: int) -> None:
    write_shard(tmp_path / "s.parquet", [make_row()])
    with pytest.raises(IndexError):
        read_row(tmp_path / "s.parquet", row)


def test_columns_are_as_documented(tmp_path: Path) -> None:
    write_shard(tmp_path / "s.parquet", [make_row()])
    assert {f.name: str(f.type) for f in pq.read_schema(tmp_path / "s.parquet")} == COLUMNS


def test_hostile_text_is_made_safe(tmp_path: Path) -> None:
    write_shard(tmp_path / "s.parquet", [make_row(problem="a\ud800b\0c", output="\udfff\0")])
    row = read_row(tmp_path / "s.parquet", 0)
    for text in (row.problem, row.index.problem, row.tool_calls[0].response_text):
        assert "\0" not in text
        text.encode()


def test_clean_text_keeps_good_text() -> None:
    assert clean_text("naïve 🙂 ∑") == "naïve 🙂 ∑"


def test_evaluation_shards_have_safe_names() -> None:
    assert evaluation_shard(4, "1-after rl/../x") == "trajectories/stage-04/eval-1-after_rl_.._x.parquet"


def test_places(tmp_path: Path) -> None:
    for folder in ("out/problems", "store/datasets", "project/models/tiny"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "store/secret").touch()
    places = Places(tmp_path / "out", tmp_path / "store", tmp_path / "project")
    assert places.resolve("problems") == tmp_path / "out/problems"
    assert places.resolve("artifacts:datasets") == tmp_path / "store/datasets"
    assert places.resolve("models/tiny") == tmp_path / "project/models/tiny"
    for path in ("../store/secret", "artifacts:../out", "models/../../out", "nothing"):
        with pytest.raises(PathError):
            places.resolve(path)
    with pytest.raises(PathError, match="--artifacts"):
        Places(tmp_path, None, tmp_path).resolve("artifacts:x")
