"""Problems from files, and the filters of curation: each refused row keeps its line number and the reason.

Near-duplicates: the same numbers in the text and a MinHash similarity of word 3-grams of at least 0.8. Two
problems that differ in a number are two problems, however alike their words. Decontamination: any word
8-gram shared with a benchmark (rStar2-Agent 4.2).
"""

import csv
import hashlib
import io
import json
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasketch import MinHash, MinHashLSH

from contracts.events import FunnelRow
from trainer.rollout.trajectory import Problem
from trainer.store import clean_text

NEAR_DUPLICATE_SIMILARITY = 0.8
MINHASH_PERMUTATIONS = 64
SHINGLE_WORDS = 3
CONTAMINATION_WORDS = 8
MAX_ANSWER_DIGITS = 40
MAX_EXAMPLES = 5
EXAMPLE_CHARS = 160
_INTEGER = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_WORD = re.compile(r"\w+")
_MAIN_FIELDS = ("id", "problem", "answer")


class DataError(Exception):
    """A file of problems cannot be used at all; the message names it."""


@dataclass(frozen=True, slots=True)
class RawRow:
    """One row as it came. `line` counts from 1, the header of a CSV included; `error`: it is no row."""

    line: int
    values: dict[str, Any]
    error: str = ""


@dataclass(frozen=True, slots=True)
class Rejected:
    line: int
    filter: str
    reason: str
    problem: str


@dataclass(slots=True)
class Accepted:
    """A problem that passed so far, with the line it came from."""

    line: int
    problem: Problem


@dataclass(slots=True)
class Curated:
    """What came through all filters, in the order of the source, and what did not."""

    problems: list[Problem]
    rejected: list[Rejected]
    funnel: list[FunnelRow]


@dataclass(slots=True)
class _Funnel:
    accepted: list[Accepted]
    rejected: list[Rejected] = field(default_factory=list)
    rows: list[FunnelRow] = field(default_factory=list)

    def apply(self, name: str, reasons: Iterable[str]) -> None:
        """One reason per accepted problem, '' to keep it."""
        kept, refused = [], []
        for item, reason in zip(self.accepted, reasons, strict=True):
            if reason:
                refused.append(Rejected(item.line, name, reason, item.problem.text))
            else:
                kept.append(item)
        self._note(name, len(self.accepted), len(kept), refused)
        self.accepted = kept

    def _note(self, name: str, entered: int, left: int, refused: list[Rejected]) -> None:
        examples = [f"line {r.line}: {r.reason}: {r.problem[:EXAMPLE_CHARS]}" for r in refused[:MAX_EXAMPLES]]
        self.rows.append(FunnelRow(filter=name, entered=entered, left=left, examples=examples))
        self.rejected += refused


def read_rows(path: Path, limit: int | None = None) -> list[RawRow]:
    """Rows of a .csv file, or of JSON lines for any other ending; at most `limit` of them."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    rows = _csv_rows(data, path) if path.suffix.lower() == ".csv" else _json_rows(data)
    return [row for row, _ in zip(rows, range(limit), strict=False)] if limit is not None else list(rows)


def _json_rows(data: bytes) -> Iterator[RawRow]:
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = "not UTF-8" if isinstance(error, UnicodeDecodeError) else "not valid JSON"
            yield RawRow(number, {}, reason)
            continue
        if isinstance(value, dict):
            yield RawRow(number, value)
        else:
            yield RawRow(number, {}, "not a JSON object")


def _csv_rows(data: bytes, path: Path) -> Iterator[RawRow]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text (byte {error.start})") from error
    reader = csv.DictReader(io.StringIO(text, newline=""))
    missing = {"problem", "answer"} - set(reader.fieldnames or ())
    if missing:
        raise DataError(f"{path} has no column {sorted(missing)[0]!r} in its first line")
    line = reader.line_num + 1
    try:
        for values in reader:
            extra = "more cells than the header has columns" if None in values else ""
            yield RawRow(line, {k: v for k, v in values.items() if k is not None and v is not None}, extra)
            line = reader.line_num + 1
    except csv.Error as error:
        yield RawRow(line, {}, f"not valid CSV: {error}")


def curate_rows(
    rows: Sequence[RawRow], *, max_problem_chars: int, contaminated: frozenset[tuple[str, ...]] = frozenset()
) -> Curated:
    """The filters in order: schema, integer answer, length, duplicates, near-duplicates, contamination."""
    funnel = _Funnel([])
    checked = [(row, _check_schema(row)) for row in rows]
    refused = [Rejected(row.line, "schema", why, str(row.values.get("problem", ""))) for row, why in checked if why]
    funnel.accepted = [Accepted(row.line, _to_problem(row)) for row, why in checked if not why]
    funnel._note("schema", len(rows), len(funnel.accepted), refused)
    funnel.apply("integer answer", [_check_answer(a.problem.answer) for a in funnel.accepted])
    for item in funnel.accepted:
        item.problem = _with_answer(item.problem, str(int(item.problem.answer)))
    funnel.apply("length", [_check_length(a.problem.text, max_problem_chars) for a in funnel.accepted])
    funnel.apply("duplicate", _find_duplicates(funnel.accepted))
    funnel.apply("near-duplicate", _find_near_duplicates(funnel.accepted))
    funnel.apply("contamination", [_check_contamination(a.problem.text, contaminated) for a in funnel.accepted])
    problems = _with_unique_ids([a.problem for a in funnel.accepted])
    return Curated(problems, sorted(funnel.rejected, key=lambda r: r.line), funnel.rows)


def _check_schema(row: RawRow) -> str:
    if row.error:
        return row.error
    for name in ("problem", "answer"):
        value = row.values.get(name)
        if value is None or (isinstance(value, str) and not value.strip()):
            return f"field {name!r} is missing"
    if not isinstance(row.values["problem"], str):
        return "field 'problem' is not text"
    if isinstance(row.values["answer"], bool) or not isinstance(row.values["answer"], (str, int, float)):
        return "field 'answer' is neither text nor a number"
    return ""


def _to_problem(row: RawRow) -> Problem:
    text = clean_text(row.values["problem"]).strip()
    answer = row.values["answer"]
    if isinstance(answer, float) and answer.is_integer():
        answer = int(answer)
    given = row.values.get("id")
    identity = str(given) if isinstance(given, (str, int)) and str(given).strip() else make_problem_id(text)
    extra = {k: v if isinstance(v, str) else json.dumps(v) for k, v in row.values.items() if k not in _MAIN_FIELDS}
    return Problem(
        clean_text(identity), text, clean_text(str(answer)).strip(), {k: clean_text(v) for k, v in extra.items()}
    )


def make_problem_id(text: str) -> str:
    """A stable id of a problem that came without one."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _check_answer(answer: str) -> str:
    if not _INTEGER.fullmatch(answer):
        return f"the answer is not an integer: {answer[:60]!r}"
    if len(answer.lstrip("+-")) > MAX_ANSWER_DIGITS:
        return f"the answer has more than {MAX_ANSWER_DIGITS} digits"
    return ""


def _with_answer(problem: Problem, answer: str) -> Problem:
    return Problem(problem.id, problem.text, answer, problem.extra)


def _check_length(text: str, limit: int) -> str:
    return f"{len(text)} characters, more than {limit}" if len(text) > limit else ""


def normalise_text(text: str) -> str:
    """Equal for texts that differ in case, spacing or Unicode form only."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _find_duplicates(items: Sequence[Accepted]) -> list[str]:
    first: dict[str, int] = {}
    reasons = []
    for item in items:
        line = first.setdefault(normalise_text(item.problem.text), item.line)
        reasons.append("" if line == item.line else f"the same problem as line {line}")
    return reasons


def _find_near_duplicates(items: Sequence[Accepted]) -> list[str]:
    """Only problems with the same numbers are compared, each with those kept before it."""
    by_numbers: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for i, item in enumerate(items):
        by_numbers[tuple(sorted(_NUMBER.findall(item.problem.text)))].append(i)
    reasons = [""] * len(items)
    for members in by_numbers.values():
        if len(members) < 2:
            continue
        index = MinHashLSH(threshold=NEAR_DUPLICATE_SIMILARITY, num_perm=MINHASH_PERMUTATIONS)
        hashes: dict[int, MinHash] = {}
        for i in members:
            own = _minhash(items[i].problem.text)
            alike = [j for j in sorted(index.query(own)) if own.jaccard(hashes[j]) >= NEAR_DUPLICATE_SIMILARITY]
            if alike:
                reasons[i] = f"nearly the same problem as line {items[alike[0]].line}"
            else:
                index.insert(i, own)
                hashes[i] = own
    return reasons


def _minhash(text: str) -> MinHash:
    sketch = MinHash(num_perm=MINHASH_PERMUTATIONS)
    sketch.update_batch([" ".join(gram).encode() for gram in _word_grams(text, SHINGLE_WORDS)])
    return sketch


def _word_grams(text: str, size: int) -> set[tuple[str, ...]]:
    """Word n-grams of the text; a shorter text is one gram of its own."""
    words = _WORD.findall(normalise_text(text))
    return {tuple(words[i : i + size]) for i in range(max(1, len(words) - size + 1))}


def read_contaminated(paths: Iterable[Path]) -> frozenset[tuple[str, ...]]:
    """The word 8-grams of the problems of benchmarks."""
    grams: set[tuple[str, ...]] = set()
    for path in paths:
        for row in read_rows(path):
            if not row.error and isinstance(row.values.get("problem"), str):
                grams |= _word_grams(row.values["problem"], CONTAMINATION_WORDS)
    return frozenset(grams)


def _check_contamination(text: str, grams: frozenset[tuple[str, ...]]) -> str:
    shared = sorted(_word_grams(text, CONTAMINATION_WORDS) & grams) if grams else []
    return f"shares words with a benchmark: {' '.join(shared[0])!r}" if shared else ""


def _with_unique_ids(problems: Sequence[Problem]) -> list[Problem]:
    """A second problem with an id that is taken gets one made from its text."""
    seen: set[str] = set()
    unique = []
    for problem in problems:
        identity = make_problem_id(problem.text) if problem.id in seen else problem.id
        seen.add(identity)
        unique.append(Problem(identity, problem.text, problem.answer, problem.extra))
    return unique


def split_held_out(problems: Sequence[Problem], count: int, seed: int) -> tuple[list[Problem], list[Problem]]:
    """(train, held out). Who is held out depends on seed and text only, so equal texts are on one side."""

    def rank(i: int) -> str:
        return hashlib.sha256(f"{seed}:{normalise_text(problems[i].text)}".encode()).hexdigest()

    held_out = set(sorted(range(len(problems)), key=rank)[:count])
    return (
        [p for i, p in enumerate(problems) if i not in held_out],
        [p for i, p in enumerate(problems) if i in held_out],
    )


def dump_problems(problems: Iterable[Problem]) -> bytes:
    """JSON lines that `load_problems` reads back."""
    lines = [json.dumps(_to_record(problem), ensure_ascii=False) for problem in problems]
    return "".join(line + "\n" for line in lines).encode()


def _to_record(problem: Problem) -> dict[str, str]:
    return {**problem.extra, "id": problem.id, "problem": problem.text, "answer": problem.answer}


def load_problems(path: Path) -> list[Problem]:
    """Problems of a curated file or a benchmark; rows without problem and answer are an error."""
    problems = []
    for row in read_rows(path):
        if why := _check_schema(row):
            raise DataError(f"{path}, line {row.line}: {why}")
        problems.append(_to_problem(row))
    return _with_unique_ids(problems)
