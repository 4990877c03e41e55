"""The record of one rollout and the closed sets of words used about it.

`TrajectoryRow` is one row of a Parquet shard (the stored truth); `TrajectoryIndex` is the small
row Postgres keeps and an event carries. Positions index the response, i.e. the tokens after the prompt.
"""

from enum import StrEnum

from pydantic import Field

from contracts.base import Frozen
from contracts.execution import ExecutionStatus
from contracts.scoring import Grade


class StopReason(StrEnum):
    """Why a trajectory ended."""

    ANSWERED = "answered"  # a turn without a tool call
    MAX_TURNS = "max_turns"
    MAX_RESPONSE_TOKENS = "max_response_tokens"
    CONTEXT_OVERFLOW = "context_overflow"
    CANCELLED = "cancelled"
    INFRASTRUCTURE = "infrastructure"


class ToolStatus(StrEnum):
    """What the model is told about a tool call. Everything but OK is a tool error (p_err)."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    KILLED = "killed"
    OUTPUT_LIMIT = "output_limit"
    INVALID_CALL = "invalid_call"
    UNKNOWN_TOOL = "unknown_tool"

    @property
    def is_error(self) -> bool:
        return self is not ToolStatus.OK


class Decision(StrEnum):
    """The decision ledger: exactly one for each generated rollout."""

    KEPT_RIGHT = "kept_right"
    KEPT_WRONG = "kept_wrong"
    KEPT_TRUNCATED = "kept_truncated"  # a truncated negative that was kept
    NOT_SELECTED = "not_selected"
    EQUAL_REWARD = "equal_reward"  # the whole group was uninformative
    TOO_FEW = "too_few"  # fewer than two graded rollouts in the group
    UNGRADED = "ungraded"
    EVALUATION = "evaluation"  # not a training rollout

    @property
    def is_kept(self) -> bool:
        return self in (Decision.KEPT_RIGHT, Decision.KEPT_WRONG, Decision.KEPT_TRUNCATED)


class TokenClass(StrEnum):
    """What a response token is part of. TOOL_RESPONSE tokens are masked, the others are the policy's."""

    REASONING = "reasoning"
    CODE = "code"
    COMMENT = "comment"
    ANSWER = "answer"
    FORMAT = "format"
    TOOL_RESPONSE = "tool_response"


class TokenMark(StrEnum):
    """The two patterns of the high-entropy policy tokens of a trajectory; disjoint (rStar2-Agent 5.4)."""

    NONE = "none"
    FORKING = "forking"
    REFLECTION = "reflection"  # a reasoning token in the run right after a tool response


class EntropyKind(StrEnum):
    """Where an entropy (nats) comes from: the full vocabulary, or a lower bound from the top k."""

    FULL = "full"
    TOPK_BOUND = "topk_bound"


class ToolCallRow(Frozen):
    """One tool call with its response. start/end: token positions in the response, end exclusive."""

    turn: int
    name: str
    code: str
    stdin: str = ""
    status: ToolStatus
    call_start: int
    call_end: int
    response_start: int
    response_end: int
    response_text: str = Field(description="what the model saw")
    is_cut: bool = Field(False, description="it was cut to the recipe's max_tool_response_tokens")
    execution_status: ExecutionStatus | None = Field(None, description="how the program ended; None: nothing was run")
    exit_code: int | None = None
    signal: int | None = None
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    truncated: bool = Field(False, description="the sandbox kept only head and tail of what was printed")
    exec_ms: float = 0.0
    queue_ms: float = 0.0
    cpu_ms: float = 0.0
    node: str = ""


class TurnRow(Frozen):
    """One assistant message: token positions in the response, end exclusive."""

    turn: int
    start: int
    end: int
    generate_ms: float = 0.0


class VersionSpan(Frozen):
    """Tokens [start, end), of a response or of a turn, come from one policy version; a tool response between them goes
    with the tokens before it."""

    version: int
    start: int
    end: int


class TrajectoryIndex(Frozen):
    """What a table needs of a trajectory. `advantage` is None unless it was kept."""

    stage: int
    stage_name: str
    step: int
    prompt_id: str
    sample: int = Field(description="0 .. 2G-1 within the group")
    problem: str = Field(description="the first 300 characters")
    reference_answer: str
    answer: str | None
    grade: Grade
    advantage: float | None
    decision: Decision
    weight: float | None = Field(None, description="1 / (p_err + p_format + 0.05), the RoC weight; positives only")
    p_err: float | None = None
    p_format: float | None = None
    draw_probability: float | None = Field(None, description="weight / sum of the weights of the group's positives")
    draw: int | None = Field(
        None, description="place in the draw among the group's right (or wrong) rollouts, from 1; None: no draw"
    )
    stop_reason: StopReason
    turns: int
    tool_calls: int
    tool_errors: int
    prompt_tokens: int
    response_tokens: int
    policy_tokens: int = Field(description="response tokens with mask 1")
    mean_entropy: float | None
    forking_tokens: int
    reflection_tokens: int
    duration_s: float
    policy_version: int = Field(description="of the first token")
    shard: str = Field(description="path under the run's artifact folder")
    row: int


class TrajectoryRow(Frozen):
    """One Parquet row. Per-token lists all have length `len(response_ids)`; entropy is nats."""

    run: str
    attempt: int
    index: TrajectoryIndex
    problem: str
    prompt_text: str
    prompt_ids: list[int]
    response_ids: list[int]
    token_texts: list[str] = Field(description="each response token decoded alone, with replacement")
    response_mask: list[int]
    sampling_logprobs: list[float]
    entropies: list[float]
    entropy_kind: EntropyKind
    token_classes: list[TokenClass]
    token_marks: list[TokenMark]
    turns: list[TurnRow]
    tool_calls: list[ToolCallRow]
    version_spans: list[VersionSpan] = Field(
        default_factory=list, description="in order; every policy token is in one; [] where the shard does not say"
    )


# Fields of the rows above that a resumed or repeated run does not reproduce: clock readings, who ran it, and when.
TIME_FIELDS = frozenset({"duration_s", "generate_ms", "exec_ms", "queue_ms", "cpu_ms", "node", "attempt"})
