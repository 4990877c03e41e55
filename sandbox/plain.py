"""The fork-server as a plain process: no isolation at all, for machines without runsc whose owner accepts that."""

import contextlib
import os
import shutil
import signal
import sys
import uuid
from pathlib import Path

from sandbox.launcher import Launched, memory_mb_of, spawn, threads_of, wait_dead
from sandbox.tiers import Tier


class PlainLauncher:
    """Starts fork-servers beside the node. Limits hold; walls there are none."""

    isolation = "none"
    is_isolated = False

    def __init__(self, *, state_dir: Path) -> None:
        self._state_dir = state_dir
        (state_dir / "logs").mkdir(parents=True, exist_ok=True)

    async def start(self, tier: Tier, *, cold: bool = False) -> Launched:
        """There are no images here: every start is cold."""
        box_id = f"box-{uuid.uuid4().hex[:10]}"
        work_dir = self._work_dir(box_id)
        work_dir.mkdir(parents=True)
        argv = [sys.executable, "-B", "-s", "-m", "sandbox.guest.forkserver", tier.value, "plain", str(work_dir)]
        env = {
            "PATH": os.environ.get("PATH", ""),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(Path(__file__).resolve().parent.parent),
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "MALLOC_ARENA_MAX": "1",
            "PYTHONHASHSEED": "0",
        }
        log_path = self._state_dir / "logs" / f"{box_id}.log"
        process = await spawn(argv, log_path=log_path, env=env)
        return Launched(box_id, tier, process, False, log_path)

    def _work_dir(self, box_id: str) -> Path:
        return self._state_dir / "work" / box_id

    async def kill(self, launched: Launched) -> None:
        """Kill the fork-server and its children: each of them has a session of its own, so one by one."""
        pid = launched.process.pid
        children = _children(pid)
        with contextlib.suppress(ProcessLookupError):
            launched.process.kill()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        await wait_dead(launched.process, 2.0)
        shutil.rmtree(self._work_dir(launched.box_id), ignore_errors=True)
        launched.log_path.unlink(missing_ok=True)

    def helpers(self, launched: Launched) -> list[int]:
        """None."""
        return []

    def load(self, launched: Launched) -> int:
        """Threads of the fork-server."""
        return threads_of(launched.process.pid)

    def move(self, launched: Launched, cpu: int) -> bool:
        """Of no use here."""
        return False

    def memory_mb(self, launched: Launched) -> int:
        """Of the fork-server."""
        return memory_mb_of(launched.process.pid)

    def allow_memory(self, launched: Launched, memory_mb: int) -> None:
        """No host limit here."""

    def oom_kills(self, launched: Launched) -> int:
        """None known."""
        return 0

    def inspect(self, launched: Launched) -> dict[str, str]:
        """There are no walls to look at."""
        return {}

    def close(self) -> None:
        """Nothing is held."""

    async def save_image(self, launched: Launched) -> bool:
        """A plain process cannot be checkpointed."""
        await self.kill(launched)
        return False

    def wants_image(self, tier: Tier) -> bool:
        """Never."""
        return False

    def forget_image(self, tier: Tier) -> None:
        """Nothing to forget."""


def _children(pid: int) -> list[int]:
    """The descendants of `pid`, children before grandchildren."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
            found += [child, *_children(child)]
    return found
