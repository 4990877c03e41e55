"""The event journal and the ingest protocol.

One line of `events.jsonl` is one `Event`. The journal is the truth; the reporter posts it in
batches to `POST /api/v1/runs/<run>/events` with `Authorization: Bearer <run token>`. (run, attempt,
seq) identifies an event: seq starts at 1 in each attempt and has no gaps; sending one twice is harmless.
JSON has no NaN: a non-finite number travels as one of the strings of `Number`.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from contracts.base import Frozen
from contracts.scoring import Estimate
from contracts.trajectory import EntropyKind, TokenClass, TokenMark, TrajectoryIndex

Number = float | Literal["NaN", "Infinity", "-Infinity"]


def encode_number(value: float) -> Number:
    """A float as JSON can carry it."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return value


class ResumePoint(Frozen):
    """Where an attempt begins. What older attempts reported of this stage from this step on, and of later stages,
    will be done again: it is superseded."""

    stage: int
    step: int


class RunStarted(Frozen):
    """First event of an attempt. `resumed_from_step` is None for a fresh start."""

    kind: Literal["run_started"] = "run_started"
    stages: list[str]
    total_steps: int = Field(description="RL steps of all stages; what progress is measured against")
    resumed_from_step: int | None = None
    resumes_at: ResumePoint | None = Field(None, description="None: the first attempt")
    versions: dict[str, str] = Field(default_factory=dict)
    git_commit: str = ""


class StageStarted(Frozen):
    kind: Literal["stage_started"] = "stage_started"
    stage: int = Field(description="index into the recipe's stages, from 0")
    name: str
    stage_kind: Literal["curate", "sft", "rl", "evaluate"]
    steps: int = Field(description="steps of this stage; 0 where it has none")
    first_step: int = Field(0, description="RL: the run's step with which the stage begins")


class StageFinished(Frozen):
    kind: Literal["stage_finished"] = "stage_finished"
    stage: int
    name: str
    duration_s: float


class StageProgress(Frozen):
    """Where a stage without charts is (curation, evaluation, generation inside a step)."""

    kind: Literal["stage_progress"] = "stage_progress"
    stage: int
    step: int = 0
    done: int
    total: int
    what: str = Field(description="e.g. 'rollouts', 'problems'")


class Metrics(Frozen):
    """Names of `contracts.metrics` with their value at one step."""

    kind: Literal["metrics"] = "metrics"
    stage: int
    step: int
    values: dict[str, Number]


class Trajectories(Frozen):
    """Index rows of trajectories whose shard is already on disk."""

    kind: Literal["trajectories"] = "trajectories"
    rows: list[TrajectoryIndex] = Field(min_length=1, max_length=256)


class TokenCount(Frozen):
    text: str
    count: int
    mean_entropy: float


class TokenWindow(StrEnum):
    """Policy tokens right before a tool call, or right after its response, by how the call ended."""

    BEFORE_OK = "before_ok"
    AFTER_OK = "after_ok"
    BEFORE_ERROR = "before_error"
    AFTER_ERROR = "after_error"

    @property
    def is_after(self) -> bool:
        return self in (TokenWindow.AFTER_OK, TokenWindow.AFTER_ERROR)


class WindowReport(Frozen):
    """All windows of one kind in a step; `top` are the marked tokens in them."""

    responses: int = Field(description="tool responses that have such a window")
    tokens: int
    mean_entropy: float
    forking_tokens: int
    reflection_tokens: int
    top: list[TokenCount]
    top_by_entropy: list[TokenCount]


class TokenReport(Frozen):
    """Token analysis of one RL step. `reflection_window` and `forking_share` are the recipe's; entropies are nats.

    `top_*` are ranked by count, `top_*_by_entropy` by mean entropy.
    """

    kind: Literal["token_report"] = "token_report"
    stage: int
    step: int
    forking_share: float
    reflection_window: int
    entropy_kind: EntropyKind = EntropyKind.FULL
    policy_tokens: int = 0
    forking_tokens: int = 0
    reflection_tokens: int = 0
    mean_entropy_by_class: dict[TokenClass, float]
    tokens_by_class: dict[TokenClass, int]
    top_forking: list[TokenCount]
    top_reflection: list[TokenCount]
    top_forking_by_entropy: list[TokenCount] = Field(default_factory=list)
    top_reflection_by_entropy: list[TokenCount] = Field(default_factory=list)
    windows: dict[TokenWindow, WindowReport] = Field(default_factory=dict)


class SpanKind(StrEnum):
    """What was going on in a part of a step."""

    QUEUE = "queue"  # a turn waits for an engine
    GENERATE = "generate"
    TOOL = "tool"
    GRADE = "grade"
    SCORE = "score"  # entropies and log-probabilities by the learner
    LEARN = "learn"
    SYNC = "sync"  # new weights to the engines
    EVALUATE = "evaluate"
    SAVE = "save"


class Span(Frozen):
    """Seconds since the step began."""

    kind: SpanKind
    start_s: float
    end_s: float


class RolloutSpans(Frozen):
    prompt_id: str
    sample: int
    spans: list[Span]


class EngineLine(Frozen):
    """One engine over a step, a value for each bin of time; KV in tokens, the others in requests."""

    name: str
    kv_capacity: int
    kv_used: list[float]
    running: list[float]
    waiting: list[float]
    preemptions: int = Field(description="in the step")
    tokens: int = Field(description="generated in the step")


class StepTimeline(Frozen):
    """Where the time of one RL step went: its phases, what was in flight, its engines, its slowest rollouts.

    `in_flight` and the engines' lists have `bins` values each, means over `seconds / bins`.
    """

    kind: Literal["step_timeline"] = "step_timeline"
    stage: int
    step: int
    seconds: float
    bins: int
    phases: list[Span]
    in_flight: dict[SpanKind, list[float]]
    engines: list[EngineLine] = Field(default_factory=list, max_length=128)
    slowest: list[RolloutSpans] = Field(default_factory=list, max_length=32)


class FunnelRow(Frozen):
    """One filter of the curation: what came in, what went out, and examples of what it refused."""

    filter: str
    entered: int
    left: int
    examples: list[str] = Field(default_factory=list, max_length=5)


class Funnel(Frozen):
    """The curation funnel of one curate stage (or of the hard subset of an RL stage)."""

    kind: Literal["funnel"] = "funnel"
    stage: int
    rows: list[FunnelRow]
    train: int
    held_out: int
    train_path: str = Field("", description="under the run's artifact folder")
    held_out_path: str = ""
    rejected_path: str = Field("", description="JSON lines of RejectedRow, filter by filter")
    version: str = Field("", description="SHA-256 of the accepted problems in any order; '' in old journals")


class EvaluationFinished(Frozen):
    """One checkpoint on one benchmark with k samples."""

    kind: Literal["evaluation_finished"] = "evaluation_finished"
    stage: int
    step: int
    board: str = Field(description="name of the leaderboard the row belongs to; '' for none")
    benchmark: str
    checkpoint: str = Field(description="path under the run's artifact folder, or as given in the recipe")
    label: str = Field(description="what the row is called, e.g. 'after SFT'")
    k: int
    temperature: float
    max_response_tokens: int
    max_turns: int
    avg: Estimate | None = Field(description="None: nothing could be graded")
    pass_at_k: float | None
    tool_error_ratio_right: float | None = None
    mean_response_tokens: float
    mean_tool_calls: float
    correct_by_problem: dict[str, int] = Field(description="prompt id -> right samples of k")


class CheckpointWritten(Frozen):
    kind: Literal["checkpoint_written"] = "checkpoint_written"
    stage: int
    step: int
    path: str = Field(description="under the run's artifact folder")
    label: str = ""
    size_bytes: int
    pruned: list[str] = Field(default_factory=list, description="paths of checkpoints removed by policy")


class LogLevel(StrEnum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Log(Frozen):
    kind: Literal["log"] = "log"
    level: LogLevel
    source: str = "driver"
    text: str


class Heartbeat(Frozen):
    """Every few seconds, whatever the driver does."""

    kind: Literal["heartbeat"] = "heartbeat"
    doing: str = ""


class Outcome(StrEnum):
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


class RunEnded(Frozen):
    """Last event of an attempt."""

    kind: Literal["run_ended"] = "run_ended"
    outcome: Outcome
    reason: str = ""
    steps: int = 0


Payload = Annotated[
    RunStarted
    | StageStarted
    | StageFinished
    | StageProgress
    | Metrics
    | Trajectories
    | TokenReport
    | StepTimeline
    | Funnel
    | EvaluationFinished
    | CheckpointWritten
    | Log
    | Heartbeat
    | RunEnded,
    Field(discriminator="kind"),
]


class Event(Frozen):
    """One line of the journal."""

    run: str
    attempt: int = Field(ge=1)
    seq: int = Field(ge=1)
    time: datetime
    payload: Payload


class EventBatch(Frozen):
    """JSON body of `POST /api/v1/runs/<run>/events`; the reporter sends at most 256 events and 1 MB at once."""

    events: list[Event] = Field(min_length=1, max_length=256)


class EventStatus(StrEnum):
    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    REJECTED = "rejected"


class EventAnswer(Frozen):
    attempt: int
    seq: int
    status: EventStatus
    reason: str = ""


class DesiredState(StrEnum):
    """What the user asked of the run; the driver obeys at the next safe point."""

    RUN = "run"
    STOP = "stop"


class IngestReply(Frozen):
    """Answer to a batch of events, one answer an event."""

    answers: list[EventAnswer]
    desired: DesiredState
    watched: bool = Field(description="somebody looks at the run: send live token chunks")


class LiveToken(Frozen):
    text: str
    entropy: float = Field(description="nats")
    token_class: TokenClass
    mark: TokenMark = TokenMark.NONE


class LiveChunk(Frozen):
    """Ephemeral: tokens of one rollout being generated. Body item of `POST /api/v1/runs/<run>/live`."""

    stage: int
    step: int
    prompt_id: str
    sample: int
    position: int = Field(description="index of the first token in the response; 0 starts a new strip")
    entropy_kind: EntropyKind = EntropyKind.FULL
    tokens: list[LiveToken] = Field(max_length=512)
    ended: bool = False


class LiveBatch(Frozen):
    chunks: list[LiveChunk] = Field(max_length=64)
