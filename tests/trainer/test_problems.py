"""Problems to a file and back, their ids, their version, and the split."""

from pathlib import Path

import pytest

from trainer.data.overlap import normalise_text
from trainer.data.problems import compute_version, dump_problems, load_problems, split_held_out, with_unique_ids
from trainer.data.sources import DataError
from trainer.rollout.trajectory import Problem


def make_problems(count: int) -> list[Problem]:
    return [Problem(str(i), f"problem {i}", str(i)) for i in range(count)]


def test_the_split_is_deterministic_and_disjoint() -> None:
    train, held_out = split_held_out(make_problems(50), 8, seed=3)
    assert (len(train), len(held_out)) == (42, 8)
    assert not {normalise_text(p.text) for p in train} & {normalise_text(p.text) for p in held_out}
    assert split_held_out(make_problems(50)[::-1], 8, seed=3)[1] == held_out[::-1]
    assert split_held_out(make_problems(50), 8, seed=4)[1] != held_out


def test_problems_come_back_from_their_file(tmp_path: Path) -> None:
    problems = [Problem("a", "line one\nline two ∑", "-7", {"source": "x"})]
    (tmp_path / "p.jsonl").write_bytes(dump_problems(problems))
    assert load_problems(tmp_path / "p.jsonl") == problems


def test_a_benchmark_with_a_bad_row_names_file_line_and_field(tmp_path: Path) -> None:
    path = tmp_path / "b.jsonl"
    path.write_text('{"problem": "a", "answer": 1}\n{"problem": "b"}\n')
    with pytest.raises(DataError, match="b.jsonl, line 2: field 'answer' is missing"):
        load_problems(path)


def test_ids_are_unique_and_stable() -> None:
    problems = [Problem("same", text, "1") for text in ("x", "y", "y")]
    ids = [p.id for p in with_unique_ids(problems)]
    assert ids[0] == "same"
    assert len(set(ids)) == 3
    assert ids == [p.id for p in with_unique_ids(problems)]


def test_the_version_is_that_of_the_content_in_any_order() -> None:
    problems = make_problems(5)
    version = compute_version(problems)
    assert len(version) == 64
    assert compute_version(problems[::-1]) == version
    assert compute_version(problems[:4]) != version
    changed = [*problems[:4], Problem("4", "problem 4", "4", {"source": "x"})]
    assert compute_version(changed) != version
