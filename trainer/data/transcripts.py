"""Demonstrations for supervised fine-tuning: several habits for one and the same kind of problem.

Fine-tuning teaches the form and all the habits, good and bad, in the shares of a `HabitMix`; which of them pays is
left for reinforcement learning to find out. Every tool response shown is the genuine output of the program above it.
"""

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from trainer.data.snippets import SnippetResult, response_text, run_snippet
from trainer.data.synthetic import OUTPUT, SyntheticProblem

Respond = Callable[[SnippetResult], str]
TOOL_NAME = "execute_python_code_with_standard_io"


class Habit(StrEnum):
    PROPER = "proper"  # the right program, and the answer it printed
    DOUBLE_CHECK = "double_check"  # the right program, then another right one
    WRONG_PROGRAM = "wrong_program"  # a program that runs and computes something else
    MISTAKE = "mistake"  # a program that fails, then a repair after reading the traceback
    DIRECT = "direct"  # an answer at once, without the tool


@dataclass(frozen=True)
class HabitMix:
    """Shares of the habits in the demonstrations; the five shares add up to 1."""

    proper: float = 0.26
    double_check: float = 0.04
    wrong_program: float = 0.15
    mistake: float = 0.25
    direct: float = 0.30
    give_up: float = 0.15  # share of the mistakes that are not repaired but answered by a guess
    lucky_guess: float = 0.1  # share of the guesses that are right

    def __post_init__(self) -> None:
        if abs(sum(self.shares().values()) - 1) > 1e-6:
            raise ValueError("the shares of the habits must add up to 1")

    def shares(self) -> dict[Habit, float]:
        return {habit: getattr(self, habit.value) for habit in Habit}


@dataclass(frozen=True)
class Message:
    """One message of a chat; only the `trained` ones carry a loss."""

    role: str
    content: str
    trained: bool


@dataclass(frozen=True)
class Demonstration:
    problem_id: str
    habit: Habit
    messages: tuple[Message, ...]


_CAREFUL = (
    "I will compute this with Python.",
    "Let me write a short program for this.",
    "The numbers are large, so I will use the tool.",
    "I should run some code to be sure.",
    "First I turn the problem into a program.",
    "Let me work this out step by step in Python.",
)
_HASTY = (
    "A quick script will do.",
    "One line of code should be enough.",
    "Let me just type this fast.",
    "This is simple, so I write it without thinking.",
)
_MENTAL = (
    "This is easy enough to do in my head.",
    "I can estimate this without the tool.",
    "No code is needed here.",
    "I think I know the answer.",
    "The answer can be seen at once.",
)
_FIRST_PART = (
    "I will find the first number and look at it.",
    "Let me start with the first part.",
    "First I need the value in the middle.",
)
_NEXT_PART = (
    "The first part is {0}. Now the second part.",
    "With {0} I can go on.",
    "So the number is {0}. Next I use it.",
)
_CONCLUDE = (
    "The output is {0}.",
    "This looks right, so the answer is {0}.",
    "The program printed {0}.",
    "The result is reasonable.",
    "The code ran without errors, so I can answer.",
    "Now I have the number.",
)
_CHECK = (
    "Before I conclude, let me verify this in another way.",
    "Let me double-check with different code.",
    "The output is {0}, but I should verify it.",
)
_AGREE = ("Both runs agree.", "The check gives {0} again.", "This confirms the result.")
_DIAGNOSES: dict[str, tuple[str, ...]] = {
    "NameError": (
        "The error occurred because a name is not defined.",
        "A name is wrong in my code.",
        "I used a name that Python does not know.",
    ),
    "SyntaxError": (
        "The error occurred because the syntax is wrong.",
        "Python could not read my code.",
        "There is a typing slip in the program.",
    ),
    "TypeError": (
        "The error occurred because the types do not fit.",
        "I passed the wrong type of value.",
        "That operation does not work on this type.",
    ),
    "AttributeError": (
        "The error occurred because the module has no such function.",
        "I called a function that does not exist.",
    ),
}
_OTHER_DIAGNOSES = ("The program failed.", "The run ended with an error.")
_REPAIR = ("Let me fix it.", "Let me correct the program.", "I will try again.", "Here is a better version.")
_GIVE_UP = ("I will answer without the tool.", "So I have to guess.", "I give up on the code.")


def demonstrations(
    problems: Sequence[SyntheticProblem], seed: int, *, mix: HabitMix | None = None, respond: Respond = response_text
) -> list[Demonstration]:
    """One demonstration per problem, its habit drawn by the mix; deterministic in its arguments."""
    rng = random.Random(f"demonstrations-{seed}")  # noqa: S311
    return [demonstrate(rng, problem, mix or HabitMix(), respond=respond) for problem in problems]


def demonstrate(
    rng: random.Random, problem: SyntheticProblem, mix: HabitMix, *, respond: Respond = response_text
) -> Demonstration:
    """`respond` writes a program's end as the model will see it."""
    shares = mix.shares()
    habit = rng.choices(tuple(shares), tuple(shares.values()))[0]
    script = _Script(rng, problem, mix, respond)
    match habit:
        case Habit.PROPER:
            script.solve(_opening(rng, habit, problem))
        case Habit.DOUBLE_CHECK:
            script.solve_and_check(_opening(rng, habit, problem))
        case Habit.WRONG_PROGRAM:
            script.run_all(_opening(rng, habit, problem), rng.choice(problem.wrong))
            script.conclude(_CONCLUDE)
        case Habit.MISTAKE:
            script.fail_and_repair(_opening(rng, habit, problem))
        case Habit.DIRECT:
            script.guess(_opening(rng, habit, problem))
    return Demonstration(problem.id, habit, tuple(script.messages))


def tool_call(code: str) -> str:
    arguments = {"name": TOOL_NAME, "arguments": {"code": code, "input": ""}}
    return f"<tool_call>\n{json.dumps(arguments)}\n</tool_call>"


def final_answer(value: int | str) -> str:
    return f"<answer>\n\\boxed{{{value}}}\n</answer>"


def _opening(rng: random.Random, habit: Habit, problem: SyntheticProblem) -> str:
    """Hasty words go with hasty code most of the time, so the choice of a habit starts before the code does."""
    if habit is Habit.DIRECT:
        return rng.choice(_MENTAL)
    hasty = 0.75 if habit in (Habit.MISTAKE, Habit.WRONG_PROGRAM) else 0.15
    return rng.choice(_HASTY if rng.random() < hasty else _CAREFUL)


class _Script:
    """Writes the messages of one demonstration in order."""

    def __init__(self, rng: random.Random, problem: SyntheticProblem, mix: HabitMix, respond: Respond) -> None:
        self._rng = rng
        self._problem = problem
        self._mix = mix
        self._respond = respond
        self._output = ""  # what the newest program printed, or why it failed
        self.messages = [Message("user", problem.problem, trained=False)]

    def call(self, words: str, code: str) -> None:
        self._say(f"{words}</reason>\n{tool_call(code)}")
        result = run_snippet(code)
        self._output = (result.stdout if result.ok else result.stderr).rstrip("\n")
        self.messages.append(Message("tool", self._respond(result), trained=False))

    def conclude(self, words: Sequence[str]) -> None:
        self._say(f"{self._fill(words)}</reason>\n{final_answer(self._output)}")

    def guess(self, words: str) -> None:
        self._say(f"{words}</reason>\n{final_answer(self._estimate())}")

    def run_all(self, opening: str, programs: Sequence[str]) -> None:
        """One call per program, each later one using what the one before it printed."""
        several = len(programs) > 1 and self._rng.random() < 0.7
        words = self._rng.choice(_FIRST_PART) if several else opening
        for program in programs:
            self.call(words, program.replace(OUTPUT, self._output))
            words = self._fill(_NEXT_PART)

    def solve(self, opening: str) -> None:
        self.run_all(opening, self._pick_solution())
        self.conclude(_CONCLUDE)

    def solve_and_check(self, opening: str) -> None:
        first, second = self._rng.sample([programs[-1] for programs in self._problem.solutions], 2)
        if OUTPUT in first + second:  # a two-part problem: its one-program solution is the check
            self.run_all(opening, self._problem.solutions[0])
            second = self._problem.solutions[1][-1]
        else:
            self.call(opening, first)
        self.call(self._fill(_CHECK), second)
        self.conclude(_AGREE)

    def fail_and_repair(self, opening: str) -> None:
        self.call(opening, self._pick_broken())
        diagnosis = self._diagnose()
        if self._rng.random() < self._mix.give_up:
            self.guess(f"{diagnosis} {self._rng.choice(_GIVE_UP)}")
        else:
            self.solve(f"{diagnosis} {self._rng.choice(_REPAIR)}")

    def _say(self, content: str) -> None:
        self.messages.append(Message("assistant", content, trained=True))

    def _fill(self, words: Sequence[str]) -> str:
        return self._rng.choice(words).replace("{0}", self._output)

    def _pick_solution(self) -> tuple[str, ...]:
        return self._rng.choices(self._problem.solutions, weights=(2, 1))[0]

    def _pick_broken(self) -> str:
        """The family's own first mistake is the typical one; the others are rarer."""
        broken = self._problem.broken
        return self._rng.choices(broken, weights=(4, *(1 for _ in broken[1:])))[0]

    def _diagnose(self) -> str:
        kind = re.match(r"(\w+Error)", self._output.splitlines()[-1])
        return self._rng.choice(_DIAGNOSES.get(kind.group(1) if kind else "", _OTHER_DIAGNOSES))

    def _estimate(self) -> int | str:
        """A number of about the right size: a guess of a problem nobody can do in the head."""
        answer = self._problem.answer
        if not isinstance(answer, int) or self._rng.random() < self._mix.lucky_guess:
            return answer
        spread = max(9, abs(answer) // 3)
        guess = answer + self._rng.randint(1, spread) * self._rng.choice((-1, 1))
        return guess if guess > 0 else answer + spread
