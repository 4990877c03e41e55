"""What the driver and an engine in its own process say to each other. No torch, no vLLM, no Ray here."""

from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trainer.rollout.engine import EngineLoad, Generation, SamplingSpec

MEMORY_SHARE = 0.9  # of a GPU that an engine has to itself
VLLM_MINOR = "0.32"  # its weight transfer changes with every minor version; all calls into it are in `vllm_engine`


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How one engine is started. `max_running`: requests in one batch; `memory_share`: of the GPU's memory."""

    model: str  # a folder in transformers' format; the weights are replaced before the first request
    max_context: int
    is_on_gpu: bool = False
    tensor_parallel: int = 1  # GPUs, or processes on CPUs, that share its model
    max_running: int = 256
    memory_share: float = MEMORY_SHARE

    @property
    def dtype(self) -> str:
        return "bfloat16" if self.is_on_gpu else "float32"


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What a started engine says of itself: vLLM's version, its process and the GPUs that it sees."""

    version: str
    pid: int
    gpus: str = ""


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """What an engine holds after an update. `checksums`: sha256 of the float32 bytes of parameters, by name."""

    version: int
    checksums: dict[str, str]
    seconds: float


@dataclass(frozen=True, slots=True)
class NewTokens:
    """Part of a turn, for the live view."""

    ids: list[int]
    entropies: list[float]


class Host(Protocol):
    """Starts engines, and has a place for each."""

    def start(self, number: int) -> "RemoteEngine":
        """A new engine in place `number`; returns at once, `facts` answers when it is up."""
        ...

    def close(self) -> None: ...


class RemoteEngine(Protocol):
    """An engine in a process of its own. Every call raises EngineDead when that process is gone, and EngineError
    for a request that can never be generated; a call that is cancelled is cancelled there too."""

    async def facts(self) -> EngineFacts: ...

    async def generate(self, request_id: str, ids: Sequence[int], spec: SamplingSpec) -> Generation: ...

    def stream(
        self, request_id: str, ids: Sequence[int], spec: SamplingSpec
    ) -> AsyncIterator[NewTokens | Generation]: ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def init_transfer(self, info: dict[str, Any]) -> None: ...

    def update(self, info: dict[str, Any], version: int, names: Sequence[str]) -> Coroutine[Any, Any, UpdateReport]: ...

    async def probe(self, request_id: str, ids: Sequence[int]) -> list[float]: ...

    async def load(self) -> EngineLoad: ...

    def kill(self) -> None: ...
