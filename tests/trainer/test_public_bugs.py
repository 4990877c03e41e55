"""Bugs that users of other trainers reported: one test each, named after what must be right here.

The numbers are those of the public reports; every docstring has the link. Those of the loss, of resampling
and of resume are tested beside the code they belong to: `test_bug_index.py` names the test of every case.
"""

import asyncio
import json
import random
from collections.abc import Sequence

import pytest
import torch

from contracts.execution import Execution, ExecutionStatus
from contracts.recipe import RlStage, Sampling, ToolSettings
from contracts.scoring import Graded, Ungraded, UngradedReason
from contracts.trajectory import EntropyKind, StopReason, ToolStatus
from tests.trainer.fakes import TINY_BASE, FakeEngine, FakeGrader, FakeTool, answer_text, call_text
from tests.trainer.scripted_worker import serve_by_script
from tests.trainer.tiny import make_model, make_tokenizer
from trainer.algorithm.packing import Row, pack_rows
from trainer.policy.learner import FixedLogprobs, Sample, accumulate_gradients
from trainer.policy.model import compute_logprobs
from trainer.reward import pool as pool_module
from trainer.reward.answer import extract_answer
from trainer.reward.pool import GraderPool
from trainer.rollout.agent import RolloutRequest, Rollouts, ToolResponse, run_trajectory
from trainer.rollout.chat import Chat, load_tokenizer, open_chat
from trainer.rollout.collect import Watch, collect
from trainer.rollout.engine import FinishReason, Generation, SamplingSpec
from trainer.rollout.feedback import render
from trainer.rollout.tool_calls import TOOL_NAMES, parse_tool_call
from trainer.rollout.trajectory import Problem, Trajectory
from trainer.seeds import derive_seed

CHAT = Chat(load_tokenizer(TINY_BASE))
PROBLEM = Problem("p1", "What is 2 + 2?", "4")
NAME = TOOL_NAMES[0]


async def roll(*turns: str, tool: FakeTool | None = None, watched: bool = False, **sampling: int) -> Trajectory:
    """One graded trajectory of scripted turns."""
    settings = Sampling(max_response_tokens=800, max_turns=4).model_copy(update=sampling)
    parts = Rollouts(FakeEngine(CHAT, turns), CHAT, tool or FakeTool(), FakeGrader(), settings)
    request = RolloutRequest(PROBLEM, 0, seed=derive_seed(1, "p1", 0), watched=watched)
    seen: list[object] = []
    [trajectory] = await collect([request], parts, Watch(on_live=seen.append))
    assert bool(seen) == watched
    return trajectory


def calling(arguments: str, name: str = f'"{NAME}"') -> str:
    return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'


# --- Tokens, masks, templates ---


class IdEngine:
    """Says given ids, turn by turn."""

    max_context, policy_version = 4096, 0

    def __init__(self, turns: Sequence[list[int]]) -> None:
        self.turns = list(turns)

    def end_trajectory(self, trajectory: int) -> None: ...

    async def generate(self, ids: Sequence[int], spec: SamplingSpec, on_tokens: object = None) -> Generation:
        turn = self.turns.pop(0)
        zeros = [0.0] * len(turn)
        return Generation(turn, zeros, zeros, EntropyKind.FULL, FinishReason.STOP, 0)


async def roll_ids(*turns: list[int]) -> Trajectory:
    parts = Rollouts(IdEngine(turns), CHAT, FakeTool(), FakeGrader(), Sampling(max_response_tokens=2000, max_turns=4))
    return await run_trajectory(RolloutRequest(PROBLEM, 0, seed=1), parts)


@pytest.mark.parametrize("seed", range(5))
async def test_ids_whose_text_encodes_otherwise_are_kept_as_sampled(seed):
    """https://github.com/huggingface/trl/issues/5224, https://github.com/verl-project/verl/issues/3960"""
    rng = random.Random(seed)
    special = set(CHAT.tokenizer.get_added_vocab().values())
    noise = [i for i in (rng.randrange(len(CHAT.tokenizer)) for _ in range(300)) if i not in special]
    assert CHAT.encode_plain(CHAT.text(noise)) != noise  # or the test would show nothing
    call = [*noise, *CHAT.encode(call_text("4")), CHAT.turn_end_id]
    answer = [*noise[::-1], *CHAT.encode(answer_text("4")), CHAT.turn_end_id]
    trajectory = await roll_ids(call, answer)
    suffix = CHAT.tool_response_ids(trajectory.tool_calls[0].response_text, closed=True)
    assert trajectory.response_ids == call + suffix + answer
    assert trajectory.mask == [1] * len(call) + [0] * len(suffix) + [1] * len(answer)


async def test_the_newline_after_a_turn_is_written_and_not_trained_on():
    """https://github.com/verl-project/verl/pull/6921, https://github.com/verl-project/verl/issues/6501"""
    trajectory = await roll(call_text("4"), answer_text("4"))
    end = trajectory.turns[0].end
    assert trajectory.response_ids[end - 1] == CHAT.turn_end_id
    assert CHAT.text(trajectory.response_ids[end : end + 1]).startswith("\n")
    assert (trajectory.mask[end - 1], trajectory.mask[end]) == (1, 0)


async def test_a_turn_is_closed_exactly_once():
    """https://github.com/huggingface/trl/issues/5330"""
    trajectory = await roll(call_text("4"), call_text("5"), answer_text("4"))
    text = CHAT.text(trajectory.prompt_ids + trajectory.response_ids)
    assert "<|im_end|><|im_end|>" not in text
    assert text.count("<|im_end|>") == text.count("<|im_start|>")


async def test_a_turn_that_ended_on_another_stop_token_is_closed_with_mask_0():
    """https://github.com/NVIDIA-NeMo/RL/issues/1337"""
    open_call = CHAT.encode(call_text("4"))
    trajectory = await roll_ids(open_call, [*CHAT.encode(answer_text("4")), CHAT.turn_end_id])
    end = trajectory.turns[0].end
    assert trajectory.response_ids[end] == CHAT.turn_end_id
    assert trajectory.mask[end] == 0


async def test_every_request_extends_the_one_before():
    """https://github.com/PrimeIntellect-ai/prime-rl/issues/2261, https://github.com/rllm-org/rllm/issues/272"""
    engine = FakeEngine(CHAT, [call_text("4"), call_text("5"), answer_text("4")])
    parts = Rollouts(engine, CHAT, FakeTool(), FakeGrader(), Sampling(max_response_tokens=800, max_turns=4))
    await run_trajectory(RolloutRequest(PROBLEM, 0, seed=1), parts)
    asked = [ids for ids, _ in engine.asked]
    assert all(later[: len(earlier)] == earlier for earlier, later in zip(asked, asked[1:], strict=False))


async def test_white_space_at_the_end_of_a_turn_is_kept():
    """https://github.com/PrimeIntellect-ai/verifiers/issues/1081"""
    trajectory = await roll(call_text("4") + " \n\n", answer_text("4"))
    turn = trajectory.turns[0]
    assert CHAT.text(trajectory.response_ids[turn.start : turn.end]).endswith("</tool_call> \n\n<|im_end|>")


async def test_a_turn_of_nothing_but_a_call_is_a_turn():
    """https://github.com/PrimeIntellect-ai/verifiers/issues/1259"""
    trajectory = await roll(calling('{"code": "4"}'), answer_text("4"))
    assert (len(trajectory.turns), trajectory.tool_calls[0].code, trajectory.reward) == (2, "4", 1.0)


async def test_the_end_of_a_turn_is_trained_on_though_it_may_be_the_padding_token():
    """https://github.com/huggingface/trl/issues/3200, https://github.com/verl-project/verl/issues/3805"""
    trajectory = await roll(answer_text("4"))
    assert (trajectory.response_ids[-1], trajectory.mask[-1]) == (CHAT.turn_end_id, 1)
    longer = Row([7], [5] * (len(trajectory.mask) + 9), [1] * (len(trajectory.mask) + 9))
    batch = pack_rows([Row(trajectory.prompt_ids, trajectory.response_ids, trajectory.mask), longer])
    assert batch.targets.tolist().count(CHAT.turn_end_id) == 1  # the sampled one, none of the padding


async def test_padding_behind_a_truncated_rollout_is_not_trained_on():
    """https://github.com/verl-project/verl/issues/3805"""
    trajectory = await roll(answer_text("4"), max_response_tokens=6)
    row = Row(trajectory.prompt_ids, trajectory.response_ids, trajectory.mask)
    batch = pack_rows([row, Row([7], [5] * 200, [0] * 200)])
    assert batch.targets.tolist() == trajectory.response_ids


def test_prompt_and_tool_tokens_have_no_gradient():
    """https://github.com/verl-project/verl/issues/4412, https://github.com/TIGER-AI-Lab/verl-tool/issues/116"""
    batch = pack_rows([Row([10, 11, 12], [20, 30, 31, 21], [1, 0, 0, 1])])
    assert batch.targets.tolist() == [20, 21]


def test_the_last_token_of_a_row_does_not_predict_the_first_of_the_next():
    """Trap 10 of the study: labels rolled over a packed row."""
    rows = [Row([1], [2, 3], [1, 1]), Row([4], [5], [1])]
    batch = pack_rows(rows)
    pairs = [(int(batch.ids[s]), int(t)) for s, t in zip(batch.sources, batch.targets, strict=True)]
    assert pairs == [(1, 2), (2, 3), (4, 5)]


def test_a_reward_trains_the_tokens_of_its_own_trajectory():
    """Lengths 5 and 9, the first one's reward landed on padding: https://github.com/microsoft/rStar/issues/53"""
    model = make_model()
    rows = [Row([3, 4], [10, 11, 12, 13, 14], [1] * 5), Row([3, 4], list(range(20, 29)), [1] * 9)]
    old = compute_logprobs(model, rows, 1.0)

    def gradient(advantages: Sequence[float], used: Sequence[int]) -> torch.Tensor:
        model.zero_grad()
        samples = [Sample(row, "g", advantage, []) for row, advantage in zip(rows, advantages, strict=True)]
        stage = RlStage(name="rl", loss_aggregation="sequence")
        accumulate_gradients(model, samples, FixedLogprobs(old, old, None, [None, None]), update=used, stage=stage)
        return model.lm_head.weight.grad.clone()

    # Rewarded alone, the short one changes the model as it does in a batch of its own, but for its weight of a half.
    torch.testing.assert_close(2 * gradient([1.0, 0.0], [0, 1]), gradient([1.0, 0.0], [0]), atol=1e-6, rtol=1e-4)


async def test_each_of_130_samples_has_its_own_reward():
    """Written in batches of 64 to the wrong rows: https://github.com/microsoft/rStar/pull/47"""

    class Counter(FakeEngine):
        async def generate(self, ids, spec, on_tokens=None):
            sample = seeds.index(spec.seed)
            return await FakeEngine(CHAT, [answer_text("4" if sample % 3 == 0 else "5")]).generate(ids, spec)

    seeds = [derive_seed(i, 0) for i in range(130)]
    parts = Rollouts(Counter(CHAT, []), CHAT, FakeTool(), FakeGrader(), Sampling(max_response_tokens=100))
    found = await collect([RolloutRequest(PROBLEM, i, seed=i) for i in range(130)], parts)
    assert [t.reward for t in found] == [float(i % 3 == 0) for i in range(130)]
    assert 0.0 in [t.reward for t in found]  # a reward of 0 is a reward, not a missing one


@pytest.mark.parametrize(
    "text", ["漢字かな交じり文" * 400, "\U0001f468\u200d\U0001f469\u200d\U0001f467" * 400, "7" * 9000]
)
def test_tool_output_is_cut_by_tokens_whatever_its_characters(text):
    """https://github.com/verl-project/verl/issues/4918"""
    chat = Chat(make_tokenizer())  # a token a byte
    done = Execution(id="1", status=ExecutionStatus.OK, stdout=text)
    cut = render(done, ToolSettings(max_tool_response_tokens=100), chat)
    assert cut.is_cut
    assert chat.tool_response_size(cut.text) <= 100
    assert "\ufffd" not in cut.text


async def test_a_turn_may_use_what_the_turns_before_it_left():
    """Asked for the whole context instead: https://github.com/verl-project/verl/issues/4568"""
    engine = FakeEngine(CHAT, [call_text("4"), answer_text("4")])
    parts = Rollouts(engine, CHAT, FakeTool(), FakeGrader(), Sampling(max_response_tokens=150, max_turns=4))
    trajectory = await run_trajectory(RolloutRequest(PROBLEM, 0, seed=1), parts)
    assert [spec.max_tokens for _, spec in engine.asked] == [150, 150 - trajectory.turns[1].start]


async def test_a_prompt_that_fills_the_context_gives_no_tokens_and_reward_0():
    """https://github.com/verl-project/verl/issues/6675"""
    engine = FakeEngine(CHAT, [], max_context=2)
    parts = Rollouts(engine, CHAT, FakeTool(), FakeGrader(), Sampling(max_response_tokens=100))
    [trajectory] = await collect([RolloutRequest(PROBLEM, 0, seed=1)], parts)
    assert (trajectory.response_ids, trajectory.turns, trajectory.reward) == ([], [], 0.0)


@pytest.mark.parametrize(("config", "named"), [("{}", set()), ('{"eos_token_id": 5}', {5}), ("[", set()), ("", set())])
def test_generation_stops_where_template_tokenizer_or_generation_config_end(tmp_path, config, named):
    """https://github.com/huggingface/trl/issues/3425"""
    tokenizer = make_tokenizer()
    tokenizer.eos_token = "<|endoftext|>"
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(config)
    chat = open_chat(tmp_path)
    assert {chat.text([i]) for i in set(chat.stop_ids) - named} == {"<|im_end|>", "<|endoftext|>"}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 4]}')
    assert set(open_chat(tmp_path).stop_ids) == {4, 5, *chat.stop_ids}


async def test_a_tool_response_is_appended_once():
    """https://github.com/verl-project/verl/pull/3604"""
    trajectory = await roll(
        call_text("4"), answer_text("4"), tool=FakeTool(lambda _: ToolResponse(ToolStatus.OK, "marker"))
    )
    assert CHAT.text(trajectory.response_ids).count("marker") == 1


async def test_watching_a_trajectory_changes_nothing_of_it():
    """Case U of the released code: traced and untraced rewards saw different strings."""
    turns = call_text("4"), answer_text("4")
    watched, unwatched = await roll(*turns, watched=True), await roll(*turns)
    assert (watched.response_ids, watched.mask, watched.grade) == (
        *(unwatched.response_ids, unwatched.mask),
        unwatched.grade,
    )


# --- Tool calls ---


@pytest.mark.parametrize(
    ("turn", "status", "word"),
    [
        (calling("{}", '"WolframAlpha"'), ToolStatus.UNKNOWN_TOOL, "WolframAlpha"),
        (calling('"{\\"code\\": \\"4\\"}"'), ToolStatus.INVALID_CALL, "arguments"),
        (calling("null"), ToolStatus.INVALID_CALL, "arguments"),
        (calling("[1]"), ToolStatus.INVALID_CALL, "arguments"),
        (calling('{"code": "4"}', "7"), ToolStatus.INVALID_CALL, "name"),
        (f'<tool_call>{{"name": "{NAME}"}}</tool_call>', ToolStatus.INVALID_CALL, "arguments"),
        (
            f'<tool_call>{{"name": "{NAME}", "arguments": {{"code": "4"}}}} x</tool_call>',
            ToolStatus.INVALID_CALL,
            "text",
        ),
        (f"<tool_call>{{'name': '{NAME}'}}</tool_call>", ToolStatus.INVALID_CALL, "JSON"),
        (f'<tool_call>{{"name": "{NAME}", "arguments": {{"code": "4"}}</tool_call>', ToolStatus.INVALID_CALL, "JSON"),
    ],
)
async def test_a_call_that_cannot_be_used_is_answered_once_counted_and_the_rollout_goes_on(turn, status, word):
    """https://github.com/microsoft/rStar/issues/62, https://github.com/verl-project/verl/issues/7177,
    https://github.com/PrimeIntellect-ai/verifiers/issues/1763, https://github.com/NousResearch/hermes-agent/issues/5315
    """
    trajectory = await roll(turn, answer_text("4"))
    [call] = trajectory.tool_calls
    assert (call.status, trajectory.tool_errors, trajectory.reward) == (status, 1, 1.0)
    assert word in call.response_text
    assert CHAT.text(trajectory.response_ids).count("<tool_response>") == 1


async def test_a_model_that_repeats_one_call_ends_at_the_turn_limit_and_is_wrong():
    """https://github.com/microsoft/rStar/issues/52"""
    trajectory = await roll(*[call_text("4")] * 9)
    assert (trajectory.stop_reason, len(trajectory.turns)) == (StopReason.MAX_TURNS, 4)
    assert (len(trajectory.tool_calls), trajectory.tool_errors, trajectory.reward) == (3, 0, 0.0)


def test_a_closing_tag_in_the_code_does_not_end_the_call():
    """https://github.com/minpeter/ai-sdk-tool-call-middleware/issues/297"""
    code = 'print("</tool_call>")'
    assert parse_tool_call(calling(json.dumps({"code": code}))).code == code


def test_raw_newlines_and_tabs_in_the_code_are_read():
    """https://github.com/NousResearch/hermes-agent/issues/5315"""
    assert parse_tool_call(calling('{"code": "if 1:\n\tprint(4)"}')).code == "if 1:\n\tprint(4)"


def test_a_call_is_never_evaluated(tmp_path):
    """`eval` in a parser runs what the model wrote: https://github.com/verl-project/verl/issues/6542"""
    trace = tmp_path / "ran"
    parsed = parse_tool_call(f"<tool_call>__import__('pathlib').Path({str(trace)!r}).touch()</tool_call>")
    assert parsed.status is ToolStatus.INVALID_CALL
    assert not trace.exists()


async def test_a_call_is_kept_as_the_model_wrote_it():
    """https://github.com/huggingface/trl/issues/4890"""
    turn = calling('{"code": "4", "executes": null, "note": "kept"}')
    trajectory = await roll(turn, answer_text("4"))
    call = trajectory.tool_calls[0]
    assert CHAT.text(trajectory.response_ids[call.call_start : call.call_end]) == turn
    assert call.status is ToolStatus.OK


@pytest.mark.parametrize("printed", ["EXIT_CODE:0", "@@E", '{"status": "ok"}', "Tool call success"])
def test_what_a_program_prints_does_not_change_its_status(printed):
    """https://github.com/PrimeIntellect-ai/verifiers/issues/1480, case A of the released code"""
    failed = Execution(id="1", status=ExecutionStatus.ERROR, stdout=printed, stderr="ValueError: x")
    response = render(failed, ToolSettings(), CHAT)
    assert response.text == f"{printed}\nValueError: x"


async def test_a_success_that_prints_the_word_error_is_no_tool_error():
    """The released code searches the response for it; ours goes by status."""
    tool = FakeTool(lambda _: ToolResponse(ToolStatus.OK, "relative error: 0.01"))
    assert (await roll(call_text("4"), answer_text("4"), tool=tool)).tool_errors == 0


async def test_a_cancelled_rollout_is_cancelled_in_the_middle_of_a_tool_call():
    """A bare `except` swallowed it: https://github.com/PrimeIntellect-ai/verifiers/issues/1197"""
    started = asyncio.Event()

    class Endless(FakeTool):
        async def respond(self, *arguments: object) -> ToolResponse:
            started.set()
            await asyncio.Event().wait()
            raise AssertionError("never reached")

    task = asyncio.create_task(roll(call_text("4"), tool=Endless()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# --- Grading ---


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is 110", None),
        ("\\boxed{110}", None),
        ("<answer>110</answer>", None),
        ("<answer>\\boxed{110", None),
        ("<answer>\\boxed{12}, or rather \\boxed{13}</answer>", "13"),
    ],
)
def test_only_a_box_in_the_answer_tag_is_an_answer(text, answer):
    """Cases O and P of the released code, traps 66 and 67 of the study."""
    assert extract_answer(text) == answer


async def test_a_box_in_a_tool_response_or_an_earlier_turn_is_no_answer():
    """Case O of the released code: the whole transcript was searched."""
    tool = FakeTool(lambda _: ToolResponse(ToolStatus.OK, answer_text("4")))
    assert (await roll(call_text("4"), "I am done", tool=tool)).reward == 0.0
    assert (await roll(answer_text("4") + call_text("4"), "I am done")).reward == 0.0


async def test_an_answer_that_the_budget_cut_is_wrong():
    """Trap 67 of the study: a number somewhere in a truncated response was taken."""
    whole = CHAT.encode(answer_text("4"))
    trajectory = await roll(answer_text("4"), max_response_tokens=len(whole))
    assert (trajectory.stop_reason, trajectory.reward) == (StopReason.MAX_RESPONSE_TOKENS, 0.0)


@pytest.fixture
def scripted(monkeypatch) -> None:
    monkeypatch.setattr(pool_module, "_serve", serve_by_script)


async def test_a_hung_comparison_ends_at_its_limit_and_touches_no_other(scripted):
    """https://github.com/verl-project/verl/pull/5839, https://github.com/verl-project/verl/pull/6673;
    case R of the released code: a slow verifier is flagged, not a wrong answer."""
    async with GraderPool(processes=2, timeout_s=0.3) as grader:
        hung, *others = await asyncio.gather(*(grader.grade(a, "x") for a in ("hang", "one", "two", "three")))
    assert hung == Ungraded(reason=UngradedReason.GRADER_TIMEOUT, detail="no verdict within 0.3 s")
    assert others == [Graded(reward=1.0, answer=a) for a in ("one", "two", "three")]


async def test_two_hundred_answers_at_once_give_no_false_timeout(scripted):
    """https://github.com/PrimeIntellect-ai/verifiers/pull/831"""
    async with GraderPool(processes=1, timeout_s=1.0) as grader:
        answers = ["slow"] * 15 + ["quick"] * 185  # 1.5 s of work in one queue
        found = await asyncio.gather(*(grader.grade(answer, "x") for answer in answers))
    assert [grade.kind for grade in found] == ["graded"] * 200


async def test_verification_works_though_the_trainer_calls_it_from_a_thread():
    """math-verify's own timeout needs signals in the main thread: https://github.com/verl-project/verl/issues/5635,
    https://github.com/huggingface/trl/issues/5281"""

    async def verify_one() -> object:
        async with GraderPool(processes=1, timeout_s=60) as grader:
            return await grader.grade("\\frac{2}{4}", "\\frac12")

    assert await asyncio.to_thread(lambda: asyncio.run(verify_one())) == Graded(reward=1.0, answer="\\frac{2}{4}")


async def test_a_reference_that_cannot_be_read_is_no_reward_at_all():
    """Parsed to nothing it once equalled every answer: https://github.com/thinking-machines-lab/tinker-cookbook/issues/335,
    https://github.com/allenai/open-instruct/issues/1605"""
    async with GraderPool(processes=1, timeout_s=60) as grader:
        for answer in ("7", ""):
            grade = await grader.grade(answer, "")
            assert isinstance(grade, Ungraded) and grade.reason is UngradedReason.BAD_REFERENCE
