"""Generated integer-answer word problems that need the Python tool, graded in difficulty from 1 to 5.

`generate_problems` is deterministic in its arguments. A share of `noise` makes the list a realistic raw set: rows
that came twice and rows whose answer is no integer, which curation has to find and drop.
"""

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from trainer.data import synthetic_families as families_of

OUTPUT = families_of.OUTPUT
DIFFICULTIES = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class SyntheticProblem:
    """A problem, its answer, and the programs a careful, a hasty and a mistaken solver would write for it.

    Each entry of `solutions` and `wrong` is a sequence of programs, one per tool call; `OUTPUT` in a later program
    stands for what the program before it printed. `broken` holds versions of the first program that fail.
    """

    id: str
    problem: str
    answer: int | str  # a string only in a noise row
    family: str
    difficulty: int
    solutions: tuple[tuple[str, ...], ...]
    wrong: tuple[tuple[str, ...], ...]
    broken: tuple[str, ...]


_BUILDERS: dict[str, Callable[[random.Random, int], families_of.Draft]] = {
    "stock": families_of.stock,
    "remainder": families_of.remainder,
    "range_sum": families_of.range_sum,
    "common": families_of.common,
    "counting": families_of.counting,
    "digits": families_of.digits,
    "choose": families_of.choose,
    "growth": families_of.growth,
    "chain": families_of.chain,
}
FAMILIES: tuple[str, ...] = tuple(_BUILDERS)


def problem_id(problem: str) -> str:
    """Equal texts get equal ids, so a duplicate is one by id as well."""
    return hashlib.sha256(problem.encode()).hexdigest()[:16]


def is_reserved(identifier: str) -> bool:
    """One problem in eight is never shown to the base model, so that its figures are measured on unseen text."""
    return int(identifier[:2], 16) % 8 == 0


def generate_problem(rng: random.Random, family: str, difficulty: int) -> SyntheticProblem:
    if difficulty not in DIFFICULTIES:
        raise ValueError(f"difficulty must be 1 to 5, not {difficulty}")
    draft = _BUILDERS[family](rng, difficulty)
    return SyntheticProblem(
        id=problem_id(draft.problem),
        problem=draft.problem,
        answer=draft.answer,
        family=family,
        difficulty=difficulty,
        solutions=draft.solutions,
        wrong=draft.wrong,
        broken=families_of.broken_versions(draft),
    )


def generate_problems(
    count: int,
    seed: int,
    *,
    families: Sequence[str] | None = None,
    difficulties: Sequence[int] = DIFFICULTIES,
    noise: float = 0.0,
) -> list[SyntheticProblem]:
    """`count` problems over all families and difficulties; a share of `noise` are duplicates or unusable rows."""
    rng = random.Random(f"synthetic-{seed}")  # noqa: S311
    chosen = tuple(families) if families is not None else FAMILIES
    unknown = set(chosen) - set(FAMILIES)
    if unknown:
        raise ValueError(f"unknown families: {', '.join(sorted(unknown))}")
    problems: list[SyntheticProblem] = []
    for _ in range(count):
        if problems and rng.random() < noise:
            problems.append(_spoil(rng, rng.choice(problems)))
        else:
            problems.append(generate_problem(rng, rng.choice(chosen), rng.choice(tuple(difficulties))))
    return problems


def _spoil(rng: random.Random, problem: SyntheticProblem) -> SyntheticProblem:
    """A duplicate as it came, one with other spacing and capitals, or a row whose answer is no integer."""
    kind = rng.choice(("duplicate", "reworded", "fraction", "missing"))
    if kind == "duplicate":
        return problem
    if kind == "reworded":
        text = problem.problem.upper() if rng.random() < 0.5 else problem.problem.replace(" ", "  ")
        return replace(problem, problem=text, id=problem_id(text))
    text = f"{problem.problem} Give the result to one decimal place." if kind == "fraction" else problem.problem
    answer = f"{problem.answer}.5" if kind == "fraction" else "unknown"
    return replace(problem, problem=text, id=problem_id(text), answer=answer)
