"""Ray for a run: which sandbox nodes it uses, where there is room, and its vLLM engines, one an actor; the ranks of its
learner are in `ranks`. The only file of the trainer that imports ray, and only inside a Ray cluster, for engines or for
ranks."""

import asyncio
import importlib.util
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from trainer.devices import show_only
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


class RayUse:
    """Ray, as long as somebody uses it: that of the cluster we are in; outside of one a Ray of this process's own,
    which its first user starts, with all GPUs that it finds, and its last one ends. `cpus`: of all users to come."""

    _own_users = 0

    def __init__(self, cpus: int = 1) -> None:
        import ray  # takes a second, and is not installed everywhere

        self.ray: Any = ray
        self._is_own = RayUse._own_users > 0 or not _is_in_cluster()
        if not self._is_own:
            _connect(ray)
        elif not RayUse._own_users:
            _start_own(ray, max(cpus, os.cpu_count() or 1))
        RayUse._own_users += self._is_own

    def end(self) -> None:
        """A second time does nothing."""
        was_own, self._is_own = self._is_own, False
        RayUse._own_users -= was_own
        if was_own and not RayUse._own_users:
            self.ray.shutdown()

    def require_gpus(self, count: int) -> None:
        """PlacesUnavailable when there are fewer in all, whoever has them now."""
        found = int(self.ray.cluster_resources().get("GPU", 0))
        if found < count:
            raise PlacesUnavailable(
                f"the recipe is laid out for {count} GPUs and Ray has {found} here: lower gpus with ranks and engines, "
                "or set gpus: 0 to run on CPUs; `python -m trainer explain RECIPE` prints what the run needs"
            )


def show_own_gpus() -> None:
    """Let an actor's process see those that Ray gave it and no others, by one variable: before torch looks for any."""
    import ray
    import torch

    show_only(",".join(map(str, ray.get_gpu_ids())), os.environ, is_rocm=torch.version.hip is not None)


def node_address() -> str:
    """Of the machine that this actor is on."""
    import ray

    return str(ray.util.get_node_ip_address())


def reserve(ray: Any, count: int, what: str, each: int, *, is_on_gpu: bool) -> Any:
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
        self._use = RayUse(count * settings.tensor_parallel + spare)
        self._ray = self._use.ray
        try:
            self._group = reserve(self._ray, count, "engines", settings.tensor_parallel, is_on_gpu=settings.is_on_gpu)
        except BaseException:
            self._use.end()
            raise

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
        self._use.end()


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
        if settings.is_on_gpu:
            show_own_gpus()
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
            raise EngineDead(first_line(error)) from None


def first_line(error: Exception) -> str:
    """Ray's own text is pages long. That of an engine that never came up says why in its last line."""
    cause = getattr(error, "cause", None)
    lines = [line.strip() for line in str(cause or error).splitlines() if line.strip()]
    return lines[-1 if "__init__" in str(error) else 0] if lines else type(error).__name__
