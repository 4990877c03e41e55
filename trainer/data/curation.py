"""The rules of curation, as a funnel: each row is accepted or refused once, by the first check it fails."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from contracts.curation import SCHEMA, Check, RejectedRow
from contracts.events import FunnelRow
from contracts.text import clean_text
from trainer.data.answers import judge_answer, normalise_answer
from trainer.data.overlap import Grams, Refusal, find_contamination, find_duplicates, find_near_duplicates
from trainer.data.problems import (
    check_schema,
    check_text,
    dump_json,
    find_answer,
    find_problem,
    to_problem,
    with_answer,
    with_unique_ids,
)
from trainer.data.sources import RawRow
from trainer.rollout.trajectory import Problem

MAX_EXAMPLES = 5
EXAMPLE_CHARS = 160
ANSWER_CHECKS = (Check.UNVERIFIABLE, Check.COMPOSITE, Check.HUGE, Check.INTEGER)


@dataclass(slots=True)
class Accepted:
    """A problem that passed so far, with the row it came from."""

    row: RawRow
    problem: Problem


@dataclass(slots=True)
class Funnel:
    """What came through the checks so far, in the order of the rows, and what did not, check by check."""

    accepted: list[Accepted]
    rejected: list[RejectedRow] = field(default_factory=list)
    rows: list[FunnelRow] = field(default_factory=list)

    @property
    def problems(self) -> list[Problem]:
        return [item.problem for item in self.accepted]

    def apply(self, name: str, refusals: Iterable[Refusal | None]) -> None:
        """One refusal per accepted problem, None to keep it."""
        kept, refused = [], []
        for item, refusal in zip(self.accepted, refusals, strict=True):
            if refusal is None:
                kept.append(item)
            else:
                refused.append(_reject(item.row, name, refusal, item.problem))
        self.note(name, len(self.accepted), len(kept), refused)
        self.accepted = kept

    def note(self, name: str, entered: int, left: int, refused: Sequence[RejectedRow]) -> None:
        examples = [f"line {r.line}: {r.reason}: {r.problem[:EXAMPLE_CHARS]}" for r in refused[:MAX_EXAMPLES]]
        self.rows.append(FunnelRow(filter=name, entered=entered, left=left, examples=examples))
        self.rejected += refused


def curate_rows(
    rows: Sequence[RawRow], checks: frozenset[Check], *, max_problem_chars: int, grams: Grams | None = None
) -> Funnel:
    """All checks that are rules, in the order of `Check`; answers that are integers get their one spelling."""
    funnel = read_schema(rows)
    faults = [judge_answer(problem.answer) for problem in funnel.problems]
    faults_by_row = {id(item.row): fault for item, fault in zip(funnel.accepted, faults, strict=True)}
    for item in funnel.accepted:
        item.problem = with_answer(item.problem, normalise_answer(item.problem.answer))
    for check in Check:
        if check not in checks:
            continue
        if check in ANSWER_CHECKS:
            mine = (faults_by_row[id(item.row)] for item in funnel.accepted)
            funnel.apply(check, [Refusal(f[1]) if f and f[0] is check else None for f in mine])
        elif rule := _rule(check, max_problem_chars, grams or {}):
            funnel.apply(check, rule(funnel.problems))
    return funnel


def _rule(
    check: Check, max_problem_chars: int, grams: Grams
) -> Callable[[Sequence[Problem]], list[Refusal | None]] | None:
    match check:
        case Check.LENGTH:
            return lambda problems: [_check_length(problem.text, max_problem_chars) for problem in problems]
        case Check.DUPLICATE:
            return find_duplicates
        case Check.NEAR_DUPLICATE:
            return find_near_duplicates
        case Check.CONTAMINATION:
            return lambda problems: [find_contamination(problem, grams) for problem in problems]
    return None


def read_schema(rows: Sequence[RawRow]) -> Funnel:
    """The rows that are problems at all."""
    checked = [(row, check_schema(row) or check_text(row)) for row in rows]
    whole = [row for row, why in checked if not why]
    problems = with_unique_ids([to_problem(row) for row in whole])
    funnel = Funnel([Accepted(row, problem) for row, problem in zip(whole, problems, strict=True)])
    refused = [_reject(row, SCHEMA, Refusal(why), None) for row, why in checked if why]
    funnel.note(SCHEMA, len(rows), len(funnel.accepted), refused)
    return funnel


def _check_length(text: str, limit: int) -> Refusal | None:
    return Refusal(f"{len(text)} characters, more than {limit}") if len(text) > limit else None


def _reject(row: RawRow, name: str, refusal: Refusal, problem: Problem | None) -> RejectedRow:
    """The problem as the check saw it; of a row that is none, what there is."""
    text, answer = find_problem(row.values)[1], find_answer(row.values)[1]
    identity = problem.id if problem else str(row.values.get("id", ""))
    shown = problem.text if problem else ("" if text is None else str(text))
    return RejectedRow(
        source=clean_text(row.source),
        line=row.line,
        id=clean_text(identity),
        filter=name,
        reason=clean_text(refusal.reason),
        match=clean_text(refusal.match),
        problem=clean_text(shown),
        answer=clean_text("" if answer is None else str(answer)),
        row=clean_text(row.text if row.error else dump_json(row.values)),
    )
