"""What a node is told: command line first, then environment, then the machine."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sandbox.launcher import NodeRefusesError
from sandbox.tiers import Tier

DEFAULT_MAX_QUEUED = 4096


@dataclass(frozen=True)
class NodeSettings:
    """The settings of one node."""

    host: str = "127.0.0.1"
    port: int = 8088
    boxes: int = 0  # 0: by the number of cores
    state_dir: Path = Path("var/sandbox")
    platform: str = ""  # "": by trial
    allow_unisolated: bool = False
    max_queued: int = DEFAULT_MAX_QUEUED

    @property
    def name(self) -> str:
        """How answers name this node."""
        return f"{os.uname().nodename}:{self.port}"

    def box_counts(self) -> dict[Tier, int]:
        """Boxes per tier: one more than the cores, because some calls sleep; half of them light."""
        total = self.boxes or (os.cpu_count() or 1) + 1
        numpy = total // 4 or int(total > 2)
        sympy = max(1, total // 4)
        counts = {Tier.LIGHT: total - numpy - sympy, Tier.NUMPY: numpy, Tier.SYMPY: sympy}
        return {tier: count for tier, count in counts.items() if count}


def read_settings(
    environ: Mapping[str, str], *, host: str, port: int, boxes: int, state_dir: Path | None
) -> NodeSettings:
    """Settings from the command line and SANDBOX_PLATFORM, SANDBOX_STATE_DIR, SANDBOX_ALLOW_UNISOLATED."""
    if boxes < 0 or boxes > 1024:
        raise NodeRefusesError(f"--boxes {boxes}: give a number from 1 to 1024")
    return NodeSettings(
        host=host,
        port=port,
        boxes=boxes,
        state_dir=(state_dir or Path(environ.get("SANDBOX_STATE_DIR", "var/sandbox"))).resolve(),
        platform=environ.get("SANDBOX_PLATFORM", ""),
        allow_unisolated=environ.get("SANDBOX_ALLOW_UNISOLATED", "") == "1",
    )
