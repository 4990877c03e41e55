import pytest

from contracts.execution import ExecutionStatus, Limits, name_limit


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (ExecutionStatus.TIMEOUT, "time limit of 5 s"),
        (ExecutionStatus.CPU_LIMIT, "CPU time limit of 2.5 s"),
        (ExecutionStatus.MEMORY, "memory limit of 16384 MB"),
        (ExecutionStatus.OUTPUT_LIMIT, ""),
        (ExecutionStatus.OK, ""),
        (None, ""),
    ],
)
def test_the_limit_a_program_reached_is_named(status: ExecutionStatus | None, words: str) -> None:
    assert name_limit(status, dict(Limits(cpu_s=2.5, memory_mb=16384))) == words


def test_a_limit_nobody_wrote_down_has_no_number() -> None:
    assert name_limit(ExecutionStatus.MEMORY, {"memory_mb": None}) == "memory limit"
