"""What the sandbox is asked and what it answers: the wire format of `POST /v1/run`.

The request is one JSON document (`ExecutionBatch`); the reply is NDJSON, one `Execution` a line,
in the order the calls finish. A program that fails is an `Execution`; a service that fails is an
`Execution` whose status is ours (`rejected`, `sandbox_error`), which the client turns into
`SandboxUnavailable` and never into something the model reads.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from pydantic import Field

from contracts.base import Frozen

MAX_CODE_BYTES = 1 << 20
MAX_BATCH_CALLS = 256
MAX_HISTORY_CELLS = 64


class ExecutionStatus(StrEnum):
    """How one program ended. The last two are the service's own failures."""

    OK = "ok"
    ERROR = "error"  # non-zero exit: exception, SyntaxError, sys.exit(1)
    TIMEOUT = "timeout"  # wall clock
    CPU_LIMIT = "cpu_limit"
    MEMORY = "memory"
    OUTPUT_LIMIT = "output_limit"
    SIGNAL = "signal"  # killed by a signal the program caused itself
    REJECTED = "rejected"  # the node is full; see retry_after_s
    SANDBOX_ERROR = "sandbox_error"

    @property
    def is_ours(self) -> bool:
        """True when the service, not the program, failed: never shown to the model, never graded."""
        return self in (ExecutionStatus.REJECTED, ExecutionStatus.SANDBOX_ERROR)


class Limits(Frozen):
    """What one program may use."""

    wall_s: float = Field(5.0, gt=0, le=120, description="seconds from its start to its end, sleep included")
    cpu_s: float = Field(4.0, gt=0, le=120, description="seconds of CPU a program may use, over all its processes")
    memory_mb: int = Field(512, ge=32, le=16384, description="MB a process may take beyond the warm interpreter")
    processes: int = Field(32, ge=1, le=256, description="processes and threads at once")
    file_mb: int = Field(16, ge=0, le=1024, description="MB of the largest file it may write; 0: none")
    open_files: int = Field(64, ge=8, le=1024, description="files and sockets open at once")
    output_kb: int = Field(64, ge=1, le=4096, description="kB kept of stdout and of stderr each, head and tail")


_LIMIT_NAMES = {  # of the ends at a limit: name, field of Limits, unit
    ExecutionStatus.TIMEOUT: ("time limit", "wall_s", "s"),
    ExecutionStatus.CPU_LIMIT: ("CPU time limit", "cpu_s", "s"),
    ExecutionStatus.MEMORY: ("memory limit", "memory_mb", "MB"),
}


def name_limit(status: ExecutionStatus | None, limits: Mapping[str, Any]) -> str:
    """'time limit of 5 s' for a program that ended there; '' for another end. Without the number where `limits`,
    by the fields of `Limits`, has none."""
    if status not in _LIMIT_NAMES:
        return ""
    name, field, unit = _LIMIT_NAMES[status]
    value = limits.get(field)
    return f"{name} of {value:g} {unit}" if isinstance(value, (int, float)) else name


class LimitProfile(StrEnum):
    """Named limits that a recipe may choose."""

    SIMPLE = "simple"
    COMPLEX = "complex"
    SYMBOLIC = "symbolic"
    PAPER = "paper"  # code-judge as rStar2-Agent's release sets it: 4 s, 256 MB and 128 for the interpreter

    @property
    def limits(self) -> Limits:
        """The limits of the profile; CPU time always ends before wall time."""
        return _PROFILES[self]


_PROFILES = {
    LimitProfile.SIMPLE: Limits(),
    LimitProfile.COMPLEX: Limits(wall_s=30, cpu_s=25, memory_mb=1024),
    LimitProfile.SYMBOLIC: Limits(wall_s=60, cpu_s=50, memory_mb=2048),
    LimitProfile.PAPER: Limits(wall_s=4, cpu_s=3.5, memory_mb=384),
}


class ExecutionCall(Frozen):
    """One program to run. `id` is the caller's and comes back unchanged."""

    id: str = Field(min_length=1, max_length=128)
    code: str
    stdin: str = ""
    limits: Limits = Limits()
    seed: int | None = Field(None, description="seeds random and numpy in the program; None: fresh entropy")
    history: list[str] = Field(
        default_factory=list,
        max_length=MAX_HISTORY_CELLS,
        description="earlier cells, run again first in the same process, their output thrown away",
    )


class ExecutionBatch(Frozen):
    """Body of `POST /v1/run`."""

    calls: list[ExecutionCall] = Field(min_length=1, max_length=MAX_BATCH_CALLS)
    run_id: str = Field("", max_length=128, description="who asks; boxes are shared fairly between run ids")
    deadline_s: float | None = Field(
        None, gt=0, description="seconds the caller waits; a call that could not start by then is rejected"
    )


class Execution(Frozen):
    """What the sandbox did for a call. Text is decoded with replacement, bounded, head and tail kept."""

    id: str
    status: ExecutionStatus
    exit_code: int | None = None
    signal: int | None = None
    stdout: str = ""
    stderr: str = ""
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    truncated: bool = False
    queue_ms: float = 0.0
    exec_ms: float = 0.0
    cpu_ms: float = 0.0
    max_rss_kb: int = Field(0, description="largest resident set of one process of the call")
    attempts: int = 1
    node: str = ""
    box: str = ""
    isolation: str = ""
    reason: str = ""
    retry_after_s: float | None = None


class NodeHealth(Frozen):
    """Body of `GET /v1/health`."""

    node: str
    isolated: bool
    isolation: str = Field(description="e.g. 'gvisor/ptrace 20240729'; 'none' when unisolated")
    boxes: int
    ready: int
    busy: int
    queued: int
    served: int
    replaced: int
    wait_s: float = Field(0.0, description="estimated wait of a call that came now")
    calls_per_s: float = Field(0.0, description="answers per second when every box is busy, as measured")
    cores: int = 1
