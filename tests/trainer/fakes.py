"""A scripted engine, a scripted tool and a grader of exact strings: the agent loop without a model or a sandbox."""

from collections.abc import Callable, Sequence
from pathlib import Path

from contracts.scoring import Grade, Graded
from contracts.trajectory import EntropyKind, ToolCallRow, ToolStatus
from trainer.rollout.agent import ToolResponse
from trainer.rollout.chat import Chat
from trainer.rollout.engine import EngineError, EngineLoad, FinishReason, Generation, OnTokens, SamplingSpec
from trainer.rollout.tool_calls import ParsedCall

TINY_BASE = Path(__file__).parents[2] / "models" / "tiny-base"
CALL = (
    "</reason>\n<tool_call>\n"
    '{{"name": "python_code_with_standard_io", "arguments": {{"code": "{code}"}}}}\n</tool_call>'
)
ANSWER = "done</reason>\n<answer>\n\\boxed{{{answer}}}\n</answer>"


def call_text(code: str) -> str:
    """An assistant turn with one call; `code` is put into JSON as it is."""
    return CALL.format(code=code)


def answer_text(answer: str) -> str:
    return ANSWER.format(answer=answer)


class FakeEngine:
    """Says the scripted turns in order, one script for each first prompt seen, closed by the turn-end token.

    Token i of a turn has log-probability -(i + 1) / 100 and entropy (i + 1) / 10. A turn longer than
    max_tokens is cut there. A script that is an exception is raised.
    """

    entropy_kind = EntropyKind.FULL

    def __init__(self, chat: Chat, turns: Sequence[str | Exception], max_context: int = 1024) -> None:
        self.chat = chat
        self.turns = list(turns)
        self.max_context = max_context
        self.policy_version = 7
        self.asked: list[tuple[list[int], SamplingSpec]] = []

    async def generate(self, ids: Sequence[int], spec: SamplingSpec, on_tokens: OnTokens | None = None) -> Generation:
        turn = self.turns[len(self.asked)]
        self.asked.append((list(ids), spec))
        if isinstance(turn, Exception):
            raise turn
        full = [*self.chat.encode(turn), self.chat.turn_end_id]
        sampled = full[: spec.max_tokens]
        finish = FinishReason.STOP if sampled == full else FinishReason.LENGTH
        entropies = [(i + 1) / 10 for i in range(len(sampled))]
        if on_tokens is not None:
            on_tokens(sampled, entropies)
        logprobs = [-(i + 1) / 100 for i in range(len(sampled))]
        return Generation(sampled, logprobs, entropies, EntropyKind.FULL, finish, self.policy_version)

    def end_trajectory(self, trajectory: int) -> None:
        pass

    def load(self) -> EngineLoad:
        return EngineLoad(kv_capacity=64 * self.max_context, kv_used=0, running=0, waiting=0)


class FakeTool:
    """Answers calls from a function of the code; the default echoes it."""

    def __init__(self, answer: Callable[[str], ToolResponse] | None = None) -> None:
        self.answer = answer or (lambda code: ToolResponse(ToolStatus.OK, code))
        self.seen: list[tuple[ParsedCall, str, int]] = []
        self.earlier: list[list[ToolCallRow]] = []

    async def respond(
        self, call: ParsedCall, call_id: str, seed: int, earlier: Sequence[ToolCallRow] = ()
    ) -> ToolResponse:
        self.seen.append((call, call_id, seed))
        self.earlier.append(list(earlier))
        return ToolResponse(call.status, call.error) if call.status.is_error else self.answer(call.code)


class FakeGrader:
    """Equal strings are right."""

    async def grade(self, answer: str | None, reference: str) -> Grade:
        return Graded(reward=float(answer == reference), answer=answer)


def engine_error() -> EngineError:
    return EngineError("the engine is gone")
