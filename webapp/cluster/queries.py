"""Reads of the cluster. A node that does not answer is a fact to show, not an error of the page."""

from dataclasses import dataclass

from asgiref.sync import async_to_sync
from django.conf import settings

from contracts.execution import NodeHealth
from sandbox.client import SandboxClient


@dataclass(frozen=True)
class SandboxNode:
    """`health` is None when the node does not answer."""

    url: str
    health: NodeHealth | None


def sandbox_nodes() -> list[SandboxNode]:
    """Every configured node, asked now; a dead one costs the client's connect timeout."""
    return [SandboxNode(url, health) for url, health in async_to_sync(_ask)().items()]


async def _ask() -> dict[str, NodeHealth | None]:
    client = SandboxClient(settings.SANDBOX_URLS)
    try:
        return await client.health()
    finally:
        await client.aclose()
