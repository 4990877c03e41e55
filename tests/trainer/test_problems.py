"""Curation on hand-made bad rows: each refusal with its line and reason."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.problems import (
    DataError,
    RawRow,
    curate_rows,
    dump_problems,
    load_problems,
    normalise_text,
    read_contaminated,
    read_rows,
    split_held_out,
)
from trainer.rollout.trajectory import Problem

LONG = "A man walks along a road with seven cats and each of them has seven kittens, how many are there in total"
BAD_LINES = [
    b'{"problem": "What is 1 + 1?", "answer": "2", "source": "x", "level": 3}',
    b'{"problem": "broken", "answer": ',
    b'["a", "list"]',
    b"",
    b'{"problem": "no answer"}',
    b'{"problem": "  ", "answer": 1}',
    b'{"problem": "true", "answer": true}',
    b'{"problem": "half", "answer": "1/2"}',
    b'{"problem": "decimal", "answer": 2.5}',
    b'{"problem": "float but whole", "answer": 4.0}',
    b'{"problem": "  what IS 1 +  1?", "answer": "2"}',
    b'{"problem": "leading zeros", "answer": "025"}',
    b'{"problem": "' + b"x" * 300 + b'", "answer": 1}',
    b'{"problem": "bad \xff bytes", "answer": 1}',
    b'{"problem": "too many digits", "answer": "' + b"9" * 41 + b'"}',
    b'{"problem": 7, "answer": 1}',
    b'{"problem": "negative", "answer": "-3"}',
]


def curate_lines(tmp_path: Path, lines: list[bytes], max_problem_chars: int = 200):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    return curate_rows(read_rows(path), max_problem_chars=max_problem_chars)


def test_bad_rows_are_refused_with_line_and_reason(tmp_path: Path) -> None:
    curated = curate_lines(tmp_path, BAD_LINES)
    assert [(r.line, r.filter, r.reason.split(":")[0]) for r in curated.rejected] == [
        (2, "schema", "not valid JSON"),
        (3, "schema", "not a JSON object"),
        (5, "schema", "field 'answer' is missing"),
        (6, "schema", "field 'problem' is missing"),
        (7, "schema", "field 'answer' is neither text nor a number"),
        (8, "integer answer", "the answer is not an integer"),
        (9, "integer answer", "the answer is not an integer"),
        (11, "duplicate", "the same problem as line 1"),
        (13, "length", "300 characters, more than 200"),
        (14, "schema", "not UTF-8"),
        (15, "integer answer", "the answer has more than 40 digits"),
        (16, "schema", "field 'problem' is not text"),
    ]
    assert [(p.text, p.answer) for p in curated.problems] == [
        ("What is 1 + 1?", "2"),
        ("float but whole", "4"),
        ("leading zeros", "25"),
        ("negative", "-3"),
    ]
    assert curated.problems[0].extra == {"source": "x", "level": "3"}


def test_the_funnel_adds_up(tmp_path: Path) -> None:
    funnel = curate_lines(tmp_path, BAD_LINES).funnel
    assert [(row.filter, row.entered, row.left) for row in funnel] == [
        ("schema", 16, 9),
        ("integer answer", 9, 6),
        ("length", 6, 5),
        ("duplicate", 5, 4),
        ("near-duplicate", 4, 4),
        ("contamination", 4, 4),
    ]
    assert funnel[2].examples[0].startswith("line 13: 300 characters")


def test_csv_rows_keep_their_first_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes('\ufeffproblem,answer,topic\n"two\nlines",3,a\nlast,x,b\nmore,1,c,d\n'.encode())
    rows = read_rows(path)
    assert [(row.line, row.values.get("problem"), row.error) for row in rows] == [
        (2, "two\nlines", ""),
        (4, "last", ""),
        (5, "more", "more cells than the header has columns"),
    ]


def test_a_csv_without_the_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("question,answer\na,1\n")
    with pytest.raises(DataError, match="no column 'problem'"):
        read_rows(path)


def test_at_most_so_many_rows_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"problem": str(i), "answer": i}) for i in range(9)))
    assert len(read_rows(path, 4)) == 4


def rows_of(*texts: str) -> list[RawRow]:
    return [RawRow(line, {"problem": text, "answer": "1"}) for line, text in enumerate(texts, start=1)]


def test_near_duplicates_need_the_same_numbers() -> None:
    base = f"{LONG} after 12 days and 30 nights?"
    curated = curate_rows(
        rows_of(base, base.replace("A man", "One man"), base.replace("12", "13")), max_problem_chars=4000
    )
    assert [(r.line, r.filter) for r in curated.rejected] == [(2, "near-duplicate")]


def test_eight_shared_words_are_contamination(tmp_path: Path) -> None:
    benchmark = tmp_path / "benchmark.jsonl"
    benchmark.write_text(json.dumps({"problem": LONG, "answer": "1"}) + "\n")
    grams = read_contaminated([benchmark])
    eight = "Once, WITH seven cats and each of them has, he slept"
    seven = "Once, with seven cats and each of them, he slept"
    curated = curate_rows(rows_of(eight, seven), max_problem_chars=4000, contaminated=grams)
    assert [(r.line, r.filter) for r in curated.rejected] == [(1, "contamination")]


def test_ids_are_unique_and_stable() -> None:
    rows = [RawRow(i, {"id": "same", "problem": f"problem {i}", "answer": 1}) for i in (1, 2)]
    first, second = curate_rows(rows, max_problem_chars=99).problems
    assert first.id == "same"
    assert second.id != "same"
    assert curate_rows(rows, max_problem_chars=99).problems[1].id == second.id


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


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_no_bytes_break_the_reader(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("bytes") / "rows.jsonl"
    path.write_bytes(b"\n".join(lines))
    rows = read_rows(path)
    curated = curate_rows(rows, max_problem_chars=10)
    assert len(curated.problems) + len(curated.rejected) == len(rows)
