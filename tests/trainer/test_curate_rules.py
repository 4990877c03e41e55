"""The rules of curation, on rows made by hand: each is refused once, by the first check it fails."""

import json
from pathlib import Path

import pytest

from contracts.curation import RULES, Check, Screening, parse_checks
from trainer.data.answers import judge_answer, normalise_answer
from trainer.data.curation import curate_rows
from trainer.data.overlap import index_benchmark
from trainer.data.problems import load_problems
from trainer.data.sources import RawRow, read_rows
from trainer.rollout.trajectory import Problem

ALL = frozenset(map(Check, RULES))
LONG = "A man walks along a road with seven cats and each of them has seven kittens, how many are there in total"
SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("33", "33"),
        ("-7", "-7"),
        ("+5", "5"),
        ("025", "25"),
        ("1,024", "1024"),
        ("24{,}000", "24000"),
        ("5,\\!040", "5040"),
        ("$12$", "12"),
        ("4.0", "4"),
        ("−3", "-3"),
        ("1" * 40, "1" * 40),
    ],
)
def test_integers_have_one_spelling(given: str, stored: str) -> None:
    assert judge_answer(given) is None
    assert normalise_answer(given) == stored


@pytest.mark.parametrize(
    ("check", "answers"),
    [
        (
            Check.UNVERIFIABLE,
            ["yes", "None", "C", "(B)", "\\text{(A)}", "the limit does not exist", "No solution : $\\oslash$"]
            + ["all real numbers", "\\text{Wednesday}", "infinitely many", "see above"],
        ),
        (
            Check.COMPOSITE,
            ["3, 4", "1,02", "(a) 3 (b) 4", "a) 3; b) 4", "1) 5 2) 6", "3 and 4", "x = 1 or x = 2", "\\pm 3", "(1, 2)"]
            + ["\\{2,3,5\\}", "n = 2, 5, 13", "2 hours 30 minutes", "3 m 20 cm", "[0,5]", "1 \\text{ or } 2"]
            + ["\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}"],
        ),
        (
            Check.HUGE,
            ["1" * 41, "6.5e27330467", "6.5 \\times 10^{27330467}", "2 \\times 10^{2017}", "2^{82589933}-1", "100!"]
            + ["7^{50}"],
        ),
        (
            Check.INTEGER,
            ["1/2", "2.5", "\\frac{1}{4}", "46\\%", "90^\\circ", "5 apples", "x=1", "2k+1", "\\pi", "\\$2", "2^{10}"]
            + ["2e27", "5!", "\\sqrt{3}", "C=\\frac{def}{de+df}"],
        ),
    ],
)
def test_answers_that_are_no_integers_are_told_apart(check: Check, answers: list[str]) -> None:
    assert {answer: (judge_answer(answer) or ("accepted",))[0] for answer in answers} == dict.fromkeys(answers, check)


def rows_of(*texts: str, answer: object = "1") -> list[RawRow]:
    return [RawRow(line, {"id": f"p{line}", "problem": t, "answer": answer}) for line, t in enumerate(texts, start=1)]


def judge(rows: list[RawRow], checks: frozenset[Check] = ALL, **more: object) -> list[tuple[int, str, str]]:
    funnel = curate_rows(rows, checks, max_problem_chars=200, **more)
    assert len(funnel.accepted) + len(funnel.rejected) == len(rows)
    return [(r.line, r.filter, r.match) for r in funnel.rejected]


def test_the_funnel_adds_up_and_the_first_check_has_the_row() -> None:
    rows = [
        *rows_of("good", "x" * 300, "good"),
        RawRow(4, {"problem": "no answer"}),
        RawRow(5, {"problem": "x" * 300, "answer": "yes"}),
    ]
    funnel = curate_rows(rows, ALL, max_problem_chars=200)
    assert [(row.filter, row.entered, row.left) for row in funnel.rows] == [
        ("schema", 5, 4),
        ("unverifiable answer", 4, 3),
        ("composite answer", 3, 3),
        ("huge number", 3, 3),
        ("integer answer", 3, 3),
        ("length", 3, 2),
        ("duplicate", 2, 1),
        ("near-duplicate", 1, 1),
        ("contamination", 1, 1),
    ]
    assert [(r.line, r.filter) for r in funnel.rejected] == [
        (4, "schema"),
        (5, "unverifiable answer"),
        (2, "length"),
        (3, "duplicate"),
    ]
    assert funnel.rows[5].examples == [f"line 2: 300 characters, more than 200: {'x' * 160}"]


def test_a_check_that_is_not_named_is_not_applied() -> None:
    rows = rows_of("half", answer="1/2")
    assert judge(rows, frozenset({Check.UNVERIFIABLE})) == []
    assert judge(rows, frozenset({Check.INTEGER})) == [(1, "integer answer", "")]


def test_duplicates_name_the_first() -> None:
    assert judge(rows_of("What is 1 + 1?", "  what IS 1 +  1?")) == [(2, "duplicate", "p1")]


def test_equal_problems_with_different_answers_are_all_refused() -> None:
    rows = [RawRow(i, {"id": f"p{i}", "problem": "same", "answer": answer}) for i, answer in enumerate((1, 1, 2))]
    assert judge(rows) == [(0, "duplicate", "p2"), (1, "duplicate", "p2"), (2, "duplicate", "p0")]


def test_near_duplicates_need_the_same_numbers_and_the_same_answer() -> None:
    base = f"{LONG} after 12 days and 30 nights?"
    near = base.replace("A man", "One man")
    assert judge(rows_of(base, near, base.replace("12", "13"))) == [(2, "near-duplicate", "p1")]
    other_answer = RawRow(2, {"id": "p2", "problem": near, "answer": "2"})
    assert judge([*rows_of(base), other_answer]) == []


def test_eight_shared_words_are_contamination() -> None:
    grams = index_benchmark("artifacts:aime.jsonl", [Problem("aime-1", LONG, "1")])
    eight = "Once, WITH seven cats and each of them has, he slept"
    seven = "Once, with seven cats and each of them, he slept"
    rows = rows_of(eight, seven)
    assert judge(rows, grams=grams) == [(1, "contamination", "aime-1")]
    funnel = curate_rows(rows, ALL, max_problem_chars=200, grams=grams)
    assert funnel.rejected[0].reason == (
        "shares words with problem aime-1 of artifacts:aime.jsonl: 'with seven cats and each of them has'"
    )


def test_hostile_text_is_stored_as_text() -> None:
    rows = [RawRow(1, {"id": "\ud800", "problem": "a\0b\ud800", "answer": "<script>\ud800"})]
    (rejected,) = curate_rows(rows, ALL, max_problem_chars=99).rejected
    assert (rejected.problem, rejected.answer) == ("a\ufffdb\ufffd", "<script>\ufffd")
    assert rejected.model_dump_json().encode("utf-8")


def test_a_problem_with_characters_that_are_no_text_is_refused_with_the_place() -> None:
    """PostgreSQL takes neither; replaced, the policy would be trained on a damaged problem."""
    rows = [
        RawRow(1, {"problem": "What is 1\0 + 1?", "answer": "2"}),
        RawRow(2, {"problem": "What is 2 + 2?", "answer": "4\ud800"}),
        RawRow(3, {"id": "\0c", "problem": "What is 3 + 3?", "answer": 6, "note\0": "a\udfff"}),
    ]
    funnel = curate_rows(rows, ALL, max_problem_chars=99)
    assert [(r.line, r.filter, r.reason) for r in funnel.rejected] == [
        (1, "schema", "field 'problem' holds a NUL character at character 10"),
        (2, "schema", "field 'answer' holds a lone surrogate at character 2"),
    ]
    [problem] = funnel.problems
    assert (problem.id, problem.extra) == ("\ufffdc", {"note\ufffd": "a\ufffd"})


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["integer"], "there is no check 'integer'; known are unverifiable answer"),
        (["length", "length"], "'length' is named twice"),
        (["agreement 9 of 8"], "at most 8 of 8"),
        (["agreement 1 of 0"], "at most 0 of 0"),
        (["agreement 2 of 16", "difficulty 1 to 7 of 8"], "share their samples: 16 and 8"),
        (["difficulty 7 to 1 of 8"], "the lower count comes first"),
    ],
)
def test_checks_that_cannot_be_are_refused(texts: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_checks(texts)


def test_sampled_checks_share_their_samples() -> None:
    checks = parse_checks([*RULES, "agreement 2 of 16", "difficulty 1 to 15 of 16"])
    assert checks.rules == frozenset(Check)
    assert checks.screening == Screening(samples=16, agree=2, low=1, high=15)
    assert parse_checks(RULES).screening is None


@pytest.mark.skipif(not SHARED.exists(), reason="the shared data is not here")
def test_the_shared_sample_keeps_integers_only_and_no_benchmark_problem() -> None:
    benchmark = SHARED / "math500.jsonl"
    rows = [*read_rows(SHARED / "train_sample.jsonl"), *read_rows(benchmark)]
    grams = index_benchmark("math500", load_problems(benchmark))
    funnel = curate_rows(rows, ALL, max_problem_chars=4000, grams=grams)
    assert len(funnel.accepted) + len(funnel.rejected) == len(rows) == 1030
    assert all(p.answer.lstrip("-").isdigit() for p in funnel.problems)
    assert not [item for item in funnel.accepted if str(item.row.values["id"]).startswith("math500")]
    kinds = {"int", "neg_int", "big_int", "thousands"}
    refused = [json.loads(r.row) for r in funnel.rejected if r.filter.endswith(("answer", "number"))]
    wrong = [row["answer"] for row in refused if row.get("answer_kind") in kinds]
    assert all(", " in answer for answer in wrong)  # one of the sample's "thousands" is two answers
