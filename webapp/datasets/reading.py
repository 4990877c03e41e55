"""From an uploaded file to accepted and rejected rows, as a stream. Pure: no Django, no database.

The integer-answer rule: an answer is optional sign and at most 40 digits, with or without commas between
groups of three ("33", "-7", "+5", "1,024"), or a JSON number without a fraction. It is stored without sign
+, commas and leading zeros; where that changed it, the answer as given stays in `extra.answer_as_given`.
Everything else, LaTeX included, is a `non-integer answer`.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, BinaryIO

from contracts.rows import Fault, FileRow, HeaderError, read_csv, read_json_lines
from contracts.text import clean, clean_text

MAX_LINE_BYTES = 1 << 20
MAX_PROBLEM_CHARS = 20_000
MAX_ANSWER_DIGITS = 40
_INTEGER = re.compile(r"[+-]?(?:[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)")
_PROBLEM_NAMES = ("problem", "question")


class Reason(StrEnum):
    """Why a row was rejected, in the words of the page."""

    NOT_UTF8 = Fault.NOT_UTF8.value
    BAD_JSON = Fault.BAD_JSON.value
    BAD_CSV = Fault.BAD_CSV.value
    EMPTY = Fault.EMPTY.value
    MISSING_FIELD = "missing field"
    NON_INTEGER = "non-integer answer"
    DUPLICATE = "duplicate"
    TOO_LONG = Fault.TOO_LONG.value


class FileError(ValueError):
    """The file as a whole cannot be read; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Accepted:
    line: int
    id: str
    problem: str
    answer: str
    extra: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rejected:
    line: int
    reason: Reason
    detail: str
    text: str


def read_file(stream: BinaryIO, *, is_csv: bool) -> Iterator[Accepted | Rejected]:
    """Rows in the order of the file. `line` counts from 1, the header of a CSV included."""
    lines_by_problem: dict[bytes, tuple[int, str]] = {}
    ids: set[str] = set()
    for raw in _rows(stream, is_csv):
        row = _judge(raw)
        if isinstance(row, Rejected):
            yield row
            continue
        key = hashlib.sha256(" ".join(row.problem.casefold().split()).encode()).digest()
        line, answer = lines_by_problem.setdefault(key, (row.line, row.answer))
        if line != row.line:
            differs = "" if answer == row.answer else f", but with the answer {row.answer} instead of {answer}"
            yield Rejected(row.line, Reason.DUPLICATE, f"duplicate of line {line}{differs}", raw.text)
            continue
        identity = row.id if row.id not in ids else f"{row.id[:180]}-line-{row.line}"
        ids.add(identity)
        yield Accepted(row.line, identity, row.problem, row.answer, row.extra)


def guess_is_csv(name: str, head: bytes) -> bool:
    """By the ending of the name, else by the first character. FileError for what is neither."""
    ending = name.rpartition(".")[2].lower()
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if start == b"[" and ending != "csv":
        raise FileError("This is one JSON list. Write one JSON object a line instead (JSON lines).")
    if ending == "csv":
        return True
    return ending not in ("jsonl", "ndjson", "json") and start != b"{"


def _rows(stream: BinaryIO, is_csv: bool) -> Iterator[FileRow]:
    if not is_csv:
        return read_json_lines(stream, MAX_LINE_BYTES)
    try:
        header, rows = read_csv(stream, MAX_LINE_BYTES)
    except HeaderError as error:
        raise FileError(f"The first line is not CSV: {error}.") from error
    if "answer" not in header or not set(_PROBLEM_NAMES) & set(header):
        raise FileError("The first line of a CSV names its columns: problem (or question) and answer are needed.")
    return rows


def _judge(raw: FileRow) -> Accepted | Rejected:
    name = next((n for n in _PROBLEM_NAMES if raw.values.get(n) is not None), "")
    fault: tuple[Reason | None, str] = (Reason(raw.fault.value) if raw.fault else None, raw.detail)
    if raw.fault is None:
        fault = _fault_of_problem(raw.values, name) or _fault_of_answer(raw.values) or (None, "")
    reason, detail = fault
    answer = parse_answer(raw.values.get("answer"))
    if reason is not None or answer is None:
        return Rejected(raw.line, reason or Reason.NON_INTEGER, clean_text(detail), clean_text(raw.text))
    text = clean_text(raw.values[name].strip())
    return Accepted(raw.line, _identity(raw.values.get("id"), text), text, answer, _extra(raw.values, name, answer))


def _fault_of_problem(values: dict[str, Any], name: str) -> tuple[Reason, str] | None:
    if not name:
        return Reason.MISSING_FIELD, "neither problem nor question"
    problem = values[name]
    if not isinstance(problem, str):
        return Reason.MISSING_FIELD, f"{name} is not text"
    if not problem.strip():
        return Reason.EMPTY, f"{name} is empty"
    if len(problem) > MAX_PROBLEM_CHARS:
        return Reason.TOO_LONG, f"{name} has {len(problem):,} characters, more than {MAX_PROBLEM_CHARS:,}"
    return None


def _fault_of_answer(values: dict[str, Any]) -> tuple[Reason, str] | None:
    given = values.get("answer")
    if given is None:
        return Reason.MISSING_FIELD, "no answer"
    if isinstance(given, str) and not given.strip():
        return Reason.EMPTY, "answer is empty"
    answer = parse_answer(given)
    if answer is None:
        return Reason.NON_INTEGER, _short(given)
    if len(answer.lstrip("-")) > MAX_ANSWER_DIGITS:
        return Reason.TOO_LONG, f"answer has more than {MAX_ANSWER_DIGITS} digits"
    return None


def parse_answer(given: Any) -> str | None:
    """The integer an answer is, in its one spelling; None when it is none."""
    if isinstance(given, bool):
        return None
    if isinstance(given, float):
        return str(int(given)) if given.is_integer() else None  # NaN and infinity are no integers
    text = str(given) if isinstance(given, int) and abs(given) < 10**4000 else given
    if not isinstance(text, str) or not _INTEGER.fullmatch(text.strip()):
        return None
    digits = text.strip().replace(",", "")
    sign = "-" if digits.startswith("-") else ""
    digits = digits.lstrip("+-").lstrip("0") or "0"
    return digits if digits == "0" else sign + digits


def _extra(values: dict[str, Any], name: str, answer: str) -> dict[str, Any]:
    extra = {k: v for k, v in values.items() if k not in ("id", "answer", name)}
    if str(values["answer"]).strip() != answer:
        extra["answer_as_given"] = values["answer"]
    cleaned: dict[str, Any] = clean(extra)
    return cleaned


def _identity(given: Any, problem: str) -> str:
    if isinstance(given, (str, int)) and not isinstance(given, bool) and str(given).strip():
        return clean_text(str(given).strip())[:200]
    return hashlib.sha256(problem.encode()).hexdigest()[:16]


def _short(value: Any) -> str:
    text = str(value) if not isinstance(value, int) else "a number with thousands of digits"
    return text if len(text) <= 120 else text[:119] + "…"
