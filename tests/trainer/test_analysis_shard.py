"""`python -m trainer analyse SHARD`: numbers worked by hand, and a sentence for every file that is none."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contracts.scoring import Graded, Ungraded, UngradedReason
from contracts.trajectory import Decision, EntropyKind, TokenClass, TokenMark, ToolStatus, TrajectoryRow
from tests.trainer.test_store import make_row
from trainer.__main__ import main
from trainer.analysis.shard import read_report
from trainer.store import SCHEMA, write_shard


def row(number: int, *, reward: float | None, errors: int, decision: Decision, kind=EntropyKind.FULL) -> TrajectoryRow:
    """`make_row`: three response tokens, the last one masked; one call."""
    first = make_row(number)
    grade = (
        Ungraded(reason=UngradedReason.CANCELLED, detail="") if reward is None else Graded(reward=reward, answer="2")
    )
    status = ToolStatus.ERROR if errors else ToolStatus.OK
    index = first.index.model_copy(update={"grade": grade, "tool_errors": errors, "decision": decision})
    calls = [call.model_copy(update={"status": status}) for call in first.tool_calls]
    return first.model_copy(update={"index": index, "tool_calls": calls, "entropy_kind": kind})


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "step-00003.parquet"
    rows = [
        row(0, reward=1.0, errors=0, decision=Decision.KEPT_RIGHT),
        row(1, reward=1.0, errors=1, decision=Decision.NOT_SELECTED),
        row(2, reward=0.0, errors=1, decision=Decision.KEPT_WRONG),
        row(3, reward=None, errors=0, decision=Decision.UNGRADED),
    ]
    write_shard(path, rows)
    return path


def test_ledger_tool_use_and_tokens(shard):
    report = read_report(shard, 24)
    assert (report.rows, report.steps, report.response_tokens) == (4, {3}, 12)
    assert report.decisions == {"kept_right": 1, "not_selected": 1, "kept_wrong": 1, "ungraded": 1}
    right, wrong = report.by_grade["right"], report.by_grade["wrong"]
    assert (right.trajectories, right.calls, right.errors) == (2, 2, 1)
    assert (wrong.calls, wrong.errors) == (1, 1)
    assert report.bytes_per_token == shard.stat().st_size / 12
    (tokens,) = report.tokens
    first = make_row()
    policy = sum(first.response_mask)
    assert tokens.policy_tokens == 4 * policy
    assert tokens.forking_tokens == 4 * first.token_marks.count(TokenMark.FORKING)
    for kind in set(first.token_classes) - {TokenClass.TOOL_RESPONSE}:
        own = [
            e
            for e, c, m in zip(first.entropies, first.token_classes, first.response_mask, strict=True)
            if c is kind and m
        ]
        assert tokens.mean_entropy_by_class[kind] == pytest.approx(sum(own) / len(own))


def test_the_command_prints_tables(shard, capsys):
    assert main(["analyse", str(shard)]) == 0
    printed = capsys.readouterr().out
    for words in (
        "4 trajectories of step 3",
        "kept_right",
        "50.0 %",
        "generated",
        "forking",
        "entropy: full vocabulary",
    ):
        assert words in printed
    assert all(line == line.rstrip() for line in printed.splitlines())


def test_kinds_of_entropy_are_reported_apart(tmp_path, capsys):
    path = tmp_path / "mixed.parquet"
    right = {"reward": 1.0, "errors": 0, "decision": Decision.EVALUATION}
    write_shard(path, [row(0, **right), row(1, **right, kind=EntropyKind.TOPK_BOUND)])
    assert len(read_report(path, 24).tokens) == 2
    assert main(["analyse", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "entropy: full vocabulary" in printed and "entropy: lower bound from the top k" in printed


def bad_files(folder: Path) -> dict[str, tuple[Path, str]]:
    (folder / "text.parquet").write_text("not parquet at all")
    (folder / "empty.parquet").write_bytes(b"")
    pq.write_table(pa.table({"a": [1]}), folder / "other.parquet")
    pq.write_table(SCHEMA.empty_table(), folder / "none.parquet")
    write_shard(folder / "whole.parquet", [make_row()])
    data = (folder / "whole.parquet").read_bytes()
    (folder / "cut.parquet").write_bytes(data[: len(data) // 2])
    table = pq.read_table(folder / "whole.parquet")
    at = table.schema.get_field_index("index")
    pq.write_table(table.set_column(at, "index", pa.array(["{"])), folder / "json.parquet")
    pq.write_table(table.set_column(at, "index", pa.array(["{}"])), folder / "fields.parquet")
    return {
        "absent": (folder / "absent.parquet", "No such file"),
        "folder": (folder, "Is a directory"),
        "text": (folder / "text.parquet", "Parquet"),
        "empty": (folder / "empty.parquet", "Parquet"),
        "other": (folder / "other.parquet", "no trajectory shard: it has no column 'attempt'"),
        "none": (folder / "none.parquet", "the shard has no trajectory"),
        "cut": (folder / "cut.parquet", "Parquet"),
        "json": (folder / "json.parquet", ""),
        "fields": (folder / "fields.parquet", "validation"),
    }


@pytest.mark.parametrize("name", ["absent", "folder", "text", "empty", "other", "none", "cut", "json", "fields"])
def test_a_bad_file_is_one_sentence_that_names_it(tmp_path, name, capsys):
    path, words = bad_files(tmp_path)[name]
    assert main(["analyse", str(path)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert said.err.startswith(f"{path}: ") and words in said.err


@pytest.mark.parametrize("window", ["0", "-3", "many"])
def test_a_window_is_a_number_above_0(shard, window, capsys):
    with pytest.raises(SystemExit):
        main(["analyse", str(shard), "--window", window])
    assert "number above 0" in capsys.readouterr().err
