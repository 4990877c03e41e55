"""The grader: answers are compared in worker processes that can be killed."""

from contracts.scoring import Grade


class GraderPool:
    """`async with GraderPool() as grader`, or `close()`: afterwards no process is left."""

    def __init__(self, processes: int = 1, timeout_s: float = 10.0) -> None:
        raise NotImplementedError

    async def grade(self, answer: str | None, reference: str) -> Grade:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError
