"""The attack every node survives before it serves."""

from dataclasses import dataclass
from pathlib import Path

from contracts.execution import ExecutionCall, Limits
from sandbox.box import Box, BoxError
from sandbox.launcher import NodeRefusesError

CHECKS = (
    "identity", "become-root", "write-root", "remount", "init-memory", "init-pipes", "own-fds", "kill-init",
    "trace-init", "network", "raw-sockets", "host-files", "devices", "secrets",
)  # fmt: skip
SURVIVAL = "kill-all"  # the probe ends with kill(-1): the box must answer the next call all the same
LEFTOVER = "old-memory"  # what one program left in memory must not be there for the next
_STAIN = "import mmap\nm = mmap.mmap(-1, 48 << 20)\nm[:] = b'stain/72' * (6 << 20)"
_SEARCH = "import mmap\nm = mmap.mmap(-1, 64 << 20)\nprint(m.find(b'stain/72'), m.read(64 << 20).count(0) >> 20)"


@dataclass(frozen=True)
class Verdict:
    """One check of the self-test."""

    check: str
    is_held: bool
    detail: str = ""


async def attack(box: Box) -> list[Verdict]:
    """Look at the box from outside, run the escape probe in it, then see whether it still answers.

    Leaves the box fit for the bin only.
    """
    seen = [Verdict(check, not fault, fault) for check, fault in box.inspect().items()]
    return [*seen, await _look_for_leftovers(box), *await _attack_inside(box)]


async def _look_for_leftovers(box: Box) -> Verdict:
    try:
        for code in (_STAIN, _SEARCH):
            reply = await box.run(ExecutionCall(id=LEFTOVER, code=code, limits=Limits(wall_s=10, cpu_s=10)))
            await box.wait_ready()
    except BoxError as error:
        return Verdict(LEFTOVER, False, f"the programs did not finish: {error}")
    found = "" if reply["stdout"] == "-1 64\n" else f"{reply['status']}: {reply['stdout']}{reply['stderr'][-300:]}"
    return Verdict(LEFTOVER, not found, found)


async def _attack_inside(box: Box) -> list[Verdict]:
    code = (Path(__file__).parent / "escape_probe.py").read_text()
    limits = Limits(wall_s=10, cpu_s=10)
    try:
        reply = await box.run(ExecutionCall(id="escape", code=code, limits=limits))
        await box.wait_ready()
    except BoxError as error:
        return [Verdict(check, False, f"the probe did not finish: {error}") for check in (*CHECKS, SURVIVAL)]
    said = dict(line.split(" ", 1) for line in reply["stdout"].splitlines() if " " in line)
    verdicts = []
    for check in CHECKS:
        outcome = said.get(check, f"not reported; the probe ended {reply['status']}: {reply['stderr'][-300:]}")
        verdicts.append(Verdict(check, outcome == "ok", "" if outcome == "ok" else outcome))
    try:
        after = await box.run(ExecutionCall(id="after", code="print(6 * 7)"))
        verdicts.append(Verdict(SURVIVAL, after["stdout"] == "42\n"))
    except BoxError as error:
        verdicts.append(Verdict(SURVIVAL, False, str(error)))
    return verdicts


async def require_isolation(box: Box) -> None:
    """Raise NodeRefusesError naming every check that did not hold."""
    broken = [verdict for verdict in await attack(box) if not verdict.is_held]
    if broken:
        found = "; ".join(f"{verdict.check}: {verdict.detail}" for verdict in broken)
        raise NodeRefusesError(f"the sandbox does not hold, so this node does not serve. {found}")
