import asyncio
import json

import pytest

from contracts.execution import Execution, ExecutionStatus
from contracts.recipe import Sampling
from contracts.scoring import Graded, Ungraded, UngradedReason
from contracts.trajectory import EntropyKind, StopReason, TokenClass, ToolStatus
from sandbox.client import SandboxUnavailable
from tests.trainer.fakes import TINY_BASE, FakeEngine, FakeGrader, FakeTool, answer_text, call_text, engine_error
from trainer.rollout.agent import LiveTokens, RolloutRequest, Rollouts, ToolResponse, run_trajectory
from trainer.rollout.chat import Chat, load_tokenizer
from trainer.rollout.collect import Watch, collect
from trainer.rollout.trajectory import Problem, Trajectory
from trainer.seeds import derive_seed

PROBLEM = Problem("p1", "What is 2 + 2?", "4")
SAMPLING = Sampling(max_response_tokens=400, max_turns=3)


@pytest.fixture(scope="module")
def chat() -> Chat:
    return Chat(load_tokenizer(TINY_BASE))


def rollouts(chat: Chat, *turns: str | Exception, tool: FakeTool | None = None, **sampling: int) -> Rollouts:
    engine = FakeEngine(chat, turns, max_context=sampling.pop("max_context", 1024))
    settings = SAMPLING.model_copy(update=sampling)
    return Rollouts(engine, chat, tool or FakeTool(), FakeGrader(), settings)


def request(sample: int = 0, **fields: object) -> RolloutRequest:
    return RolloutRequest(PROBLEM, sample, seed=derive_seed(1, "p1", sample), **fields)


def check_lists(trajectory: Trajectory, chat: Chat) -> None:
    """What must hold of any trajectory: aligned lists, mask 1 exactly on the turns, zeros elsewhere."""
    length = len(trajectory.response_ids)
    assert length == len(trajectory.mask) == len(trajectory.logprobs) == len(trajectory.entropies)
    sampled = [i for turn in trajectory.turns for i in range(turn.start, turn.end)]
    assert [i for i, m in enumerate(trajectory.mask) if m] == sampled
    assert all(trajectory.logprobs[i] == 0 == trajectory.entropies[i] for i in set(range(length)) - set(sampled))
    assert trajectory.prompt_ids == chat.prompt_ids(PROBLEM.text)


async def test_two_calls_and_an_answer(chat):
    turns = [call_text("print(4)"), call_text("1/0"), answer_text("4")]
    tool = FakeTool(lambda code: ToolResponse(ToolStatus.ERROR if "/0" in code else ToolStatus.OK, f"ran {code}"))
    parts = rollouts(chat, *turns, tool=tool)
    trajectory = await run_trajectory(request(), parts)
    check_lists(trajectory, chat)
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert (trajectory.policy_version, trajectory.entropy_kind, trajectory.grade) == (7, EntropyKind.FULL, None)
    assert [c.status for c in trajectory.tool_calls] == [ToolStatus.OK, ToolStatus.ERROR]
    assert trajectory.tool_errors == 1

    # Tokens: prompt, then sampled and rendered parts in turn; equal to the template's one-shot rendering.
    end = chat.turn_end_id
    expected: list[int] = []
    for turn, code in zip(turns[:2], ["print(4)", "1/0"], strict=True):
        expected += [*chat.encode(turn), end, *chat.tool_response_ids(f"ran {code}", closed=True)]
    expected += [*chat.encode(turns[2]), end]
    assert trajectory.response_ids == expected
    messages = [{"role": "user", "content": PROBLEM.text}]
    for turn, code in zip(turns[:2], ["print(4)", "1/0"], strict=True):
        messages += [{"role": "assistant", "content": turn}, {"role": "tool", "content": f"ran {code}"}]
    messages.append({"role": "assistant", "content": turns[2]})
    rendered = chat.tokenizer.apply_chat_template(messages, tokenize=False)
    assert chat.text(trajectory.prompt_ids + trajectory.response_ids) + "\n" == rendered

    # Each request to the engine extends the one before.
    asked = [ids for ids, _ in parts.engine.asked]
    assert asked[1][: len(asked[0])] == asked[0]
    assert asked[2][: len(asked[1])] == asked[1]
    assert asked[2] == trajectory.prompt_ids + trajectory.response_ids[: trajectory.turns[2].start]


async def test_positions_of_call_and_response(chat):
    trajectory = await run_trajectory(request(), rollouts(chat, call_text("print(4)"), answer_text("4")))
    call = trajectory.tool_calls[0]
    text = chat.text(trajectory.response_ids[call.call_start : call.call_end])
    assert text.startswith("<tool_call>") and text.endswith("</tool_call>")
    assert json.loads(text.removeprefix("<tool_call>").removesuffix("</tool_call>"))["arguments"]["code"] == "print(4)"
    shown = chat.text(trajectory.response_ids[call.response_start : call.response_end])
    assert "<tool_response>\nprint(4)\n</tool_response>" in shown
    assert call.response_text == "print(4)"
    assert call.response_start == trajectory.turns[0].end
    assert call.response_end == trajectory.turns[1].start


async def test_what_the_sandbox_measured_is_on_record_and_later_calls_know_of_it(chat):
    done = Execution(id="1", status="cpu_limit", stdout_bytes=9, truncated=True, exec_ms=5, queue_ms=2, cpu_ms=4)
    tool = FakeTool(lambda code: ToolResponse(ToolStatus.TIMEOUT, "cut", done, is_cut=True))
    parts = rollouts(chat, call_text("1"), call_text("2"), answer_text("4"), tool=tool)
    trajectory = await run_trajectory(request(), parts)
    row = trajectory.tool_calls[0]
    assert (row.status, row.execution_status, row.is_cut, row.truncated) == (
        *(ToolStatus.TIMEOUT, ExecutionStatus.CPU_LIMIT),
        *(True, True),
    )
    assert (row.stdout_bytes, row.exec_ms, row.queue_ms, row.cpu_ms) == (9, 5, 2, 4)
    assert [[r.code for r in earlier] for earlier in tool.earlier] == [[], ["1"]]


async def test_code_of_several_byte_tokens_is_read_whole(chat):
    tool = FakeTool(lambda code: ToolResponse(ToolStatus.OK, code))
    trajectory = await run_trajectory(request(), rollouts(chat, call_text("print('漢é')"), answer_text("4"), tool=tool))
    call = trajectory.tool_calls[0]
    assert call.code == "print('漢é')"
    assert chat.text(trajectory.response_ids[call.call_start : call.call_end]).endswith("</tool_call>")


async def test_every_turn_may_use_what_is_left_of_the_budget(chat):
    parts = rollouts(chat, call_text("1"), answer_text("4"))
    trajectory = await run_trajectory(request(), parts)
    specs = [spec for _, spec in parts.engine.asked]
    assert specs[0].max_tokens == 400
    assert specs[1].max_tokens == 400 - trajectory.turns[1].start
    assert specs[0].seed == derive_seed(request().seed, 0) != specs[1].seed
    assert specs[0].stop_ids == chat.stop_ids


async def test_stops_at_the_turn_limit_without_running_the_last_call(chat):
    tool = FakeTool()
    trajectory = await run_trajectory(request(), rollouts(chat, call_text("1"), call_text("2"), tool=tool, max_turns=2))
    assert trajectory.stop_reason is StopReason.MAX_TURNS
    assert [c.code for c, _, _ in tool.seen] == ["1"]
    assert (len(trajectory.turns), len(trajectory.tool_calls)) == (2, 1)
    check_lists(trajectory, chat)


async def test_a_turn_cut_by_the_budget(chat):
    trajectory = await run_trajectory(request(), rollouts(chat, answer_text("4"), max_response_tokens=8))
    assert trajectory.stop_reason is StopReason.MAX_RESPONSE_TOKENS
    assert (len(trajectory.response_ids), trajectory.mask) == (8, [1] * 8)


async def test_a_turn_cut_by_the_context(chat):
    room = 9
    context = len(chat.prompt_ids(PROBLEM.text)) + room
    trajectory = await run_trajectory(request(), rollouts(chat, answer_text("4"), max_context=context))
    assert trajectory.stop_reason is StopReason.CONTEXT_OVERFLOW
    assert len(trajectory.response_ids) == room


async def test_a_prompt_that_leaves_no_room(chat):
    parts = rollouts(chat, answer_text("4"), max_context=3)
    trajectory = await run_trajectory(request(), parts)
    assert (trajectory.stop_reason, trajectory.response_ids) == (StopReason.CONTEXT_OVERFLOW, [])
    assert parts.engine.asked == []


@pytest.mark.parametrize("spare", [0, 1])
async def test_a_response_that_would_reach_the_limit_is_not_appended(chat, spare):
    turn = call_text("print(4)")
    length = len(chat.encode(turn)) + 1 + len(chat.tool_response_ids("print(4)", closed=True))
    parts = rollouts(chat, turn, answer_text("4"), max_response_tokens=length + spare)
    trajectory = await run_trajectory(request(), parts)
    check_lists(trajectory, chat)
    assert trajectory.stop_reason is StopReason.MAX_RESPONSE_TOKENS
    if spare:  # it fits, one token is left to write
        assert len(trajectory.response_ids) == length + 1
    else:
        assert len(trajectory.response_ids) == trajectory.turns[0].end
        call = trajectory.tool_calls[0]
        assert (call.response_start, call.response_end, call.response_text) == (trajectory.turns[0].end,) * 2 + ("",)


@pytest.mark.parametrize(
    ("turn", "status"),
    [
        ("<tool_call>{'a'}</tool_call>", ToolStatus.INVALID_CALL),
        ('<tool_call>{"name": "math", "arguments": {}}</tool_call>', ToolStatus.UNKNOWN_TOOL),
    ],
)
async def test_an_unusable_call_is_answered_and_counted(chat, turn, status):
    trajectory = await run_trajectory(request(), rollouts(chat, turn, answer_text("4")))
    assert (trajectory.stop_reason, trajectory.tool_errors) == (StopReason.ANSWERED, 1)
    assert trajectory.tool_calls[0].status is status
    assert trajectory.tool_calls[0].response_text in chat.text(trajectory.response_ids)


async def test_an_unclosed_call_is_an_answer(chat):
    trajectory = await run_trajectory(request(), rollouts(chat, '<tool_call>{"name": "x"'))
    assert (trajectory.stop_reason, trajectory.tool_calls) == (StopReason.ANSWERED, [])


async def test_engine_failure_is_ungraded(chat):
    [trajectory] = await collect([request()], rollouts(chat, engine_error()))
    assert trajectory.stop_reason is StopReason.INFRASTRUCTURE
    assert trajectory.grade == Ungraded(reason=UngradedReason.ENGINE_FAILURE, detail="the engine is gone")
    assert trajectory.reward is None


def no_sandbox(code: str) -> ToolResponse:
    raise SandboxUnavailable("every node is down")


async def test_sandbox_failure_is_ungraded_and_keeps_the_tokens(chat):
    [trajectory] = await collect([request()], rollouts(chat, call_text("1"), tool=FakeTool(no_sandbox)))
    assert trajectory.stop_reason is StopReason.INFRASTRUCTURE
    assert trajectory.grade.reason is UngradedReason.SANDBOX_UNAVAILABLE
    assert len(trajectory.turns) == 1
    check_lists(trajectory, chat)


async def test_the_live_strip_is_the_response(chat):
    seen: list[LiveTokens] = []
    parts = rollouts(chat, call_text("print(4)"), answer_text("4"))
    trajectory = await run_trajectory(request(watched=True), parts, seen.append)
    tokens = [token for part in seen for token in part.tokens]
    assert [t.text for t in tokens] == chat.token_texts(trajectory.response_ids)
    assert [t.entropy for t in tokens] == trajectory.entropies
    assert seen[0].position == 0
    assert seen[-1].ended and seen[-1].position == len(tokens)
    assert {t.token_class for t in tokens} == set(TokenClass) - {TokenClass.COMMENT}


async def test_an_unwatched_rollout_sends_nothing(chat):
    seen: list[LiveTokens] = []
    await run_trajectory(request(), rollouts(chat, answer_text("4")), seen.append)
    assert seen == []


async def test_grades_by_the_answer_of_the_last_turn(chat):
    right = [await one(chat, answer_text("4")), await one(chat, call_text("1"), answer_text("4"))]
    assert [t.grade for t in right] == [Graded(reward=1.0, answer="4")] * 2
    assert (await one(chat, answer_text("5"))).grade == Graded(reward=0.0, answer="5")
    assert (await one(chat, "it is 4</reason>")).grade == Graded(reward=0.0)


async def one(chat: Chat, *turns: str, **sampling: int) -> Trajectory:
    [trajectory] = await collect([request()], rollouts(chat, *turns, **sampling))
    return trajectory


async def test_a_truncated_answer_is_wrong(chat):
    text = answer_text("4") + " and then some more words"
    cut = len(chat.encode(answer_text("4"))) + 2
    trajectory = await one(chat, text, max_response_tokens=cut)
    assert "</answer>" in chat.text(trajectory.response_ids)
    assert trajectory.grade == Graded(reward=0.0)


async def test_a_box_printed_by_the_tool_is_no_answer(chat):
    tool = FakeTool(lambda code: ToolResponse(ToolStatus.OK, "<answer>\\boxed{4}</answer>"))
    [trajectory] = await collect([request()], rollouts(chat, call_text("1"), "so it is</reason>", tool=tool))
    assert trajectory.reward == 0.0


class SlowEngine(FakeEngine):
    """Sample i ends after (9 - i) x 10 ms; sample 3 fails; sample 5 never ends."""

    async def generate(self, ids, spec, on_tokens=None):
        sample = next(i for i in range(9) if derive_seed(request(i).seed, 0) == spec.seed)
        if sample == 3:
            raise engine_error()
        await asyncio.sleep(1e6 if sample == 5 else (9 - sample) / 100)
        fresh = FakeEngine(self.chat, [answer_text(str(sample))])
        return await fresh.generate(ids, spec, on_tokens)


async def test_order_siblings_and_stop(chat):
    progress: list[tuple[int, int]] = []
    watch = Watch(lambda done, total: progress.append((done, total)), should_stop=lambda: len(progress) == 7)
    parts = Rollouts(SlowEngine(chat, []), chat, FakeTool(), FakeGrader(), SAMPLING)
    found = await collect([request(i) for i in range(8)], parts, watch)
    assert [t.sample for t in found] == list(range(8))
    assert [t.grade.answer for t in found if isinstance(t.grade, Graded)] == ["0", "1", "2", "4", "6", "7"]
    assert found[3].grade.reason is UngradedReason.ENGINE_FAILURE
    assert (found[5].stop_reason, found[5].grade.reason) == (StopReason.CANCELLED, UngradedReason.CANCELLED)
    assert progress == [(i, 8) for i in range(1, 8)]
    assert len(asyncio.all_tasks()) == 1


async def test_every_rollout_may_wait_for_an_engine_at_once(chat):
    asked = asyncio.Barrier(300)

    class Engine(FakeEngine):
        async def generate(self, ids, spec, on_tokens=None):
            async with asyncio.timeout(10):
                await asked.wait()
            return await FakeEngine(chat, [answer_text("4")]).generate(ids, spec, on_tokens)

    parts = Rollouts(Engine(chat, []), chat, FakeTool(), FakeGrader(), SAMPLING)
    found = await collect([request(i) for i in range(300)], parts)
    assert [t.reward for t in found] == [1.0] * 300


async def test_a_bug_is_raised_and_leaves_no_task(chat):
    parts = rollouts(chat, ZeroDivisionError("a bug"), answer_text("4"))
    with pytest.raises(ZeroDivisionError):
        await collect([request(0), request(1)], parts)
    assert len(asyncio.all_tasks()) == 1


async def test_cancelling_collect_cancels_the_rollouts(chat):
    parts = Rollouts(SlowEngine(chat, []), chat, FakeTool(), FakeGrader(), SAMPLING)
    task = asyncio.create_task(collect([request(5)], parts))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(asyncio.all_tasks()) == 1
