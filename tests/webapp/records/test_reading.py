"""Every reason a row can be rejected for, with its line; the integer-answer rule."""

import io
import json
from pathlib import Path

import pytest

from webapp.datasets import reading
from webapp.datasets.reading import Accepted, FileError, Reason, Rejected, guess_is_csv, parse_answer, read_file

SAMPLE = Path(__file__).parents[4] / "shared" / "data" / "train_sample.jsonl"


def read(data: bytes, *, is_csv: bool = False) -> tuple[list[Accepted], list[Rejected]]:
    found = list(read_file(io.BytesIO(data), is_csv=is_csv))
    return [r for r in found if isinstance(r, Accepted)], [r for r in found if isinstance(r, Rejected)]


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ("33", "33"),
        ("-7", "-7"),
        ("+5", "5"),
        ("1,024", "1024"),
        ("12,34", None),
        ("007", "7"),
        ("-0", "0"),
        (" 8 ", "8"),
        (12, "12"),
        (3.0, "3"),
        (3.5, None),
        (True, None),
        (None, None),
        ("3.0", None),
        ("\\frac{1}{2}", None),
        ("$33$", None),
        ("٣", None),
        ("", None),
        ("1e3", None),
        (float("inf"), None),
        ([1], None),
    ],
)
def test_integer_answers(given: object, answer: str | None) -> None:
    assert parse_answer(given) == answer


def test_every_reason_of_json_lines_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_PROBLEM_CHARS", 40)
    monkeypatch.setattr(reading, "MAX_LINE_BYTES", 200)
    lines = [
        b'\xef\xbb\xbf{"problem": "a", "answer": "1"}',
        b"{not json",
        b'["a", 1]',
        b'{"problem": "b"}',
        b'{"answer": "1"}',
        b'{"problem": "c", "answer": "\\\\frac{1}{2}"}',
        b'{"problem": " A ", "answer": 2}',
        b'{"problem": "' + b"x" * 41 + b'", "answer": 1}',
        b'{"problem": "\xff", "answer": 1}',
        b"",
        b'{"problem": " ", "answer": 1}',
        b'{"problem": "d", "answer": ""}',
        b'{"problem": "e", "answer": "' + b"9" * 41 + b'"}',
        b'{"problem": "' + b"y" * 500 + b'"}',
        b'{"question": "f", "answer": 6, "level": 2}',
        b'{"problem": 5, "answer": 1}',
    ]
    accepted, rejected = read(b"\n".join(lines))
    assert [(r.line, r.reason) for r in rejected] == [
        (2, Reason.BAD_JSON),
        (3, Reason.BAD_JSON),
        (4, Reason.MISSING_FIELD),
        (5, Reason.MISSING_FIELD),
        (6, Reason.NON_INTEGER),
        (7, Reason.DUPLICATE),
        (8, Reason.TOO_LONG),
        (9, Reason.NOT_UTF8),
        (10, Reason.EMPTY),
        (11, Reason.EMPTY),
        (12, Reason.EMPTY),
        (13, Reason.TOO_LONG),
        (14, Reason.TOO_LONG),
        (16, Reason.MISSING_FIELD),
    ]
    assert rejected[5].detail == "duplicate of line 1, but with the answer 2 instead of 1"
    assert [(a.line, a.problem, a.answer, a.extra) for a in accepted] == [
        (1, "a", "1", {}),
        (15, "f", "6", {"level": 2}),
    ]


def test_csv_lines_quotes_and_bad_bytes() -> None:
    data = b'ID,Problem,Answer,source\n7,"two\nlines",4,web\n8,b,x,\n,\xff,3,\n9,c,3,a,b\n,,,\n10,d,"1,024",book\n'
    accepted, rejected = read(data, is_csv=True)
    assert [(a.line, a.id, a.answer) for a in accepted] == [(2, "7", "4"), (8, "10", "1024")]
    assert accepted[1].extra == {"source": "book", "answer_as_given": "1,024"}
    assert [(r.line, r.reason) for r in rejected] == [
        (4, Reason.NON_INTEGER),
        (5, Reason.NOT_UTF8),
        (6, Reason.BAD_CSV),
        (7, Reason.EMPTY),
    ]


def test_csv_without_the_columns_is_refused_as_a_whole() -> None:
    with pytest.raises(FileError, match="problem"):
        read(b"a,b\n1,2\n", is_csv=True)


def test_two_problems_never_share_an_id() -> None:
    accepted, _ = read(b'{"id": 1, "problem": "a", "answer": 1}\n{"id": "1", "problem": "b", "answer": 1}')
    assert [a.id for a in accepted] == ["1", "1-line-2"]


def test_hostile_strings_become_harmless() -> None:
    accepted, _ = read(json.dumps({"problem": "a\0b\ud800", "answer": 1, "k\0": "\udfff"}).encode())
    assert accepted[0].problem == "a\ufffdb\ufffd" or "\0" not in accepted[0].problem
    json.dumps(accepted[0].extra, ensure_ascii=False).encode()


def test_the_format_is_found_by_name_then_by_content() -> None:
    assert guess_is_csv("a.csv", b"problem,answer")
    assert not guess_is_csv("a.jsonl", b"{")
    assert not guess_is_csv("upload", b'\xef\xbb\xbf {"problem"')
    with pytest.raises(FileError, match="one JSON list"):
        guess_is_csv("a.json", b" [{")


@pytest.mark.skipif(not SAMPLE.exists(), reason="the sample is not beside this checkout")
def test_the_public_sample_is_read_to_the_last_row() -> None:
    accepted, rejected = read(SAMPLE.read_bytes())
    assert len(accepted) + len(rejected) == 530
    assert len(accepted) > 100
    assert {r.reason for r in rejected} <= {Reason.NON_INTEGER, Reason.DUPLICATE, Reason.EMPTY}
    kinds = {json.loads(r.text)["answer_kind"] for r in rejected if r.reason is Reason.NON_INTEGER}
    assert "integer" not in kinds
