"""Ray for a run: which sandbox nodes it uses, its vLLM engines and the ranks of its learner, one an actor. The only
file of the trainer that imports ray, and only inside a Ray cluster, for engines or for ranks."""

import asyncio
import importlib.util
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from trainer.policy.rank_host import LearnerLost
from trainer.rollout.engine import EngineDead, EngineError, EngineLoad, Generation, SamplingSpec
from trainer.rollout.remote import EngineFacts, EngineSettings, NewTokens, UpdateReport

DEFAULT_SANDBOX = "http://127.0.0.1:8088"
NAMESPACE = "astrolabe"
AGENT_PREFIX = "sandbox-"
ANSWER_S = 10.0
PROJECT = Path(__file__).resolve().parent.parent
ENGINE_PYTHON = PROJECT / ".venv-vllm/bin/python"  # made by `make vllm`
PLACEMENT_S = 120.0
OWN_STARTS = 3
OBJECT_STORE_BYTES = 100_000_000  # turns are small, weights do not pass through it
MAX_CALLS = 4096  # at once, of one engine
CPU_ENGINE = {"OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
ANY_ENGINE = {
    "PYTHONPATH": str(PROJECT),
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
RANK = {"PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
DEATH_S = 10.0  # until Ray knows of a death that other ranks have seen
_log = logging.getLogger("trainer.cluster")


def sandbox_urls() -> list[str]:
    """SANDBOX_URLS if it is set; else the node agents of the Ray cluster we run in; else the node of this machine."""
    return _listed_urls() or agent_urls() or [DEFAULT_SANDBOX]


def agent_urls() -> list[str]:
    """Where the cluster's node agents say that their nodes are now; [] when they are not ours to use, or unknown."""
    if _listed_urls() or not _is_in_cluster():
        return []
    import ray  # takes a second, and is not installed everywhere

    try:
        _connect(ray)
        actors = ray.util.list_named_actors(all_namespaces=True)
        names = [a["name"] for a in actors if a["namespace"] == NAMESPACE and a["name"].startswith(AGENT_PREFIX)]
        asked = [answer for name in sorted(names) for answer in _ask_agent(ray, name)]
        answered, _ = ray.wait(asked, num_returns=len(asked), timeout=ANSWER_S) if asked else ([], [])
        return [url for answer in answered for url in _read_url(ray, answer)]
    except (ray.exceptions.RayError, ConnectionError, RuntimeError) as error:
        _log.warning("Ray does not say where the sandbox nodes are: %s", error)
        return []


def _listed_urls() -> list[str]:
    return [url.strip() for url in os.environ.get("SANDBOX_URLS", "").split(",") if url.strip()]


def _ask_agent(ray: Any, name: str) -> list[Any]:
    """Its answer to come, or nothing when it died since it was listed."""
    try:
        return [ray.get_actor(name, namespace=NAMESPACE).url.remote()]
    except ValueError:
        return []


def _read_url(ray: Any, answer: Any) -> list[str]:
    try:
        return [str(ray.get(answer))]
    except ray.exceptions.RayError:
        return []


def _is_in_cluster() -> bool:
    ray = sys.modules.get("ray")
    return bool(os.environ.get("RAY_ADDRESS")) or (ray is not None and ray.is_initialized())


def _connect(ray: Any, **options: Any) -> None:
    if ray.is_initialized():
        return
    handler = signal.getsignal(signal.SIGTERM)
    ray.init(**{"address": "auto"} | options, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.WARNING)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)  # a stop is ours to handle, not Ray's


def _start_own(ray: Any, cpus: int) -> None:
    """A Ray of this process; a busy machine gets a second and a third try, for Ray itself waits 30 s and no longer."""
    for left in reversed(range(OWN_STARTS)):
        try:
            own = {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
            _connect(ray, address="local", **own)
            return
        except Exception:  # Ray raises no other class here
            ray.shutdown()
            if not left:
                raise


def _open(ray: Any, cpus: int) -> bool:
    """Connect to the cluster we are in, or start a Ray of our own: then True, and it is ours to end."""
    is_own = not _is_in_cluster()
    if is_own:
        _start_own(ray, max(cpus, os.cpu_count() or 1))
    else:
        _connect(ray)
    return is_own


def _reserve(ray: Any, count: int, what: str, each: int, *, is_on_gpu: bool) -> Any:
    """A placement group, a bundle of `each` GPUs or CPUs for each of them. Those on CPUs sit on this node, whose memory
    they exchange weights in."""
    if is_on_gpu:
        bundle: dict[str, float] = {"GPU": each}
    else:
        here = ray.get_runtime_context().get_node_id()
        node = next(n for n in ray.nodes() if n["NodeID"] == here)
        bundle = {"CPU": each, f"node:{node['NodeManagerAddress']}": 0.001}
    group = ray.util.placement_group([bundle] * count, strategy="PACK")
    if not group.wait(PLACEMENT_S):
        ray.util.remove_placement_group(group)
        raise PlacesUnavailable(
            f"Ray has had no {count * each} free {'GPUs' if is_on_gpu else 'CPUs of this node'} for as many {what} in "
            f"{PLACEMENT_S:.0f} s: wait until other runs have ended, or set {what} lower"
        )
    return group


class PlacesUnavailable(Exception):
    """There can be no vLLM engines, or no ranks, here; the message says what to do."""


class EngineHost:
    """A place in the cluster for each of `count` engines, and the engines in them. `close` it at the end.

    Outside a cluster a Ray of its own is started on this machine, with `spare` CPUs more. An engine's actor is never
    restarted by Ray: what it held is gone with it, so the pool starts another one in the same place and gives it the
    newest weights first.
    """

    def __init__(self, count: int, settings: EngineSettings, spare: int = 0) -> None:
        self._settings = settings
        self._python = _engine_python()
        import ray  # takes a second, and is not installed everywhere

        self._ray = ray
        self._is_own = _open(ray, count * settings.tensor_parallel + spare)
        self._group = _reserve(ray, count, "engines", settings.tensor_parallel, is_on_gpu=settings.is_on_gpu)

    def start(self, number: int) -> "RayEngine":
        """A new engine in place `number`; returns at once, `facts` answers when it is up."""
        scheduling = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        environment = ANY_ENGINE | ({} if self._settings.is_on_gpu else CPU_ENGINE)
        actor = (
            self._ray.remote(EngineActor)
            .options(
                num_cpus=0 if self._settings.is_on_gpu else self._settings.tensor_parallel,
                num_gpus=self._settings.tensor_parallel if self._settings.is_on_gpu else 0,
                scheduling_strategy=scheduling(self._group, placement_group_bundle_index=number),
                max_restarts=0,
                max_concurrency=MAX_CALLS,
                runtime_env={"py_executable": self._python, "env_vars": environment},
            )
            .remote(self._settings)
        )
        return RayEngine(self._ray, actor)

    def close(self) -> None:
        self._ray.util.remove_placement_group(self._group)
        if self._is_own:
            self._ray.shutdown()


def _engine_python() -> str:
    """The interpreter that has vLLM: one of its own beside the project, or this one."""
    if ENGINE_PYTHON.exists():
        return str(ENGINE_PYTHON)
    if importlib.util.find_spec("vllm") is not None:
        return sys.executable
    raise PlacesUnavailable("engines above 0 need vLLM, which is not installed: `make vllm` installs it for CPUs")


class EngineActor:
    """What runs in an engine's process: imports vLLM there, and only there."""

    def __init__(self, settings: EngineSettings) -> None:
        from trainer.rollout.vllm_engine import VllmEngine

        self._engine = VllmEngine(settings)

    async def call(self, method: str, *arguments: Any) -> Any:
        return await getattr(self._engine, method)(*arguments)

    async def stream(
        self, request_id: str, ids: Sequence[int], spec: SamplingSpec
    ) -> AsyncGenerator[NewTokens | Generation]:
        async for made in self._engine.stream(request_id, ids, spec):
            yield made


class RayEngine:
    """`trainer.rollout.remote.RemoteEngine` by an actor's handle."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray = ray
        self._actor = actor

    async def facts(self) -> EngineFacts:
        return await self._call("facts")

    async def generate(self, request_id: str, ids: Sequence[int], spec: SamplingSpec) -> Generation:
        return await self._call("generate", request_id, ids, spec)

    async def stream(
        self, request_id: str, ids: Sequence[int], spec: SamplingSpec
    ) -> AsyncGenerator[NewTokens | Generation]:
        made = self._actor.stream.options(num_returns="streaming").remote(request_id, ids, spec)
        try:
            async for reference in made:
                yield await self._answer(reference)
        finally:
            self._ray.cancel(made)  # nothing happens when it has ended

    async def pause(self) -> None:
        await self._call("pause")

    async def resume(self) -> None:
        await self._call("resume")

    async def init_transfer(self, info: dict[str, Any]) -> None:
        await self._call("init_transfer", info)

    async def update(self, info: dict[str, Any], version: int, names: Sequence[str]) -> UpdateReport:
        return await self._call("update", info, version, names)

    async def probe(self, request_id: str, ids: Sequence[int]) -> list[float]:
        return await self._call("probe", request_id, ids)

    async def load(self) -> EngineLoad:
        return await self._call("load")

    def kill(self) -> None:
        self._ray.kill(self._actor)

    async def _call(self, method: str, *arguments: Any) -> Any:
        return await self._answer(self._actor.call.remote(method, *arguments))

    async def _answer(self, reference: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return await reference
        except asyncio.CancelledError:
            self._ray.cancel(reference)
            raise
        except errors.RayTaskError as error:
            cause = error.cause
            raise cause if isinstance(cause, EngineError) else EngineError(f"{type(cause).__name__}: {cause}") from None
        except (errors.RayActorError, errors.ObjectLostError, errors.RuntimeEnvSetupError) as error:
            raise EngineDead(_first_line(error)) from None


class LearnerHost:
    """A place in the cluster for each rank of the learner, and the ranks in them: a `RankHost` of the learners.

    Ray restarts no rank (`max_restarts=0`): its part of the weights is gone, so all begin anew at a checkpoint.
    """

    def __init__(self, ranks: int, source: Path, *, is_on_gpu: bool = False) -> None:
        """`source`: the model folder that each rank reads first."""
        import ray  # takes a second, and is not installed everywhere

        self._ray = ray
        self._source = source
        self._count = ranks
        self._is_on_gpu = is_on_gpu
        self._is_own = _open(ray, ranks)
        self._group = _reserve(ray, ranks, "ranks", 1, is_on_gpu=is_on_gpu)
        self._ranks: list[Any] = []

    def start(self) -> None:
        """End what ranks there are and start all, joined in one process group; LearnerLost when one dies of it."""
        self._end()
        scheduling = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        self._ranks = [
            self._ray.remote(RankActor)
            .options(
                num_cpus=0 if self._is_on_gpu else 1,
                num_gpus=1 if self._is_on_gpu else 0,
                scheduling_strategy=scheduling(self._group, placement_group_bundle_index=rank),
                max_restarts=0,
                runtime_env={"py_executable": sys.executable, "env_vars": RANK},
            )
            .remote()
            for rank in range(self._count)
        ]
        [meeting] = self._wait_for([self._ranks[0].find_meeting.remote()])
        where = (meeting, self._count, str(self._source), self._is_on_gpu)
        self._wait_for([actor.join.remote(rank, *where) for rank, actor in enumerate(self._ranks)])

    def call(self, method: str, *arguments: Any, **named: Any) -> list[Any]:
        """What each rank returns; LearnerLost when one died meanwhile."""
        given = [self._ray.put(argument) for argument in arguments]
        return self._wait_for([actor.call.remote(method, *given, **named) for actor in self._ranks])

    def close(self) -> None:
        self._end()
        self._ray.util.remove_placement_group(self._group)
        if self._is_own:
            self._ray.shutdown()

    def pids(self) -> list[int]:
        """The process of each rank."""
        return self._wait_for([actor.pid.remote() for actor in self._ranks])

    def _end(self) -> None:
        for actor in self._ranks:
            self._ray.kill(actor)
        self._ranks = []

    def _wait_for(self, answers: Sequence[Any]) -> list[Any]:
        """All answers. Where one is an error the others get a moment: a rank that died is often seen by them first."""
        left = list(answers)
        while left:
            done, left = self._ray.wait(left, num_returns=1)
            error = self._error_of(done[0])
            if error is None:
                continue
            more, _ = self._ray.wait(left, num_returns=len(left), timeout=DEATH_S) if left else ([], [])
            errors = [error, *filter(None, map(self._error_of, more))]
            if lost := [e for e in errors if isinstance(e, self._ray.exceptions.RayActorError)]:
                raise LearnerLost(f"a rank of the learner is gone: {_first_line(lost[0])}") from None
            raise getattr(error, "cause", None) or error
        found: list[Any] = self._ray.get(list(answers))
        return found

    def _error_of(self, answer: Any) -> Exception | None:
        try:
            self._ray.get(answer)
        except self._ray.exceptions.RayError as error:
            return error
        return None


class RankActor:
    """What runs in a rank's process."""

    def find_meeting(self) -> str:
        """Where the ranks meet: a free port here, asked of the first one."""
        import ray

        address: str = ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((address, 0))
            return f"tcp://{address}:{probe.getsockname()[1]}"

    def join(self, rank: int, meeting: str, ranks: int, source: str, is_on_gpu: bool) -> None:
        import torch

        from trainer.pipeline import prepare_libraries
        from trainer.policy.learners import OwnLearner
        from trainer.policy.parallel import CPU, GPU

        prepare_libraries(1)
        if is_on_gpu:
            torch.cuda.set_device(0)  # Ray shows each rank its own only
        backend = "nccl" if is_on_gpu else "gloo"
        torch.distributed.init_process_group(backend, init_method=meeting, rank=rank, world_size=ranks)
        self._learner = OwnLearner.shard(Path(source), GPU if is_on_gpu else CPU)

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        return getattr(self._learner, method)(*arguments, **named)

    def pid(self) -> int:
        return os.getpid()


def _first_line(error: Exception) -> str:
    """Ray's own text is pages long. That of an engine that never came up says why in its last line."""
    cause = getattr(error, "cause", None)
    lines = [line.strip() for line in str(cause or error).splitlines() if line.strip()]
    return lines[-1 if "__init__" in str(error) else 0] if lines else type(error).__name__
