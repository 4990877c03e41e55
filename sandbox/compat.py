"""Other services' endpoints on this node, so that their clients need no change: code-judge and SandboxFusion.

Formats only. What goes wrong with the program is told as they tell it; what goes wrong with us becomes their value
for that (`queue_timeout`, `internal_error`, `SandboxError`), so that it is retried and never graded. Both run
programs as a plain interpreter does: the value of a last expression is not echoed.
"""

import base64
import binascii
import uuid
from collections.abc import Sequence
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from contracts.execution import Execution, ExecutionCall, ExecutionStatus, LimitProfile, Limits
from sandbox.callers import RefusedError, parse, unless_gone
from sandbox.pool import Pool

JUDGE_QUEUE_S = 4.0  # as code-judge: work that waited longer is not begun, unless it came as a long batch
JUDGE_LONG_QUEUE_S = 3600.0
JUDGE_OUTPUT_CHARS = 1000  # as code-judge: the first so many of each stream
LONGEST_WALL_S = 120.0
NO_ECHO = "\npass\n"  # a program whose last statement is no expression echoes nothing


class Foreign(BaseModel):
    """A format of somebody else: keys we do not know are passed over."""

    model_config = ConfigDict(frozen=True)


# code-judge


class Submission(Foreign):
    """One program for `/run` and `/judge`."""

    sub_id: str | None = None
    type: Literal["python", "cpp", "math"]
    options: dict[str, str] | None = None
    solution: str
    input: str | None = None
    expected_output: str | None = None


class BatchSubmission(Foreign):
    """Body of the batch endpoints."""

    sub_id: str | None = None
    type: Literal["batch"] = "batch"
    submissions: list[Submission] = Field(min_length=1)


class Reason(StrEnum):
    """Why there is no ordinary result."""

    UNSPECIFIED = ""
    INTERNAL_ERROR = "internal_error"
    WORKER_TIMEOUT = "worker_timeout"
    QUEUE_TIMEOUT = "queue_timeout"
    INVALID_INPUT = "invalid_input"


class JudgeResult(Foreign):
    """What `/judge` answers. `success`: it ran, and printed what was expected."""

    sub_id: str
    success: bool
    run_success: bool
    cost: float
    reason: Reason = Reason.UNSPECIFIED


class RunResult(JudgeResult):
    """What `/run` answers: the output too."""

    stdout: str | None = None
    stderr: str | None = None


class BatchJudgeResult(Foreign):
    """What `/judge/batch` and `/judge/long-batch` answer, in the order of the submissions."""

    sub_id: str
    results: list[JudgeResult]


class BatchRunResult(Foreign):
    """What `/run/batch` and `/run/long-batch` answer, in the order of the submissions."""

    sub_id: str
    results: list[RunResult]


# SandboxFusion


class RunCodeRequest(Foreign):
    """Body of `/run_code`."""

    compile_timeout: float = 10.0
    run_timeout: float = Field(10.0, gt=0)
    memory_limit_MB: int = Field(-1, description="-1: the node's default")
    code: str
    stdin: str | None = None
    language: str
    files: dict[str, str | None] = Field(default_factory=dict, description="content in base64, by path")
    fetch_files: list[str] = Field(default_factory=list, description="not supported here")


class RunStatus(StrEnum):
    """How the whole went. The last one is the service's own failure."""

    SUCCESS = "Success"
    FAILED = "Failed"
    SANDBOX_ERROR = "SandboxError"


class CommandStatus(StrEnum):
    """How a command ended."""

    FINISHED = "Finished"
    ERROR = "Error"
    TIME_LIMIT_EXCEEDED = "TimeLimitExceeded"


class CommandResult(Foreign):
    """What a command did."""

    status: CommandStatus
    execution_time: float | None = None
    return_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None


class RunCodeResponse(Foreign):
    """What `/run_code` answers."""

    status: RunStatus
    message: str = ""
    compile_result: CommandResult | None = None
    run_result: CommandResult | None = None
    executor_pod_name: str | None = None
    files: dict[str, str] = Field(default_factory=dict)


def routes(pool: Pool, judge_profile: LimitProfile) -> list[Route]:
    """The endpoints around a pool. code-judge's requests name no limits: they get those of the profile."""
    limits = judge_profile.limits

    def judge_one(*, with_output: bool) -> Route:
        async def endpoint(request: Request) -> Response:
            submission = await parse(request, Submission)
            results = await _judge(pool, request, [submission], limits, JUDGE_QUEUE_S)
            return _json(results[0] if with_output else _without_output(results[0]))

        return Route("/run" if with_output else "/judge", endpoint, methods=["POST"])

    def judge_many(name: str, queue_s: float, *, with_output: bool) -> Route:
        async def endpoint(request: Request) -> Response:
            batch = await parse(request, BatchSubmission)
            results = await _judge(pool, request, batch.submissions, limits, queue_s)
            sub_id = batch.sub_id or str(uuid.uuid4())
            if with_output:
                return _json(BatchRunResult(sub_id=sub_id, results=results))
            return _json(BatchJudgeResult(sub_id=sub_id, results=[_without_output(result) for result in results]))

        return Route(f"/{'run' if with_output else 'judge'}/{name}", endpoint, methods=["POST"])

    async def judge_status(_: Request) -> Response:
        return _json(JudgeStatus(queue=len(pool.queue), num_workers=len(pool.slots)))

    async def run_code(request: Request) -> Response:
        return _json(await _run_code(pool, request, await parse(request, RunCodeRequest)))

    async def ping(_: Request) -> Response:
        return PlainTextResponse('"pong"', media_type="application/json")

    return [
        *(judge_one(with_output=with_output) for with_output in (True, False)),
        *(judge_many("batch", JUDGE_QUEUE_S, with_output=with_output) for with_output in (True, False)),
        *(judge_many("long-batch", JUDGE_LONG_QUEUE_S, with_output=with_output) for with_output in (True, False)),
        Route("/status", judge_status),
        Route("/ping", ping),
        Route("/run_code", run_code, methods=["POST"]),
        Route("/v1/ping", ping),
    ]


class JudgeStatus(Foreign):
    """What `/status` answers."""

    queue: int
    num_workers: int


async def _run_all(
    pool: Pool, request: Request, calls: Sequence[ExecutionCall], *, run_id: str, deadline_s: float
) -> dict[str, Execution]:
    """Run the calls and return what came of them by id; forgets them when the caller hangs up."""
    answers = pool.submit(calls, run_id=run_id, deadline_s=deadline_s)

    async def collect() -> dict[str, Execution]:
        found: dict[str, Execution] = {}
        while executions := await answers.take():
            found.update((execution.id, execution) for execution in executions)
        return found

    try:
        found = await unless_gone(request.receive, collect())
    finally:
        pool.abandon(answers)
    if found is None:
        raise RefusedError(400, "the caller has gone")
    return found


async def _judge(
    pool: Pool, request: Request, submissions: Sequence[Submission], limits: Limits, queue_s: float
) -> list[RunResult]:
    calls = [
        ExecutionCall(id=str(number), code=one.solution + NO_ECHO, stdin=one.input or "", limits=limits)
        for number, one in enumerate(submissions)
        if one.type == "python"
    ]
    found = await _run_all(pool, request, calls, run_id="code-judge", deadline_s=queue_s)
    return [_to_result(one, found.get(str(number))) for number, one in enumerate(submissions)]


def _to_result(submission: Submission, execution: Execution | None) -> RunResult:
    sub_id = submission.sub_id or str(uuid.uuid4())
    if execution is None:
        return RunResult(
            sub_id=sub_id,
            success=False,
            run_success=False,
            cost=0.0,
            reason=Reason.INVALID_INPUT,
            stderr=f"this node runs python, not {submission.type}",
        )
    ran = execution.status is ExecutionStatus.OK
    expected = submission.expected_output
    return RunResult(
        sub_id=sub_id,
        success=ran and (expected is None or execution.stdout.strip() == expected.strip()),
        run_success=ran,
        cost=execution.exec_ms / 1000,
        reason=_reason(execution.status),
        stdout=execution.stdout[:JUDGE_OUTPUT_CHARS],
        stderr=execution.stderr[:JUDGE_OUTPUT_CHARS],
    )


def _reason(status: ExecutionStatus) -> Reason:
    match status:
        case ExecutionStatus.REJECTED:
            return Reason.QUEUE_TIMEOUT
        case ExecutionStatus.SANDBOX_ERROR:
            return Reason.INTERNAL_ERROR
        case ExecutionStatus.TIMEOUT | ExecutionStatus.CPU_LIMIT:
            return Reason.WORKER_TIMEOUT
        case _:
            return Reason.UNSPECIFIED


def _without_output(result: RunResult) -> JudgeResult:
    return JudgeResult(**result.model_dump(exclude={"stdout", "stderr"}))


async def _run_code(pool: Pool, request: Request, asked: RunCodeRequest) -> RunCodeResponse:
    mark = uuid.uuid4().hex  # what no program prints
    try:
        call = _to_call(asked, mark)
    except ValueError as error:
        return RunCodeResponse(status=RunStatus.SANDBOX_ERROR, message=str(error), executor_pod_name=pool.node)
    found = await _run_all(pool, request, [call], run_id="sandbox-fusion", deadline_s=JUDGE_LONG_QUEUE_S)
    execution = found[call.id]
    if execution.status.is_ours:
        message = f"{execution.status.value}: {execution.reason}"
        return RunCodeResponse(status=RunStatus.SANDBOX_ERROR, message=message, executor_pod_name=pool.node)
    if mark in execution.stderr:
        message = f"the files could not be written: {execution.stderr.partition(mark)[2].strip(': ')[:500].strip()}"
        return RunCodeResponse(status=RunStatus.SANDBOX_ERROR, message=message, executor_pod_name=pool.node)
    is_late = execution.status in (ExecutionStatus.TIMEOUT, ExecutionStatus.CPU_LIMIT)
    ran = CommandResult(
        status=CommandStatus.TIME_LIMIT_EXCEEDED if is_late else CommandStatus.FINISHED,
        execution_time=execution.exec_ms / 1000,
        return_code=None if is_late else _return_code(execution),
        stdout=execution.stdout,
        stderr=execution.stderr,
    )
    status = RunStatus.SUCCESS if execution.status is ExecutionStatus.OK else RunStatus.FAILED
    return RunCodeResponse(status=status, run_result=ran, executor_pod_name=pool.node)


def _return_code(execution: Execution) -> int:
    """As the subprocess module gives it; a program that we ended over a limit died of SIGKILL."""
    if execution.exit_code is not None:
        return execution.exit_code
    return -(execution.signal or 9)


def _to_call(asked: RunCodeRequest, mark: str) -> ExecutionCall:
    """The call that was asked for; raises ValueError with the sentence for the caller."""
    if asked.language != "python":
        raise ValueError(f"this node runs python, not {asked.language}")
    if asked.fetch_files:
        raise ValueError("this node hands back no files: fetch_files is not supported")
    wall_s = min(asked.run_timeout, LONGEST_WALL_S)
    memory_mb = 1024 if asked.memory_limit_MB <= 0 else min(max(asked.memory_limit_MB, 32), 16384)
    return ExecutionCall(
        id="run_code",
        code=asked.code + NO_ECHO,
        stdin=asked.stdin or "",
        limits=Limits(wall_s=wall_s, cpu_s=0.9 * wall_s, memory_mb=memory_mb),
        history=_files_cell(asked.files, mark),
    )


def _files_cell(files: dict[str, str | None], mark: str) -> list[str]:
    """A cell that writes the files before the program runs; its names stay its own.

    Should it fail, the call ends there with `mark` on stderr: a program without its files would be blamed for us.
    """
    given = {path: content for path, content in files.items() if content is not None}
    if not given:
        return []
    for path, content in given.items():
        try:
            base64.b64decode(content, validate=True)
        except (binascii.Error, ValueError):
            raise ValueError(f"the content of {path!r} is not base64") from None
    source = (
        "try:\n"
        "    import base64, os\n"
        f"    for path, content in {given!r}.items():\n"
        "        os.makedirs(os.path.dirname(path) or '.', exist_ok=True)\n"
        "        with open(path, 'wb') as file:\n"
        "            file.write(base64.b64decode(content))\n"
        "except BaseException as error:\n"
        f"    raise BaseException(f'{mark}: {{error}}') from None\n"
    )
    return [f"exec({source!r}, {{}})"]


def _json(value: BaseModel) -> Response:
    return Response(value.model_dump_json(), media_type="application/json")
