"""One trajectory: the agent's turn loop, tokens in and tokens out (rStar2-Agent 2.1)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from contracts.events import LiveToken
from contracts.execution import Execution
from contracts.recipe import Sampling
from contracts.scoring import Grade
from contracts.trajectory import ToolStatus
from trainer.rollout.chat import Chat
from trainer.rollout.engine import Engine
from trainer.rollout.tool_calls import ParsedCall
from trainer.rollout.trajectory import Problem, Trajectory


@dataclass(frozen=True, slots=True)
class ToolResponse:
    """What the model sees of a call. `execution` is None when nothing was run (a call that cannot be used)."""

    status: ToolStatus
    text: str
    execution: Execution | None = None


class Tool(Protocol):
    """The Python tool, or a fake. Raises `SandboxUnavailable` when the sandbox, not the program, failed."""

    async def respond(self, call: ParsedCall, call_id: str, seed: int) -> ToolResponse: ...


class Grader(Protocol):
    """Compares an answer (None: there is none) with the reference."""

    async def grade(self, answer: str | None, reference: str) -> Grade: ...


@dataclass(frozen=True, slots=True)
class Rollouts:
    """What all rollouts of a batch share."""

    engine: Engine
    chat: Chat
    tool: Tool
    grader: Grader
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """One trajectory to sample. `seed` is derived from (run, stage, step, prompt, sample)."""

    problem: Problem
    sample: int
    seed: int
    watched: bool = False  # its tokens go to `on_live`


@dataclass(frozen=True, slots=True)
class LiveTokens:
    """New tokens of a watched rollout; `position` is the response index of the first."""

    prompt_id: str
    sample: int
    position: int
    tokens: list[LiveToken]
    ended: bool = False


OnLive = Callable[[LiveTokens], None]


async def run_trajectory(request: RolloutRequest, rollouts: Rollouts, on_live: OnLive | None = None) -> Trajectory:
    """Sample one trajectory to its end; ungraded by the grader, but `Ungraded` when a part of ours failed."""
    raise NotImplementedError
