"""What a node is told: command line first, then environment, then the machine."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from contracts.execution import LimitProfile
from sandbox.launcher import NodeRefusesError
from sandbox.machine import available_mb, count_cores
from sandbox.scaling import count_boxes, fit_total
from sandbox.tiers import DEFAULT_TIERS, Tier

MOST_BOXES = 1024
DEFAULT_MAX_QUEUED = 65_536
DEFAULT_MAX_QUEUED_MB = 512


@dataclass(frozen=True)
class NodeSettings:
    """The settings of one node."""

    host: str = "127.0.0.1"
    port: int = 8088
    boxes: int = 0  # 0: by cores and memory, and up to `max_boxes` while calls sleep
    token: str = ""  # "": whoever reaches the node may ask it
    state_dir: Path = Path("var/sandbox")
    runsc: str = ""  # "": the one on PATH
    platform: str = ""  # "": by trial
    tiers: tuple[Tier, ...] = DEFAULT_TIERS  # the image holds the packages of the richest
    allow_unisolated: bool = False
    max_boxes: int = 0  # 0: as many as `boxes` when that is given, else twice as many as the node starts with
    max_queued: int = DEFAULT_MAX_QUEUED
    max_queued_mb: int = DEFAULT_MAX_QUEUED_MB
    judge_profile: LimitProfile = LimitProfile.PAPER  # of programs that come by code-judge's endpoints

    @property
    def name(self) -> str:
        """How answers name this node."""
        return f"{os.uname().nodename}:{self.port}"

    def box_counts(self) -> dict[Tier, int]:
        """Boxes per tier at start, as far as memory goes: two a core, for calls that sleep and tiers in demand."""
        wanted = max(2 * count_cores() + 1, len(self.tiers))
        total = self.boxes or fit_total(self.tiers, wanted=wanted, memory_mb=available_mb())
        return count_boxes(self.tiers, total=total)

    def most_boxes(self) -> int:
        """How many boxes there may be while calls sleep."""
        if self.max_boxes or self.boxes:
            return max(self.max_boxes, self.boxes)
        at_start = sum(self.box_counts().values())
        return fit_total(self.tiers, wanted=2 * at_start, memory_mb=available_mb())


def read_settings(
    environ: Mapping[str, str], *, host: str, port: int, boxes: int, state_dir: Path | None
) -> NodeSettings:
    """Settings from the command line and the SANDBOX_… variables that the README lists."""
    if boxes < 0 or boxes > MOST_BOXES:
        raise NodeRefusesError(f"--boxes {boxes}: give a number from 1 to {MOST_BOXES}")
    return NodeSettings(
        host=host,
        port=port,
        boxes=boxes,
        token=environ.get("SANDBOX_TOKEN", ""),
        state_dir=(state_dir or Path(environ.get("SANDBOX_STATE_DIR", "var/sandbox"))).resolve(),
        runsc=environ.get("SANDBOX_RUNSC", ""),
        platform=environ.get("SANDBOX_PLATFORM", ""),
        tiers=_tiers(environ.get("SANDBOX_TIERS", "")),
        allow_unisolated=environ.get("SANDBOX_ALLOW_UNISOLATED", "") == "1",
        max_boxes=_number(environ, "SANDBOX_MAX_BOXES", 0, most=MOST_BOXES),
        max_queued=_number(environ, "SANDBOX_MAX_QUEUED", DEFAULT_MAX_QUEUED, most=10_000_000),
        max_queued_mb=_number(environ, "SANDBOX_MAX_QUEUED_MB", DEFAULT_MAX_QUEUED_MB, most=1 << 20),
        judge_profile=_profile(environ.get("SANDBOX_JUDGE_PROFILE", LimitProfile.PAPER.value)),
    )


def _number(environ: Mapping[str, str], name: str, default: int, *, most: int) -> int:
    text = environ.get(name, "") or str(default)
    if not text.isdigit() or int(text) > most:
        raise NodeRefusesError(f"{name}={text}: give a number from 0 to {most}")
    return int(text)


def _tiers(text: str) -> tuple[Tier, ...]:
    names = text.replace(",", " ").split()
    unknown = [name for name in names if name not in set(Tier)]
    if unknown:
        raise NodeRefusesError(f"SANDBOX_TIERS={text}: {unknown[0]!r} is not one of {', '.join(Tier)}")
    return tuple(tier for tier in Tier if tier in names) or DEFAULT_TIERS


def _profile(name: str) -> LimitProfile:
    try:
        return LimitProfile(name)
    except ValueError:
        raise NodeRefusesError(f"SANDBOX_JUDGE_PROFILE={name}: choose from {', '.join(LimitProfile)}") from None
