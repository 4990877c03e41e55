"""What the base model can do on problems it never saw: write the program, copy the numbers, read the output.

No program of the model is run here: its code is compared with the generator's own right programs.
"""

import ast
import json
import random
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from trainer.data.snippets import response_text, run_snippet
from trainer.data.synthetic import SyntheticProblem
from trainer.data.transcripts import Message, tool_call
from trainer.pretrain.chat import ASSISTANT_START, render_pieces
from trainer.pretrain.corpus import draw_problem

_WORDS = "I will compute this with Python."
_MAX_NEW_TOKENS = 140
_BATCH_ROWS = 64


@dataclass(frozen=True)
class BaseFigures:
    """Shares of held-out problems, greedy decoding."""

    parameters: int
    problems: int
    code_is_valid: float  # the call parses as JSON and its code as Python
    numbers_copied: float  # every number in the code stands in the problem (0 and 1 are free)
    code_is_right: float  # the code is one of the right programs, character by character
    answer_copied: float  # the boxed answer is the number the tool printed
    mistake_repaired: float  # after an error, the next code is a right program
    by_family: dict[str, float]  # code_is_right

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def evaluate_base(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, *, problems: int = 270, seed: int = 7
) -> BaseFigures:
    rng = random.Random(f"evaluate-{seed}")  # noqa: S311
    drawn = [draw_problem(rng, reserved=True) for _ in range(problems)]
    writer = _Writer(model, tokenizer)
    codes = [_code(text) for text in writer.complete([_first_call_prompt(problem) for problem in drawn])]
    right = [code in {first for first, *_ in p.solutions} for p, code in zip(drawn, codes, strict=True)]
    answers = writer.complete([_answer_prompt(problem) for problem in drawn])
    repairs = [_code(text) for text in writer.complete([_repair_prompt(rng, problem) for problem in drawn])]
    families = sorted({problem.family for problem in drawn})
    return BaseFigures(
        parameters=sum(weight.numel() for weight in model.parameters()),
        problems=problems,
        code_is_valid=_share([_is_python(code) for code in codes]),
        numbers_copied=_share([_numbers_match(p.problem, code) for p, code in zip(drawn, codes, strict=True)]),
        code_is_right=_share(right),
        answer_copied=_share([f"\\boxed{{{p.answer}}}" in text for p, text in zip(drawn, answers, strict=True)]),
        mistake_repaired=_share(
            [code in {first for first, *_ in p.solutions} for p, code in zip(drawn, repairs, strict=True)]
        ),
        by_family={
            family: _share([r for p, r in zip(drawn, right, strict=True) if p.family == family]) for family in families
        },
    )


class _Writer:
    """Greedy continuation of many prompts."""

    def __init__(self, model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
        self._model = model.eval()
        self._tokenizer = tokenizer

    @torch.no_grad()
    def complete(self, prompts: Sequence[str]) -> list[str]:
        texts: list[str] = []
        for start in range(0, len(prompts), _BATCH_ROWS):
            rows = [self._tokenizer.backend_tokenizer.encode(text).ids for text in prompts[start : start + _BATCH_ROWS]]
            width = max(map(len, rows))
            pad = self._tokenizer.pad_token_id
            ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows])
            mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
            out = self._model.generate(
                input_ids=ids, attention_mask=mask, max_new_tokens=_MAX_NEW_TOKENS, do_sample=False
            )
            texts += self._tokenizer.batch_decode(out[:, width:], skip_special_tokens=False)
        return texts


def _first_call_prompt(problem: SyntheticProblem) -> str:
    return _join([Message("user", problem.problem, False)]) + f"{ASSISTANT_START}{_WORDS}</reason>\n<tool_call>"


def _answer_prompt(problem: SyntheticProblem) -> str:
    program = problem.solutions[-1][-1]  # the last way to solve it is always a single program
    return _after_call(problem, program)


def _repair_prompt(rng: random.Random, problem: SyntheticProblem) -> str:
    return _after_call(problem, rng.choice(problem.broken)) + "Let me fix it.</reason>\n<tool_call>"


def _after_call(problem: SyntheticProblem, code: str) -> str:
    messages = [
        Message("user", problem.problem, False),
        Message("assistant", f"{_WORDS}</reason>\n{tool_call(code)}", True),
        Message("tool", response_text(run_snippet(code)), False),
    ]
    return _join(messages) + ASSISTANT_START


def _join(messages: Sequence[Message]) -> str:
    return "".join(text for text, _ in render_pieces(messages))


def _code(text: str) -> str:
    """The code of the call in a completion; empty when there is none or it is no JSON."""
    body = re.search(r"\{.*?\}\}(?=\n</tool_call>)", text, re.DOTALL)
    try:
        return str(json.loads(body.group())["arguments"]["code"]) if body else ""
    except (ValueError, KeyError, TypeError):
        return ""


def _is_python(code: str) -> bool:
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return bool(code)


def _numbers_match(problem: str, code: str) -> bool:
    asked, written = set(re.findall(r"\d+", problem)), set(re.findall(r"\d+", code))
    return bool(code) and written <= asked | {"0", "1"}


def _share(hits: Sequence[bool]) -> float:
    return round(sum(hits) / len(hits), 4) if hits else 0.0
