"""One trajectory: the agent's turn loop, tokens in and tokens out (rStar2-Agent 2.1).

The response is a list of ids that only grows: what the model sampled as sampled (mask 1), then the
rendered tool response (mask 0). Nothing the model wrote is ever encoded again.
"""

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from contracts.execution import Execution
from contracts.recipe import Sampling
from contracts.scoring import Grade, Ungraded, UngradedReason
from contracts.trajectory import StopReason, ToolCallRow, ToolStatus, TurnRow, VersionSpan
from sandbox.client import SandboxUnavailable
from trainer.analysis.classes import token_at, token_starts
from trainer.rollout.chat import Chat
from trainer.rollout.engine import Engine, EngineError, FinishReason, Generation, SamplingSpec
from trainer.rollout.live import LiveStrip, LiveTokens, OnLive
from trainer.rollout.tool_calls import ParsedCall, parse_tool_call
from trainer.rollout.trajectory import Problem, Trajectory
from trainer.seeds import derive_seed

__all__ = [
    "Grader",
    "LiveTokens",
    "OnLive",
    "RolloutRequest",
    "Rollouts",
    "Tool",
    "ToolResponse",
    "run_trajectory",
]

_numbers = itertools.count()  # of trajectories in this process: what the engines know them by


@dataclass(frozen=True, slots=True)
class ToolResponse:
    """What the model sees of a call. `execution` is None when nothing was run (a call that cannot be used)."""

    status: ToolStatus
    text: str
    execution: Execution | None = None
    is_cut: bool = False


class Tool(Protocol):
    """The Python tool, or a fake. Raises `SandboxUnavailable` when the sandbox, not the program, failed."""

    async def respond(
        self, call: ParsedCall, call_id: str, seed: int, earlier: Sequence[ToolCallRow] = ()
    ) -> ToolResponse: ...


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


async def run_trajectory(request: RolloutRequest, rollouts: Rollouts, on_live: OnLive | None = None) -> Trajectory:
    """Sample one trajectory to its end. It has no grade yet, but `Ungraded` when a part of ours failed."""
    chat, problem = rollouts.chat, request.problem
    trajectory = Trajectory(problem, request.sample, chat.prompt_ids(problem.text))
    live = None
    if on_live and request.watched:
        live = LiveStrip(problem.id, request.sample, chat, on_live, rollouts.engine.entropy_kind)
    started = time.perf_counter()
    loop = _Loop(request, rollouts, trajectory, live)
    try:
        trajectory.stop_reason = await loop.run()
    except EngineError as error:
        _mark_ungraded(trajectory, UngradedReason.ENGINE_FAILURE, error)
    except SandboxUnavailable as error:
        _mark_ungraded(trajectory, UngradedReason.SANDBOX_UNAVAILABLE, error)
    finally:
        rollouts.engine.end_trajectory(loop.number)
    trajectory.duration_s = time.perf_counter() - started
    if live is not None:
        live.end()
    return trajectory


def _mark_ungraded(trajectory: Trajectory, reason: UngradedReason, error: Exception) -> None:
    trajectory.stop_reason = StopReason.INFRASTRUCTURE
    trajectory.grade = Ungraded(reason=reason, detail=str(error)[:500])


class _Loop:
    """The turns of one trajectory."""

    def __init__(
        self, request: RolloutRequest, rollouts: Rollouts, trajectory: Trajectory, live: LiveStrip | None
    ) -> None:
        self.number = next(_numbers)
        self.request = request
        self.rollouts = rollouts
        self.trajectory = trajectory
        self.live = live
        room = rollouts.engine.max_context - len(trajectory.prompt_ids)
        limit = rollouts.sampling.max_response_tokens
        self.limit = min(room, limit)  # of response tokens
        self.limit_reason = StopReason.CONTEXT_OVERFLOW if room < limit else StopReason.MAX_RESPONSE_TOKENS

    async def run(self) -> StopReason:
        trajectory, sampling = self.trajectory, self.rollouts.sampling
        for turn in range(sampling.max_turns):
            if len(trajectory.response_ids) >= self.limit:
                return self.limit_reason
            generation = await self._generate(turn)
            if generation.finish is FinishReason.LENGTH:
                return self.limit_reason
            texts = self.rollouts.chat.token_texts(generation.ids)
            call = self._find_call(generation, texts)
            if call is None:
                return StopReason.ANSWERED
            if turn + 1 == sampling.max_turns:
                return StopReason.MAX_TURNS  # nothing would read the response, so the call is not run
            if not await self._respond(turn, call, texts):
                return self.limit_reason
        return StopReason.MAX_TURNS

    async def _generate(self, turn: int) -> Generation:
        """One assistant turn, appended with mask 1. Raises EngineError also for a reply that is malformed."""
        trajectory, rollouts = self.trajectory, self.rollouts
        start = len(trajectory.response_ids)
        spec = SamplingSpec(
            max_tokens=self.limit - start,
            temperature=rollouts.sampling.temperature,
            seed=derive_seed(self.request.seed, turn),
            stop_ids=rollouts.chat.stop_ids,
            trajectory=self.number,
        )
        started = time.perf_counter()
        on_tokens = self.live.add_sampled if self.live else None
        reply = await rollouts.engine.generate([*trajectory.prompt_ids, *trajectory.response_ids], spec, on_tokens)
        count = len(reply.ids)
        if not 1 <= count <= spec.max_tokens or not count == len(reply.logprobs) == len(reply.entropies):
            raise EngineError(f"the engine returned {count} ids for at most {spec.max_tokens}, or unequal lists")
        trajectory.response_ids += reply.ids
        trajectory.mask += [1] * count
        trajectory.logprobs += reply.logprobs
        trajectory.entropies += reply.entropies
        elapsed_ms = (time.perf_counter() - started) * 1e3
        trajectory.turns.append(TurnRow(turn=turn, start=start, end=start + count, generate_ms=elapsed_ms))
        trajectory.entropy_kind = reply.entropy_kind
        one = VersionSpan(version=reply.policy_version, start=0, end=count)
        trajectory.add_versions(start, reply.spans or (one,))
        if turn == 0:
            trajectory.policy_version = reply.policy_version
        return reply

    def _find_call(self, generation: Generation, texts: list[str]) -> ParsedCall | None:
        """The turn's call, positions in the joined `texts`; its code from the ids decoded together."""
        text = self.rollouts.chat.text(generation.ids)
        call = parse_tool_call(text)
        if call is None or text == "".join(texts):
            return call
        # A character of several tokens reads as U+FFFD in `texts`: other positions, same structure.
        placed = parse_tool_call("".join(texts))
        if placed is None:
            return call
        return ParsedCall(placed.start, placed.end, call.name, call.code, call.stdin, call.status, call.error)

    async def _respond(self, turn: int, call: ParsedCall, texts: list[str]) -> bool:
        """Run the call and append its response with mask 0; False when it would reach the limit.

        Then nothing is appended (as the released code does): the call is on record, its response empty.
        """
        trajectory, request, chat = self.trajectory, self.request, self.rollouts.chat
        seed = derive_seed(request.seed, turn, "tool")
        call_id = f"{request.seed:016x}-{turn}"
        response = await self.rollouts.tool.respond(call, call_id, seed, trajectory.tool_calls)
        closed = trajectory.response_ids[-1] == chat.turn_end_id
        ids = chat.tool_response_ids(response.text, closed)
        fits = len(trajectory.response_ids) + len(ids) < self.limit
        start = len(trajectory.response_ids)
        first = trajectory.turns[-1].start
        starts = token_starts(texts)
        if fits:
            trajectory.response_ids += ids
            trajectory.mask += [0] * len(ids)
            trajectory.logprobs += [0.0] * len(ids)
            trajectory.entropies += [0.0] * len(ids)
            if self.live:
                self.live.add_tool_response(ids)
        trajectory.tool_calls.append(
            ToolCallRow(
                turn=turn,
                name=call.name,
                code=call.code,
                stdin=call.stdin,
                status=response.status,
                call_start=first + token_at(starts, call.start),
                call_end=first + token_at(starts, call.end - 1) + 1,
                response_start=start,
                response_end=len(trajectory.response_ids),
                response_text=response.text if fits else "",
                is_cut=response.is_cut,
                **_measurements(response.execution),
            )
        )
        return fits


_MEASURED = {
    *("exit_code", "signal", "stdout_bytes", "stderr_bytes", "truncated"),
    *("exec_ms", "queue_ms", "cpu_ms", "node"),
}


def _measurements(execution: Execution | None) -> dict[str, Any]:
    if execution is None:
        return {}
    return {"execution_status": execution.status, **execution.model_dump(include=_MEASURED)}
