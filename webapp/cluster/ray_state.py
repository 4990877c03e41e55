"""What Ray's dashboard says of its cluster: machines, and the agents that keep sandbox nodes on them.

The dashboard is the door: the web app joins no cluster. An agent's URL is its actor's `repr_name`
(`sandbox.ray_node.NodeAgent`). Answers are Ray's own, so what is missing in them is left out and breaks no page.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from webapp.runs.launcher import LauncherUnavailable, get_launcher

AGENT_PREFIX = "sandbox-"
ACTORS = "/api/v0/actors?detail=1&limit=1000&filter_keys=class_name&filter_predicates=%3D&filter_values=NodeAgent"
MACHINES = "/nodes?view=summary"


@dataclass(frozen=True)
class Agent:
    """`state` is Ray's: ALIVE, RESTARTING, PENDING_CREATION or DEAD; `url` is '' until the agent has started."""

    url: str
    state: str
    machine: str
    restarts: int
    death: str = ""

    @property
    def is_dead(self) -> bool:
        return self.state == "DEAD"


@dataclass(frozen=True)
class Gpu:
    name: str
    busy_percent: float | None
    used_mb: float
    total_mb: float


@dataclass(frozen=True)
class Machine:
    """`cpu_percent` of all its cores; memory in bytes; `heard_at`: when it last reported to Ray's head."""

    id: str
    address: str
    host: str
    is_head: bool
    is_alive: bool
    why: str
    cores: int
    cpu_percent: float | None
    memory_used: int
    memory_total: int
    gpus: list[Gpu]
    has_sandbox: bool
    heard_at: datetime | None


@dataclass(frozen=True)
class RayCluster:
    """`error` is why Ray said nothing; then there are no machines and no agents."""

    machines: list[Machine]
    agents: list[Agent]
    error: str = ""


def look_at_ray(*, with_machines: bool = True) -> RayCluster:
    """Asks Ray's dashboard now: for the agents, and first for all machines, which is a long answer."""
    launcher = get_launcher()
    try:
        machines = list(_machines(launcher.look(MACHINES))) if with_machines else []
        agents = _agents(launcher.look(ACTORS), {machine.id: machine.address for machine in machines})
    except LauncherUnavailable as error:
        return RayCluster([], [], str(error))
    return RayCluster(machines, agents)


def _agents(data: dict[str, Any], addresses: dict[str, str]) -> list[Agent]:
    """One of each name; Ray goes on listing the dead ones that were there before it."""
    found: dict[str, Agent] = {}
    for actor in _rows(data.get("result"), "result"):
        name, node = str(actor.get("name") or ""), str(actor.get("node_id") or "")
        if not name.startswith(AGENT_PREFIX) or (name in found and not found[name].is_dead):
            continue
        found[name] = Agent(
            url=str(actor.get("repr_name") or ""),
            state=str(actor.get("state") or ""),
            machine=addresses.get(node, node[:12]),
            restarts=int(actor.get("num_restarts") or 0),
            death=_death(actor.get("death_cause")),
        )
    return list(found.values())


def _death(cause: Any) -> str:
    """The message in Ray's nested cause of death."""
    if not isinstance(cause, dict):
        return ""
    messages = [inner.get("error_message", "") for inner in cause.values() if isinstance(inner, dict)]
    return str(next(filter(None, messages), "")).strip().removesuffix(".")[:300]


def _machines(data: dict[str, Any]) -> Iterator[Machine]:
    for row in _rows(data, "summary"):
        raylet = row.get("raylet") or {}
        memory = row.get("mem") or [0, 0, 0, 0]  # total, available, percent, used
        yield Machine(
            id=str(raylet.get("nodeId", "")),
            address=str(row.get("ip") or raylet.get("nodeManagerAddress") or ""),
            host=str(row.get("hostname") or raylet.get("nodeManagerHostname") or ""),
            is_head=bool(raylet.get("isHeadNode")),
            is_alive=raylet.get("state") == "ALIVE",
            why=str(raylet.get("stateMessage") or "")[:300],
            cores=int((row.get("cpus") or [0])[0] or 0),
            cpu_percent=row.get("cpu"),
            memory_used=int(memory[0] - memory[1]),
            memory_total=int(memory[0]),
            gpus=[_gpu(gpu) for gpu in _rows(row, "gpus")],
            has_sandbox=bool((raylet.get("resourcesTotal") or {}).get("sandbox")),
            heard_at=datetime.fromtimestamp(row["now"], UTC) if row.get("now") else None,
        )


def _gpu(gpu: dict[str, Any]) -> Gpu:
    return Gpu(
        name=str(gpu.get("name", "")),
        busy_percent=gpu.get("utilizationGpu"),
        used_mb=float(gpu.get("memoryUsed") or 0),
        total_mb=float(gpu.get("memoryTotal") or 0),
    )


def _rows(value: Any, key: str) -> list[dict[str, Any]]:
    found = value.get(key) if isinstance(value, dict) else None
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []
