"""The problem generator: its programs really give its answers, and the same seed gives the same problems."""

import random
from dataclasses import replace

import pytest

from trainer.data.snippets import response_text, run_snippet
from trainer.data.synthetic import (
    DIFFICULTIES,
    FAMILIES,
    OUTPUT,
    SyntheticProblem,
    generate_problem,
    generate_problems,
    problem_id,
)


def run_programs(programs: tuple[str, ...]) -> str:
    printed = ""
    for program in programs:
        result = run_snippet(program.replace(OUTPUT, printed))
        assert result.ok, (program, result.stderr)
        printed = result.stdout.strip()
    return printed


@pytest.fixture(scope="module")
def sample() -> list[SyntheticProblem]:
    rng = random.Random(3)
    return [generate_problem(rng, f, d) for f in FAMILIES for d in DIFFICULTIES for _ in range(6)]


def test_there_are_at_least_six_families_of_five_difficulties(sample: list[SyntheticProblem]) -> None:
    assert len(FAMILIES) >= 6
    assert {(p.family, p.difficulty) for p in sample} == {(f, d) for f in FAMILIES for d in DIFFICULTIES}


def test_every_solution_prints_the_answer(sample: list[SyntheticProblem]) -> None:
    for problem in sample:
        for programs in problem.solutions:
            assert run_programs(programs) == str(problem.answer), problem


def test_every_broken_program_fails(sample: list[SyntheticProblem]) -> None:
    for problem in sample:
        for program in problem.broken:
            assert not run_snippet(program).ok, program


def test_wrong_programs_run_and_nearly_never_hit_the_answer(sample: list[SyntheticProblem]) -> None:
    hits = [run_programs(programs) == str(p.answer) for p in sample for programs in p.wrong]
    assert sum(hits) / len(hits) < 0.05


def test_some_problems_are_solved_in_two_calls(sample: list[SyntheticProblem]) -> None:
    two_calls = [p for p in sample if any(len(programs) == 2 for programs in p.solutions)]
    assert {p.family for p in two_calls} == {"chain"}
    assert all(OUTPUT in p.solutions[0][1] for p in two_calls)


def test_harder_problems_have_longer_numbers() -> None:
    rng = random.Random(5)

    def digits(difficulty: int) -> float:
        texts = [generate_problem(rng, f, difficulty).problem for f in FAMILIES for _ in range(20)]
        return sum(c.isdigit() for text in texts for c in text) / len(texts)

    lengths = [digits(d) for d in DIFFICULTIES]
    assert lengths[0] < lengths[2] < lengths[4]


def test_a_seed_gives_the_same_problems_and_another_seed_others() -> None:
    assert generate_problems(40, 1) == generate_problems(40, 1)
    assert generate_problems(40, 1) != generate_problems(40, 2)


def test_an_id_is_of_the_text_alone() -> None:
    problem = generate_problems(1, 1)[0]
    assert problem.id == problem_id(problem.problem)
    assert problem_id("What is 2+2?") == "52cb6b5e4a038af1"


def test_only_the_families_and_difficulties_asked_for_come() -> None:
    problems = generate_problems(30, 1, families=("digits", "stock"), difficulties=(2, 4))
    assert {p.family for p in problems} == {"digits", "stock"}
    assert {p.difficulty for p in problems} == {2, 4}


def test_an_unknown_family_and_an_impossible_difficulty_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown families: magic"):
        generate_problems(1, 1, families=("magic",))
    with pytest.raises(ValueError, match="difficulty must be 1 to 5, not 6"):
        generate_problem(random.Random(1), "stock", 6)


def test_noise_adds_duplicates_and_answers_that_are_no_integers() -> None:
    clean, noisy = generate_problems(400, 1), generate_problems(400, 1, noise=0.3)
    assert all(isinstance(p.answer, int) for p in clean)
    unusable = [p for p in noisy if isinstance(p.answer, str)]
    repeated = len(noisy) - len({p.id for p in noisy})
    assert 20 < len(unusable) < 120
    assert repeated > 20


def test_problems_do_not_change() -> None:
    problem = generate_problems(1, 1)[0]
    assert replace(problem, answer=0) != problem
    with pytest.raises(AttributeError):
        problem.answer = 0  # type: ignore[misc]


def test_an_error_is_shown_as_the_interpreter_says_it() -> None:
    result = run_snippet("prnt(3*4)")
    assert response_text(result) == "NameError: name 'prnt' is not defined. Did you mean: 'print'?"
    whole = response_text(result, error_lines=0)
    assert whole.startswith(
        'Traceback (most recent call last):\n  File "main.py", line 1, in <module>\n    prnt(3*4)\n'
    )


def test_an_output_is_shown_without_its_last_newline_and_an_empty_one_is_named() -> None:
    assert response_text(run_snippet("print(7)\nprint(8)")) == "7\n8"
    assert response_text(run_snippet("x = 7")) == "(no output)"
    assert response_text(run_snippet("print('a'*300)"), max_chars=10) == "aaaaa...aaaaa"
