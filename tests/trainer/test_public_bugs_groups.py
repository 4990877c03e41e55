"""Public bugs of groups, rewards, records and metrics, one test each; `test_bug_index.py` says where the others are."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pydantic import ValidationError

from contracts.curation import RULES, Check
from contracts.execution import Execution, ExecutionStatus
from contracts.recipe import Overlong, Resample, RlStage, Sampling, ToolSettings
from contracts.scoring import Graded
from contracts.trajectory import Decision, StopReason, ToolCallRow, ToolStatus
from sandbox.client import SandboxClient
from tests.trainer.fakes import TINY_BASE, FakeEngine, FakeGrader, FakeTool, answer_text, call_text
from tests.trainer.pipeline_run import RL, STAGES, TinyRun, collect_and_grade_by_ids
from tests.trainer.tiny import make_model
from trainer.algorithm.packing import Row
from trainer.algorithm.resample import Candidate, SelectionRule, select_rollouts
from trainer.analysis.tokens import MarkSettings, analyze
from trainer.cluster import sandbox_urls
from trainer.data.curation import curate_rows
from trainer.data.problems import dump_problems, load_problems
from trainer.data.sources import read_rows
from trainer.measure import measure_rollouts
from trainer.policy.model import compute_logprobs
from trainer.reward.pool import GraderPool
from trainer.rl import WATCHED_PROMPTS, _learn, give_advantages, judge_groups
from trainer.rollout.agent import RolloutRequest, Rollouts, run_trajectory
from trainer.rollout.chat import Chat, load_tokenizer
from trainer.rollout.collect import collect
from trainer.rollout.python_tool import PythonTool
from trainer.rollout.trajectory import Problem, Trajectory

CHAT = Chat(load_tokenizer(TINY_BASE))
CONTEXT: Any = SimpleNamespace(recipe=SimpleNamespace(seed=1, gpus=0), sampler=SimpleNamespace(chat=CHAT))


def graded(
    prompt: str, sample: int, reward: float, tokens: int = 3, stop: StopReason = StopReason.ANSWERED
) -> Trajectory:
    ids = [5] * tokens
    return Trajectory(
        Problem(prompt, "2 + 2?", "4"),
        sample,
        prompt_ids=[1],
        response_ids=ids,
        mask=[1] * tokens,
        logprobs=[-0.1] * tokens,
        entropies=[0.1] * tokens,
        stop_reason=stop,
        grade=Graded(reward=reward),
    )


def make_stage(**changes: Any) -> RlStage:
    return RlStage.model_validate({"name": "rl", "oversample": 4, "group_size": 2} | changes)


# --- Groups ---


def test_a_group_is_the_rollouts_of_one_prompt_wherever_they_stand():
    """Rows came interleaved and were grouped by position: https://github.com/StarsfieldAI/R1-V/issues/67,
    https://github.com/PeterGriffinJin/Search-R1/issues/88"""
    rewards = {"p": [1, 1, 0, 0], "q": [1, 1, 1, 1]}
    mixed = [graded(prompt, i, rewards[prompt][i]) for i in range(4) for prompt in ("q", "p")]
    groups = judge_groups(CONTEXT, 1, make_stage(resample=Resample.NONE, group_size=4), step=1, trajectories=mixed)
    assert {g[0].group: [r.trajectory.sample for r in g] for g in groups} == {"q": [0, 1, 2, 3], "p": [0, 1, 2, 3]}
    give_advantages(groups, make_stage(group_size=4))
    by_prompt = {g[0].group: [r.advantage for r in g] for g in groups}
    assert by_prompt["q"] == [None] * 4
    assert by_prompt["p"] == pytest.approx([0.8660, 0.8660, -0.8660, -0.8660], abs=1e-4)  # std of 1,1,0,0 over 3: 0.577


def test_a_length_penalty_makes_no_group_of_right_answers_informative():
    """Filtered by the shaped reward, all-right groups stayed in: https://github.com/NVIDIA-NeMo/RL/issues/2478"""
    stage = make_stage(overlong=Overlong.PENALTY, sampling={"max_response_tokens": 16}, group_size=4)
    lengths = [4, 8, 15, 16]
    right = [graded("p", i, 1.0, tokens) for i, tokens in enumerate(lengths)]
    [group] = judge_groups(CONTEXT, 1, stage, step=1, trajectories=right)
    give_advantages([group], stage)
    assert [r.line.decision for r in group] == [Decision.EQUAL_REWARD] * 4
    assert [r.advantage for r in group] == [None] * 4


def test_a_rollout_without_a_token_is_counted_and_not_learned_from():
    """Aborted before the first token it crashed the step, or made a mean NaN:
    https://github.com/verl-project/verl/issues/6675"""
    members = [graded("p", 0, 1.0, tokens=4), graded("p", 1, 0.0, tokens=0), graded("p", 2, 0.0, tokens=2)]
    [group] = judge_groups(CONTEXT, 1, make_stage(resample=Resample.NONE, group_size=3), step=1, trajectories=members)
    give_advantages([group], make_stage(group_size=3))
    assert [r.advantage for r in group] == pytest.approx([1.1547, -0.5774, -0.5774], abs=1e-4)  # it counts in the mean
    learned: list[int] = []

    def learn(samples: Any, **others: Any) -> Any:
        learned.extend(len(sample.row.response_ids) for sample in samples)
        return SimpleNamespace(entropies=[None] * len(samples))

    learner = SimpleNamespace(learn=learn, offer=lambda: None)
    context: Any = SimpleNamespace(
        recipe=SimpleNamespace(seed=1, gpus=0),
        policy=SimpleNamespace(model=None, learner=learner, version=0),
        first_step=lambda index: 1,
        on_learner=lambda work, done: work(),
    )
    _learn(context, 1, make_stage(), [group], stage_step=1)
    assert learned == [4, 2]
    values = measure_rollouts(members)
    assert (values["response/tokens_mean"], values["reward/mean"]) == pytest.approx((2, 1 / 3))


@pytest.mark.parametrize(("size", "expected"), [(2, 0.7048), (16, 0.0418)])  # 0.18^G + 0.82^G
def test_groups_of_equal_rewards_are_as_many_as_chance_makes(size: int, expected: float):
    """https://github.com/jsboige/CoursIA/issues/10603"""
    rng = np.random.default_rng(1)
    groups = 4000
    rewards = (rng.random((groups, size)) < 0.18).astype(float)
    rule = SelectionRule(Resample.NONE, size)
    ledgers = [select_rollouts([Candidate(reward, 0.0, 0.0) for reward in group], rule, rng) for group in rewards]
    equal = sum(lines[0].decision is Decision.EQUAL_REWARD for lines in ledgers)
    assert equal / groups == pytest.approx(expected, abs=3 * (expected * (1 - expected) / groups) ** 0.5)


def test_truncated_sampling_cannot_be_asked_for():
    """Top-p and top-k bias the ratio though the policies are equal: https://github.com/huggingface/trl/issues/7269"""
    for name in ("top_p", "top_k", "min_p"):
        with pytest.raises(ValidationError, match=f"{name}\n  Extra inputs are not permitted"):
            Sampling.model_validate({name: 0.9})


def test_a_short_row_scores_the_same_beside_a_long_one():
    """Positions of padded rows were wrong: https://github.com/NovaSky-AI/SkyRL/issues/747"""
    model = make_model()
    short, long = Row([3, 4], [10, 11, 12], [1] * 3), Row([3], list(range(20, 80)), [1] * 60)
    [alone] = compute_logprobs(model, [short], 1.0)
    beside = compute_logprobs(model, [short, long], 1.0)[0]
    torch.testing.assert_close(beside, alone, atol=1e-5, rtol=0)


# --- Rewards ---


async def test_each_rollout_is_graded_by_the_answer_of_its_own_problem():
    """The ground truth did not reach the tool that grades: https://github.com/verl-project/verl/pull/2740"""
    problems = [Problem("a", "What is 2 + 2?", "4"), Problem("b", "What is 2 + 3?", "5")]
    seen: list[tuple[str | None, str]] = []

    class Grader(FakeGrader):
        async def grade(self, answer, reference):
            seen.append((answer, reference))
            return await super().grade(answer, reference)

    rewards = []
    for problem in problems:
        parts = Rollouts(
            FakeEngine(CHAT, [answer_text("4")]), CHAT, FakeTool(), Grader(), Sampling(max_response_tokens=99)
        )
        [trajectory] = await collect([RolloutRequest(problem, 0, seed=1)], parts)
        rewards.append(trajectory.reward)
    assert (seen, rewards) == ([("4", "4"), ("4", "5")], [1.0, 0.0])


async def test_the_sandbox_is_where_the_environment_says_and_grading_needs_no_service(monkeypatch: pytest.MonkeyPatch):
    """Case S of the released code: a service anywhere but on localhost:8088 could not be configured."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        if request.url.path == "/v1/health":
            return httpx.Response(404)
        calls = json.loads(request.content)["calls"]
        done = [Execution(id=call["id"], status=ExecutionStatus.OK, stdout="4\n") for call in calls]
        return httpx.Response(200, text="".join(f"{execution.model_dump_json()}\n" for execution in done))

    monkeypatch.setenv("SANDBOX_URLS", "http://10.1.2.3:9999/, http://far.example:1")
    assert sandbox_urls() == ["http://10.1.2.3:9999/", "http://far.example:1"]
    parts = Rollouts(
        FakeEngine(CHAT, [call_text("print(4)"), answer_text("4")]), CHAT, FakeTool(), FakeGrader(), Sampling()
    )
    async with SandboxClient(sandbox_urls(), transport=httpx.MockTransport(answer)) as client, GraderPool() as grader:
        own = replace(parts, tool=PythonTool(client, ToolSettings(), CHAT), grader=grader)
        [trajectory] = await collect([RolloutRequest(Problem("p", "What is 2 + 2?", "4"), 0, seed=1)], own)
    assert (trajectory.tool_calls[0].status, trajectory.reward) == (ToolStatus.OK, 1.0)
    assert {httpx.URL(url).host for url in asked} <= {"10.1.2.3", "far.example"}


# --- Records ---


def test_numbers_of_a_parquet_column_are_plain_and_stored(tmp_path: Path):
    """A numpy integer as the sample's index broke the trace: https://github.com/verl-project/verl/pull/3112"""
    table = pa.table(
        {
            "problem": ["What is 1 + 1?", "What is 2 + 2?"],
            "answer": pa.array([2, 4], pa.int64()),
            "index": pa.array([7, None], pa.int64()),
            "share": pa.array([0.5, float("nan")], pa.float32()),
            "when": pa.array([0, 1], pa.timestamp("s")),
        }
    )
    path = tmp_path / "rows.parquet"
    pq.write_table(table, path)
    accepted = curate_rows(list(read_rows(path)), frozenset(map(Check, RULES)), max_problem_chars=99).problems
    assert [(type(p.id), p.answer, p.extra["index"]) for p in accepted] == [(str, "2", "7"), (str, "4", "null")]
    stored = tmp_path / "train.jsonl"
    stored.write_bytes(dump_problems(accepted))
    assert load_problems(stored) == accepted


@pytest.mark.parametrize("turns", [[answer_text("4")], [call_text("4"), answer_text("4")]])
async def test_a_stored_trajectory_is_read_as_text_turn_by_turn(turns: list[str]):
    """Traces showed raw ids, per turn and in single-turn runs: https://github.com/verl-project/verl/issues/3515,
    https://github.com/verl-project/verl/issues/5276, https://github.com/verl-project/verl/issues/4457"""
    parts = Rollouts(
        FakeEngine(CHAT, turns), CHAT, FakeTool(), FakeGrader(), Sampling(max_response_tokens=800, max_turns=4)
    )
    trajectory = await run_trajectory(RolloutRequest(Problem("p", "What is 2 + 2?", "4"), 0, seed=1), parts)
    texts = analyze(trajectory, CHAT.token_texts(trajectory.response_ids), MarkSettings(0.2, 20)).texts
    assert len(texts) == len(trajectory.response_ids)
    assert ["".join(texts[t.start : t.end]) for t in trajectory.turns] == [turn + "<|im_end|>" for turn in turns]


def test_what_is_watched_live_is_bounded_whatever_a_step_generates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Everything was traced, dozens of gigabytes a day: https://github.com/verl-project/verl/pull/2345"""
    watched: list[int] = []

    async def count(requests: Any, rollouts: Any, watch: Any = None) -> list[Trajectory]:
        watched.append(sum(request.watched for request in requests))
        return await collect_and_grade_by_ids(requests, rollouts, watch)

    stage = RL | {"steps": 1, "prompts_per_step": 5, "evaluate_every": 0}
    run = TinyRun(tmp_path / "a", monkeypatch, stages=[STAGES[0], stage])
    monkeypatch.setattr("trainer.sampler.collect", count)
    run.start()
    assert watched == [WATCHED_PROMPTS] == [2]


# --- Metrics ---


def test_ratios_are_of_sums_and_over_all_that_was_generated():
    """Means of means, and of what the filters left: https://github.com/huggingface/trl/issues/6380,
    https://github.com/verl-project/verl/issues/5203, https://github.com/NovaSky-AI/SkyRL/issues/1821"""

    def calling(sample: int, statuses: list[ToolStatus]) -> Trajectory:
        trajectory = graded("p", sample, 1.0, tokens=4)
        trajectory.tool_calls = [
            ToolCallRow.model_construct(status=s, node="", exec_ms=0.0, queue_ms=0.0) for s in statuses
        ]
        return trajectory

    ok, error = ToolStatus.OK, ToolStatus.ERROR
    cut = graded("q", 0, 0.0, tokens=40, stop=StopReason.MAX_RESPONSE_TOKENS)
    values = measure_rollouts([calling(0, [error]), calling(1, [ok] * 9), cut])
    assert values["tools/error_ratio"] == pytest.approx(0.1)  # the mean of the two ratios would be 0.5
    assert values["response/tokens_mean"] == pytest.approx(16)  # the truncated one counts
    assert values["response/truncated_ratio"] == pytest.approx(1 / 3)
    assert values["reward/mean"] == pytest.approx(2 / 3)
