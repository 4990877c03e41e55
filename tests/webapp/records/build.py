"""Events and shards as the trainer would write them, small and by hand."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from django.conf import settings

from contracts.events import EvaluationFinished, Trajectories
from contracts.scoring import Estimate, Graded, Ungraded
from contracts.trajectory import TrajectoryIndex
from webapp.runs.models import Run

SHARD = "trajectories/stage-02/step-00001.parquet"


def make_index(sample: int = 0, **changed: Any) -> TrajectoryIndex:
    values: dict[str, Any] = {
        "stage": 2,
        "stage_name": "rl",
        "step": 1,
        "prompt_id": "p1",
        "sample": sample,
        "problem": "What is $6 \\times 7$?",
        "reference_answer": "42",
        "answer": "42",
        "grade": Graded(reward=1.0, answer="42"),
        "advantage": 0.74,
        "decision": "kept_right",
        "weight": 3.0,
        "p_err": 0.33,
        "p_format": 0.0,
        "draw_probability": 0.081,
        "stop_reason": "answered",
        "turns": 2,
        "tool_calls": 1,
        "tool_errors": 1,
        "prompt_tokens": 12,
        "response_tokens": 9,
        "policy_tokens": 7,
        "mean_entropy": 0.4,
        "forking_tokens": 1,
        "reflection_tokens": 1,
        "duration_s": 1.5,
        "policy_version": 3,
        "shard": SHARD,
        "row": sample,
    }
    return TrajectoryIndex(**(values | changed))


def wrong(sample: int, **changed: Any) -> TrajectoryIndex:
    grade = Graded(reward=0.0, answer="41")
    return make_index(
        sample, **({"grade": grade, "answer": "41", "decision": "kept_wrong", "advantage": -1.3} | changed)
    )


def ungraded(sample: int, **changed: Any) -> TrajectoryIndex:
    grade = Ungraded(reason="grader_crash", detail="boom")
    values = {"grade": grade, "answer": None, "decision": "ungraded", "advantage": None, "weight": None}
    return make_index(sample, **(values | changed))


def rows(*indexes: TrajectoryIndex) -> Trajectories:
    return Trajectories(rows=list(indexes))


def make_row(index: TrajectoryIndex, **changed: Any) -> dict[str, Any]:
    """Turn 0: `Let` + call + end; tool response of 2 tokens; turn 1: `But`, ` 42`, end."""
    size = 9
    values: dict[str, Any] = {
        "run": "r",
        "attempt": 1,
        "index": index.model_dump_json(),
        "problem": index.problem,
        "prompt_text": "<|im_start|>user\nWhat?<|im_end|>",
        "prompt_ids": [1, 2],
        "response_ids": list(range(size)),
        "token_texts": [
            "Let",
            "<tool_call>",
            "1/0",
            "<|im_end|>",
            "Zero",
            "Division",
            "But",
            " <b>42</b>",
            "<|im_end|>",
        ],
        "response_mask": [1, 1, 1, 1, 0, 0, 1, 1, 1],
        "sampling_logprobs": [-0.5] * size,
        "entropies": [1.5, 0.1, 0.2, 0.0, 0.0, 0.0, 1.9, 0.3, 0.0],
        "entropy_kind": "full",
        "token_classes": ["reasoning", "format", "code", "format", "tool_response", "tool_response"]
        + ["reasoning", "answer", "format"],
        "token_marks": ["forking", "none", "none", "none", "none", "none", "reflection", "none", "none"],
        "turns": json.dumps(
            [
                {"turn": 0, "start": 0, "end": 4, "generate_ms": 3200},
                {"turn": 1, "start": 6, "end": 9, "generate_ms": 10},
            ]
        ),
        "tool_calls": json.dumps(
            [
                {
                    "turn": 0,
                    "name": "python",
                    "code": "print(1/0)",
                    "status": "error",
                    "call_start": 1,
                    "call_end": 3,
                    "response_start": 4,
                    "response_end": 6,
                    "response_text": "ZeroDivisionError: <script>alert(1)</script>",
                    "exec_ms": 41.0,
                    "queue_ms": 6.0,
                    "exit_code": 1,
                }
            ]
        ),
    }
    return values | changed


def write_shard(run: Run, table_rows: list[dict[str, Any]], shard: str = SHARD, row_group_size: int = 2) -> Path:
    path = Path(settings.ASTROLABE_ARTIFACTS) / "runs" / str(run.pk) / shard
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(table_rows), path, compression="zstd", row_group_size=row_group_size)
    return path


def evaluation(step: int = 1, **changed: Any) -> EvaluationFinished:
    correct = changed.pop("correct", {"p1": 4, "p2": 2, "p3": 0})
    values: dict[str, Any] = {
        "stage": 3,
        "step": step,
        "board": "Demo board",
        "benchmark": "held_out",
        "checkpoint": "checkpoints/1",
        "label": f"after stage {step}",
        "k": 4,
        "temperature": 0.6,
        "max_response_tokens": 400,
        "max_turns": 4,
        "avg": Estimate(value=0.5, half_width=0.1, problems=len(correct), samples=4 * len(correct)),
        "pass_at_k": 0.67,
        "tool_error_ratio_right": 0.1,
        "mean_response_tokens": 90.0,
        "mean_tool_calls": 1.2,
        "correct_by_problem": correct,
    }
    return EvaluationFinished(**(values | changed))
