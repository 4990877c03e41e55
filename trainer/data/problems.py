"""Problems: from a row to a problem, to a file and back, and apart into training and held-out ones."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from contracts.text import NO_TEXT, clean_text
from trainer.data.overlap import normalise_text
from trainer.data.sources import ANSWER_FIELDS, PROBLEM_FIELDS, DataError, RawRow, read_rows
from trainer.rollout.trajectory import Problem

_MAIN_FIELDS = ("id", "problem", "answer")


def find_problem(values: dict[str, Any]) -> tuple[str, Any]:
    """(field, value) of the problem; of a chat of one user message its content, as the released sets hold it."""
    name = next((n for n in PROBLEM_FIELDS if values.get(n) is not None), PROBLEM_FIELDS[0])
    value = values.get(name)
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        value = value[0].get("content")
    return name, value


def find_answer(values: dict[str, Any]) -> tuple[str, Any]:
    """(field, value) of the answer; the released sets hold it as the ground truth of a reward model."""
    name = next((n for n in ANSWER_FIELDS if values.get(n) is not None), ANSWER_FIELDS[0])
    rule = values.get("reward_model")
    if values.get(name) is None and isinstance(rule, dict):
        return "reward_model", rule.get("ground_truth")
    return name, values.get(name)


def check_schema(row: RawRow) -> str:
    """What keeps the row from being a problem; '' where nothing does."""
    if row.error:
        return row.error
    (problem_field, problem), (answer_field, answer) = find_problem(row.values), find_answer(row.values)
    for field, value in ((problem_field, problem), (answer_field, answer)):
        if value is None or (isinstance(value, str) and not value.strip()):
            return f"field {field!r} is missing or empty"
    if not isinstance(problem, str):
        return f"field {problem_field!r} is not text: a {type(problem).__name__}"
    if isinstance(answer, bool) or not isinstance(answer, (str, int, float)):
        return f"field {answer_field!r} is neither text nor a number: a {type(answer).__name__}"
    return ""


def check_text(row: RawRow) -> str:
    """Damage in the problem or the answer of a row that passed `check_schema`: characters that are no text, which
    no file of UTF-8 and no PostgreSQL can hold. '' where there is none. In other columns they are replaced."""
    for field, value in (find_problem(row.values), find_answer(row.values)):
        if isinstance(value, str) and (found := NO_TEXT.search(value)):
            what = "NUL character" if found[0] == "\0" else "lone surrogate"
            return f"field {field!r} holds a {what} at character {found.start() + 1}"
    return ""


def to_problem(row: RawRow) -> Problem:
    """Of a row that passed `check_schema`. Columns that are no part of a problem are kept as text."""
    problem_field, problem = find_problem(row.values)
    answer_field, answer = find_answer(row.values)
    text = clean_text(problem).strip()
    if isinstance(answer, float) and answer.is_integer():
        answer = int(answer)
    given = row.values.get("id")
    identity = str(given) if isinstance(given, (str, int)) and str(given).strip() else make_problem_id(text)
    used = {*_MAIN_FIELDS, problem_field, answer_field}
    extra = {k: v if isinstance(v, str) else dump_json(v) for k, v in row.values.items() if k not in used}
    return Problem(
        clean_text(identity),
        text,
        clean_text(str(answer)).strip(),
        {clean_text(k): clean_text(v) for k, v in extra.items()},
    )


def dump_json(value: Any) -> str:
    """Any column as JSON; what JSON has no type for as its text."""
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:
        return "(nested too deep to be written)"


def make_problem_id(text: str) -> str:
    """A stable id of a problem that came without one."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def with_answer(problem: Problem, answer: str) -> Problem:
    return Problem(problem.id, problem.text, answer, problem.extra)


def with_unique_ids(problems: Sequence[Problem]) -> list[Problem]:
    """A second problem with an id that is taken gets one made from its text, with a number where that is taken too."""
    seen: set[str] = set()
    unique = []
    for problem in problems:
        identity = problem.id if problem.id not in seen else make_problem_id(problem.text)
        if identity in seen:
            identity = next(name for i in count(2) if (name := f"{identity}-{i}") not in seen)
        seen.add(identity)
        unique.append(Problem(identity, problem.text, problem.answer, problem.extra))
    return unique


def split_held_out(problems: Sequence[Problem], size: int, seed: int) -> tuple[list[Problem], list[Problem]]:
    """(train, held out). Who is held out depends on seed and text only, so equal texts are on one side."""

    def rank(i: int) -> str:
        return hashlib.sha256(f"{seed}:{normalise_text(problems[i].text)}".encode()).hexdigest()

    held_out = set(sorted(range(len(problems)), key=rank)[:size])
    return (
        [p for i, p in enumerate(problems) if i not in held_out],
        [p for i, p in enumerate(problems) if i in held_out],
    )


def dump_problems(problems: Iterable[Problem]) -> bytes:
    """JSON lines that `load_problems` reads back."""
    return "".join(line + "\n" for line in map(_to_line, problems)).encode()


def compute_version(problems: Iterable[Problem]) -> str:
    """SHA-256 of the problems with all their columns, whatever their order."""
    digest = hashlib.sha256()
    for line in sorted(map(_to_line, problems)):
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def _to_line(problem: Problem) -> str:
    record = {
        **dict(sorted(problem.extra.items())),
        "id": problem.id,
        "problem": problem.text,
        "answer": problem.answer,
    }
    return json.dumps(record, ensure_ascii=False)


def load_problems(path: Path) -> list[Problem]:
    """Problems of a curated file or a benchmark; rows without problem and answer are an error."""
    problems = []
    for row in read_rows(path):
        if why := check_schema(row):
            raise DataError(f"{path}, line {row.line}: {why}")
        problems.append(to_problem(row))
    return with_unique_ids(problems)
