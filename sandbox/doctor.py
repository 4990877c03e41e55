"""python -m sandbox doctor: every self-test of a node with a plain verdict, for the person who set the machine up."""

import asyncio
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from contracts.execution import ExecutionCall, Limits
from sandbox.box import Box, BoxError
from sandbox.gvisor import GvisorLauncher, find_runsc
from sandbox.launcher import NodeRefusesError
from sandbox.node import NO_RUNSC, launchers_for
from sandbox.platforms import Trial, cheapest, try_all
from sandbox.selftest import attack
from sandbox.settings import NodeSettings
from sandbox.tiers import Tier

# What each program must come to; the limits are short so that the doctor is.
_LIMITS = (
    ("wall time", "timeout", "import time; time.sleep(9)", Limits(wall_s=0.5)),
    ("cpu time", "cpu_limit", "while True: pass", Limits(wall_s=9, cpu_s=0.5)),
    ("memory", "memory", "x = bytearray(900 << 20)", Limits(memory_mb=256)),
    ("output", "output_limit", "while True: print('x' * 1000)", Limits(output_kb=4)),
)


async def doctor(settings: NodeSettings) -> int:
    """Print the verdicts; 0 when a node would serve here."""
    runsc = await asyncio.to_thread(find_runsc, settings.runsc)
    if runsc is None:
        _say("runsc", False, NO_RUNSC)
        return 1
    _say("runsc", True, f"{runsc.path}, release {runsc.version}, platforms {', '.join(runsc.platforms)}")
    settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A folder of its own: a node that serves from this state directory keeps its boxes.
    with tempfile.TemporaryDirectory(dir=settings.state_dir, prefix="doctor-") as folder:
        own = replace(settings, state_dir=Path(folder))
        _share_root(settings.state_dir, own.state_dir)
        trials = await try_all(await launchers_for(runsc, own))
        for trial in trials:
            _say(f"platform {trial.launcher.platform}", trial.cpu_ms is not None, _describe(trial))
        try:
            launcher = cheapest(runsc, trials)
            _say("box", True, launcher.isolation)
            return 0 if await _examine(launcher) else 1
        except (BoxError, NodeRefusesError) as error:
            _say("box", False, str(error))
            return 1
        finally:
            for trial in trials:
                trial.launcher.close()


async def _examine(launcher: GvisorLauncher) -> bool:
    """Walls, limits and the image of a box. Only the first two decide whether a node would serve."""
    box = await Box.start(launcher, Tier.LIGHT, cold=True)
    try:
        verdicts = [(verdict.check, verdict.is_held, verdict.detail) for verdict in await attack(box)]
    finally:
        await box.close()
    box = await Box.start(launcher, Tier.LIGHT, cold=True)
    try:
        for name, status, code, limits in _LIMITS:
            reply = await box.run(ExecutionCall(id=name, code=code, limits=limits))
            await box.wait_ready()
            verdicts.append((name, reply["status"] == status, f"{reply['status']} after {reply['exec_ms']:.0f} ms"))
    finally:
        await box.close()
    for check, is_held, detail in verdicts:
        _say(check, is_held, detail)
    _say("memory group", launcher.has_memory_groups, "of the host, around each box", "not allowed here")
    restored_s = await _restore(launcher)
    _say("restore", restored_s is not None, f"answers after {restored_s or 0:.2f} s", "boxes are replaced from cold")
    return all(is_held for _, is_held, _ in verdicts)


async def _restore(launcher: GvisorLauncher) -> float | None:
    """Seconds from an image to an answer; None when it does not restore."""
    template = await Box.start(launcher, Tier.LIGHT, cold=True)
    if not await template.save_image():
        return None
    started = time.perf_counter()
    box = await Box.start(launcher, Tier.LIGHT)
    spent = time.perf_counter() - started
    await box.close()
    return None if launcher.wants_image(Tier.LIGHT) or not box.is_restored else spent


def _share_root(state_dir: Path, own: Path) -> None:
    """Build no second root when the node has one."""
    for root in state_dir.glob("rootfs-*"):
        shutil.copytree(root, own / root.name, symlinks=True, copy_function=_link)


def _link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)


def _describe(trial: Trial) -> str:
    return trial.fault if trial.cpu_ms is None else f"{trial.cpu_ms:.0f} ms of CPU for a simple call"


def _say(check: str, is_held: bool, detail: str, otherwise: str = "") -> None:
    """One line. A check with something to say `otherwise` is no failure: the node does without it."""
    word = "ok" if is_held else "none" if otherwise else "FAILED"
    sys.stdout.write(f"{check:<18} {word:<8} {otherwise if otherwise and not is_held else detail}\n")
