"""Reads of the cluster. A node that does not answer is a fact to show, not an error of the page."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from asgiref.sync import async_to_sync
from django.conf import settings
from django.core.cache import cache
from django.db.models import OuterRef, Subquery
from django.utils import timezone

from contracts.execution import NodeHealth
from sandbox.client import SandboxClient
from webapp.accounts.access import AnyUser, projects_of
from webapp.cluster.ray_state import Agent, RayCluster
from webapp.runs.models import ACTIVE_STATES, Run, TimelineRow

ENGINE_ROWS = 16  # of one run; the rest are on its timeline
RUN_ROWS = 20


class NodeState(StrEnum):
    READY = "ready"
    BUSY = "busy"  # every box works
    STARTING = "starting"
    SILENT = "no answer"
    DEAD = "dead"  # Ray has given its agent up


_RAY_STATES = {"PENDING_CREATION": NodeState.STARTING, "RESTARTING": NodeState.STARTING, "DEAD": NodeState.DEAD}


@dataclass(frozen=True)
class SandboxNode:
    """`health` is None when the node does not answer; `heard_at`: when it last answered this web app.

    `agent` is Ray's, None of a node that is known by its URL alone. Runs send calls to it if `is_used`.
    """

    url: str
    health: NodeHealth | None
    agent: Agent | None = None
    is_used: bool = True
    heard_at: datetime | None = None

    @property
    def state(self) -> NodeState:
        if self.health is None:
            return _RAY_STATES.get(self.agent.state if self.agent else "", NodeState.SILENT)
        if not self.health.ready and not self.health.busy:
            return NodeState.STARTING
        return NodeState.BUSY if self.health.busy >= self.health.boxes else NodeState.READY


@dataclass(frozen=True)
class RunEngines:
    """An active run and its engines in the newest step with a timeline; `lines` are `contracts.events.EngineLine`."""

    run: Run
    kind: str
    asked: int
    step: int | None
    lines: list[dict[str, Any]]
    more: int


def sandbox_nodes(ray: RayCluster) -> list[SandboxNode]:
    """Those named by SANDBOX_URLS, then those of Ray's agents; without any, the one of this machine. Each is asked
    now; a dead one costs the client's connect timeout.

    Runs choose alike (`trainer.cluster.sandbox_urls`): those that are named, else the agents'.
    """
    alive = [agent for agent in ray.agents if not agent.is_dead]
    named = settings.SANDBOX_URLS if settings.SANDBOX_URLS_OF_RUNS or not alive else []
    agents = {agent.url: agent for agent in ray.agents if agent.url}
    health = async_to_sync(_ask)([*dict.fromkeys([*named, *agents])])
    nodes = [
        SandboxNode(
            url,
            answer,
            agents.get(url),
            is_used=url in named or not (named or agents[url].is_dead),
            heard_at=_heard(url, answer),
        )
        for url, answer in health.items()
    ]
    return nodes + [SandboxNode("", None, agent, is_used=not named) for agent in alive if not agent.url]


async def _ask(urls: Sequence[str]) -> dict[str, NodeHealth | None]:
    if not urls:
        return {}
    client = SandboxClient(urls)
    try:
        found = await client.health()
        return {url: found[url.rstrip("/")] for url in urls}
    finally:
        await client.aclose()


def _heard(url: str, health: NodeHealth | None) -> datetime | None:
    """When it last answered: now, or as this web app remembers since it started."""
    key = f"cluster-heard-{hashlib.sha256(url.encode()).hexdigest()}"
    if health is None:
        return cache.get(key)
    now = timezone.now()
    cache.set(key, now, None)
    return now


def engines_of_runs(user: AnyUser) -> list[RunEngines]:
    """Of the user's active runs, newest first. An engine's load is known by step: the driver alone can ask it."""
    newest = TimelineRow.objects.filter(run=OuterRef("pk")).order_by("-stage", "-step").values("pk")[:1]
    runs = list(
        Run.objects.filter(project__in=projects_of(user), state__in=ACTIVE_STATES)
        .select_related("project")
        .annotate(timeline=Subquery(newest))
        .order_by("-created_at", "id")[:RUN_ROWS]
    )
    reports = TimelineRow.objects.in_bulk([run.timeline for run in runs if run.timeline is not None])
    return [_engines(run, reports.get(run.timeline)) for run in runs]


def _engines(run: Run, row: TimelineRow | None) -> RunEngines:
    lines = [_line(line, row.report.get("seconds")) for line in row.report.get("engines", [])] if row else []
    return RunEngines(
        run=run,
        kind=str(run.recipe.get("engine", "torch")),
        asked=int(run.recipe.get("engines", 1)),
        step=row.step if row else None,
        lines=lines[:ENGINE_ROWS],
        more=max(0, len(lines) - ENGINE_ROWS),
    )


def _line(line: dict[str, Any], seconds: float | None) -> dict[str, Any]:
    means = {name: _mean(line.get(name, [])) for name in ("kv_used", "running", "waiting")}
    return line | means | {"tokens_per_s": line.get("tokens", 0) / seconds if seconds else None}


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) / len(known) if known else None
