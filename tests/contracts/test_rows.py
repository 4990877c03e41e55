"""Lines of files: each row with its place; a line that is none costs itself only."""

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.rows import Fault, FileRow, HeaderError, read_csv, read_json_lines


def of_json(data: bytes, limit: int = 100) -> list[FileRow]:
    return list(read_json_lines(io.BytesIO(data), limit))


def of_csv(data: bytes) -> list[FileRow]:
    return list(read_csv(io.BytesIO(data), 1000)[1])


def test_every_fault_of_json_lines_has_its_place() -> None:
    data = b'\xef\xbb\xbf{"a": 1}\n{"a": \n[1]\n\n{"a": "\xff"}\n{"a": "' + b"x" * 250 + b'"}\n{"a": 2}'
    rows = of_json(data)
    assert [(r.line, r.fault, r.values) for r in rows] == [
        (1, None, {"a": 1}),
        (2, Fault.BAD_JSON, {}),
        (3, Fault.BAD_JSON, {}),
        (4, Fault.EMPTY, {}),
        (5, Fault.NOT_UTF8, {}),
        (6, Fault.TOO_LONG, {}),
        (7, None, {"a": 2}),
    ]
    assert rows[1].detail == "Expecting value at character 8"
    assert rows[2].detail == "not an object but a list"
    assert rows[4].detail == "byte 7 of the line is not UTF-8"


@pytest.mark.parametrize(
    ("written", "read"),
    [("4.0", 4.0), ("9" * 4001, "9" * 4001), ("1e400", "1e400"), ("9007199254740993.0", "9007199254740993.0")],
)
def test_a_number_python_cannot_hold_stays_as_it_is_written(written: str, read: object) -> None:
    assert of_json(f'{{"a": {written}}}'.encode(), 9000)[0].values == {"a": read}


def test_deep_nesting_is_a_fault_and_no_crash() -> None:
    assert of_json(b"[" * 5000 + b"]" * 5000, 20000)[0].fault is Fault.BAD_JSON


def test_every_fault_of_csv_has_its_first_line() -> None:
    rows = of_csv(b'\xef\xbb\xbfA, B\n"two\nlines",1\n,\nb\xff,1\nc,1,2\n' + b"x" * 2000 + b",1\nd,4\n")
    assert [(r.line, r.fault) for r in rows] == [
        (2, None),
        (4, Fault.EMPTY),
        (5, Fault.NOT_UTF8),
        (6, Fault.BAD_CSV),
        (7, Fault.TOO_LONG),
        (8, None),
    ]
    assert rows[0].values == {"a": "two\nlines", "b": "1"}
    assert (rows[2].text, rows[3].detail) == ("b\ufffd,1", "3 cells, but 2 columns")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_may_end_as_on_any_system(end: str) -> None:
    rows = of_csv(end.join(["a,b", f'"x{end}y",1', "z,2", ""]).encode())
    assert [(r.line, r.values) for r in rows] == [(2, {"a": f"x{end}y", "b": "1"}), (4, {"a": "z", "b": "2"})]


def test_a_header_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(HeaderError, match="limit"):
        read_csv(io.BytesIO(b"x" * 2000 + b"\n"), 1000)


@given(st.binary(max_size=300), st.booleans())
def test_no_bytes_break_the_readers(data: bytes, is_csv: bool) -> None:
    for row in of_csv(b"a,b\n" + data) if is_csv else of_json(data, 50):
        assert (row.fault is None) or not row.values
        json.dumps([row.text, row.detail], ensure_ascii=False).encode()
