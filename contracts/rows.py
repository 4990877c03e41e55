"""Files of lines, read alike where a data set is uploaded and where a run curates: JSON lines and CSV, as a stream.

A line that is no row stays, with its place, its text and what is wrong; only a file that cannot be read at all
is an error.
"""

import csv
import io
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, BinaryIO

from contracts.text import clean_text

MAX_INT_DIGITS = 4000  # what Python converts without being told to
SHOWN_BYTES = 2000  # of a line that is too long
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LONE_RETURN = re.compile(r"(?<=\r)(?!\n)")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Fault(StrEnum):
    """Why a line is no row, in words for a person."""

    NOT_UTF8 = "not UTF-8"
    BAD_JSON = "bad JSON"
    BAD_CSV = "bad CSV"
    EMPTY = "empty"
    TOO_LONG = "too long"


@dataclass(frozen=True, slots=True)
class FileRow:
    """One row as it came. `line` counts from 1, the header of a CSV included. `text`: what was read, clean.
    With a `fault` there are no values and `detail` says more."""

    line: int
    text: str
    values: dict[str, Any]
    fault: Fault | None = None
    detail: str = ""


class HeaderError(ValueError):
    """The first line of a CSV file is none."""


def read_json_lines(stream: BinaryIO, max_line_bytes: int) -> Iterator[FileRow]:
    """A byte order mark is passed over; a line beyond the limit is skipped and costs itself only."""
    number = 0
    while line := stream.readline(max_line_bytes + 1):
        number += 1
        if len(line) > max_line_bytes and not line.endswith(b"\n"):
            while (rest := stream.readline(max_line_bytes)) and not rest.endswith(b"\n"):
                pass
            detail = f"the line has more than {max_line_bytes:,} bytes"
            yield FileRow(number, _decode(line[:SHOWN_BYTES]), {}, Fault.TOO_LONG, detail)
            continue
        yield _json_row(number, line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line)


def _json_row(number: int, line: bytes) -> FileRow:
    text = _decode(line.rstrip(b"\r\n"))
    if not line.strip():
        return FileRow(number, text, {}, Fault.EMPTY, "the line is empty")
    try:
        value = json.loads(line.decode(), parse_int=_parse_int, parse_float=_parse_float)
    except UnicodeDecodeError as error:
        return FileRow(number, text, {}, Fault.NOT_UTF8, f"byte {error.start} of the line is not UTF-8")
    except json.JSONDecodeError as error:
        return FileRow(number, text, {}, Fault.BAD_JSON, f"{error.msg} at character {error.pos + 1}")
    except (ValueError, RecursionError) as error:
        return FileRow(number, text, {}, Fault.BAD_JSON, str(error)[:200])
    if not isinstance(value, dict):
        return FileRow(number, text, {}, Fault.BAD_JSON, f"not an object but a {type(value).__name__}")
    return FileRow(number, text, value)


def _parse_int(text: str) -> int | str:
    """Digits that Python would refuse to convert stay text: a rule on numbers is to see them."""
    return int(text) if len(text) <= MAX_INT_DIGITS else text


def _parse_float(text: str) -> float | str:
    """A number that a float cannot hold (infinite, or whole and inexact) stays text."""
    value = float(text)
    return value if math.isfinite(value) and abs(value) < 2**53 else text


def read_csv(stream: BinaryIO, max_cell_chars: int) -> tuple[list[str], Iterator[FileRow]]:
    """(names of the columns in lower case, the rows). Raises HeaderError. Bytes that are not UTF-8 cost their row
    only."""
    csv.field_size_limit(max_cell_chars)
    reader = csv.reader(_text_lines(stream))
    try:
        header = [name.strip().lower() for name in next(reader, [])]
    except csv.Error as error:
        raise HeaderError(str(error)) from error
    return header, _csv_rows(reader, header)


def _text_lines(stream: BinaryIO) -> Iterator[str]:
    """Lines with their ends, of any kind. Bytes that are not UTF-8 arrive as lone surrogates."""
    for number, line in enumerate(stream):
        line = line.removeprefix(_BYTE_ORDER_MARK) if number == 0 else line
        yield from filter(None, _LONE_RETURN.split(line.decode("utf-8", "surrogateescape")))


def _csv_rows(reader: Any, header: list[str]) -> Iterator[FileRow]:
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            fault = Fault.TOO_LONG if "limit" in str(error) else Fault.BAD_CSV
            yield FileRow(line, "", {}, fault, str(error)[:200])
            continue
        yield _csv_row(line, header, cells)


def _csv_row(line: int, header: list[str], cells: list[str]) -> FileRow:
    joined = io.StringIO()
    csv.writer(joined, lineterminator="").writerow(cells)
    text = _decode(joined.getvalue().encode("utf-8", "surrogateescape"))
    if not any(cell.strip() for cell in cells):
        return FileRow(line, text, {}, Fault.EMPTY, "the line is empty")
    if _SURROGATE.search(joined.getvalue()):
        return FileRow(line, text, {}, Fault.NOT_UTF8, "the row holds bytes that are not UTF-8")
    if len(cells) > len(header):
        return FileRow(line, text, {}, Fault.BAD_CSV, f"{len(cells)} cells, but {len(header)} columns")
    return FileRow(line, text, dict(zip(header, cells, strict=False)))


def _decode(line: bytes) -> str:
    return clean_text(line.decode("utf-8", "replace"))
