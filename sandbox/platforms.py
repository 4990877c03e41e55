"""Which of runsc's platforms is best depends on the machine: each is tried, with a deadline, by a few real calls."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from contracts.execution import ExecutionCall
from sandbox.box import Box, BoxError
from sandbox.gvisor import GvisorLauncher, Runsc
from sandbox.launcher import NodeRefusesError
from sandbox.tiers import Tier

TRIAL_S = 20.0
TRIAL_CALLS = 12


@dataclass(frozen=True)
class Trial:
    """What a platform did: CPU of the host per simple call (ms), or why it cannot be used."""

    launcher: GvisorLauncher
    cpu_ms: float | None
    fault: str = ""


async def try_all(launchers: Sequence[GvisorLauncher]) -> list[Trial]:
    """One trial after the other, so that none disturbs another."""
    return [await _try(launcher) for launcher in launchers]


def cheapest(runsc: Runsc, trials: Sequence[Trial]) -> GvisorLauncher:
    """The platform with the least CPU per call; raises NodeRefusesError when none works."""
    working = [(trial.cpu_ms, trial.launcher) for trial in trials if trial.cpu_ms is not None]
    if not working:
        faults = "; ".join(f"{trial.launcher.platform}: {trial.fault}" for trial in trials)
        hint = "" if os.geteuid() == 0 else " (not root: user namespaces may be forbidden here)"
        raise NodeRefusesError(f"runsc {runsc.version} starts no box on this machine{hint}. {faults}")
    return min(working, key=lambda pair: pair[0])[1]


async def _try(launcher: GvisorLauncher) -> Trial:
    """CPU rather than time: neighbours change the one a little and the other a lot."""
    try:
        async with asyncio.timeout(TRIAL_S):
            box = await Box.start(launcher, Tier.LIGHT, cold=True)
            try:
                await _call(box)
                before = _cpu_s(box.pid)
                for _ in range(TRIAL_CALLS):
                    await _call(box)
                return Trial(launcher, (_cpu_s(box.pid) - before) / TRIAL_CALLS * 1000)
            finally:
                await box.close()
    except (BoxError, TimeoutError, psutil.Error) as error:
        return Trial(launcher, None, str(error) or f"no answer within {TRIAL_S:g} s")


async def _call(box: Box) -> None:
    await box.run(ExecutionCall(id="trial", code="print(1)"))
    await box.wait_ready()


def _cpu_s(pid: int) -> float:
    """CPU of a process and all below it, the dead ones too whose parent still lives."""
    top = psutil.Process(pid)
    total = 0.0
    for process in [top, *top.children(recursive=True)]:
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total
