"""The pretraining corpus: an endless, seeded stream of documents made from the problem generator.

Four kinds: whole transcripts with all the habits, beginnings of transcripts (a problem and the first call), copying
exercises (numbers, and a tool response into an answer) and bare programs with what they print. Problems that
`is_reserved` names are left out, so that the base model can be measured on problems it has not seen.
"""

import random
from collections.abc import Callable
from functools import partial

from trainer.data.snippets import response_text, run_snippet
from trainer.data.synthetic import DIFFICULTIES, FAMILIES, OUTPUT, SyntheticProblem, generate_problem, is_reserved
from trainer.data.transcripts import Demonstration, HabitMix, Message, demonstrate, final_answer, tool_call
from trainer.pretrain.chat import render_pieces

Pieces = list[tuple[str, bool]]

# Wider than the mix of fine-tuning: the base has to know every habit, above all the right programs.
CORPUS_MIX = HabitMix(proper=0.44, double_check=0.07, wrong_program=0.13, mistake=0.24, direct=0.12)
_EARLY_SHARES = (0.30, 0.30, 0.35, 0.05)  # transcripts, beginnings, copying, programs
_LATE_SHARES = (0.72, 0.10, 0.13, 0.05)


def draw_problem(rng: random.Random, *, reserved: bool = False) -> SyntheticProblem:
    while True:
        problem = generate_problem(rng, rng.choice(FAMILIES), rng.choice(DIFFICULTIES))
        if is_reserved(problem.id) is reserved:
            return problem


def draw_document(rng: random.Random, progress: float) -> Pieces:
    """One document as (text, worth full weight) pieces; short copying documents are more frequent early on."""
    ease = max(0.0, 1 - progress / 0.35)
    shares = [ease * early + (1 - ease) * late for early, late in zip(_EARLY_SHARES, _LATE_SHARES, strict=True)]
    kinds: tuple[Callable[[random.Random], Pieces], ...] = (_transcript, _beginning, _copying, _program)
    return rng.choices(kinds, shares)[0](rng)


def draw_demonstration(rng: random.Random, mix: HabitMix, *, reserved: bool = False) -> Demonstration:
    lines = rng.choices((1, 2, 0), (8, 1, 1))[0]
    return demonstrate(
        rng, draw_problem(rng, reserved=reserved), mix, respond=partial(response_text, error_lines=lines)
    )


def _transcript(rng: random.Random) -> Pieces:
    return render_pieces(draw_demonstration(rng, CORPUS_MIX).messages)


def _beginning(rng: random.Random) -> Pieces:
    """The problem and the first call only: the densest practice in writing programs."""
    problem = draw_problem(rng)
    code = rng.choice(problem.solutions)[0]
    call = Message("assistant", f"I will compute this with Python.</reason>\n{tool_call(code)}", trained=True)
    return render_pieces((Message("user", problem.problem, trained=False), call))


def _copying(rng: random.Random) -> Pieces:
    number = _any_number(rng)
    if rng.random() < 0.5:
        others = " ".join(_any_number(rng) for _ in range(rng.randint(0, 3)))
        line = f"{number} {others}".strip()
        return render_pieces(
            (Message("user", f"Repeat: {line}", trained=False), Message("assistant", f"{line}</reason>", trained=True))
        )
    words = rng.choice(("The output is {0}.", "The program printed {0}.", "Now I have the number."))
    answer = f"{words.replace('{0}', number)}</reason>\n{final_answer(number)}"
    return render_pieces((Message("tool", number, trained=False), Message("assistant", answer, trained=True)))


def _program(rng: random.Random) -> Pieces:
    problem = draw_problem(rng)
    code = rng.choice((*problem.broken, *(programs[0] for programs in problem.solutions + problem.wrong)))
    if OUTPUT in code:
        raise AssertionError("a first program never refers to an earlier output")
    return [(f"{code}\n", True), (f"# {response_text(run_snippet(code))}\n", False)]


def _any_number(rng: random.Random) -> str:
    digits = rng.randint(1, 11)
    return str(rng.randint(10 ** (digits - 1), 10**digits - 1))
