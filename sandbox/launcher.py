"""What a box needs of the thing that starts it; gVisor and the unisolated fallback both fit."""

import asyncio
import contextlib
import ctypes
import functools
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sandbox.tiers import Tier

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
STREAM_LIMIT_BYTES = 1 << 20
OOM_SCORE = 700  # when the host runs out of memory a box goes before the node, the database and the trainer


class NodeRefusesError(Exception):
    """The node will not serve; the message is one sentence for the person who started it."""


@dataclass(frozen=True)
class Launched:
    """A started box whose pipes carry frames."""

    box_id: str
    tier: Tier
    process: asyncio.subprocess.Process
    is_restored: bool
    log_path: Path
    cpu: int | None = None  # the core it is pinned to from its start


class Launcher(Protocol):
    """Starts and kills boxes of one kind."""

    isolation: str
    is_isolated: bool

    async def start(self, tier: Tier, *, cold: bool = False) -> Launched:
        """Start a box; `cold` forbids restoring it from an image. It still has to say hello."""
        ...

    async def kill(self, launched: Launched) -> None:
        """End it and all it holds, whatever state it is in."""
        ...

    def helpers(self, launched: Launched) -> list[int]:
        """Processes without which the box seems to work and misleads its programs."""
        ...

    def load(self, launched: Launched) -> int:
        """Host threads the box holds: grows when programs fork a lot, and never shrinks."""
        ...

    def move(self, launched: Launched, cpu: int) -> bool:
        """Pin the box to a core; False where that is not possible or of no use."""
        ...

    def memory_mb(self, launched: Launched) -> int:
        """Memory that the box holds on the host; 0 when it is gone."""
        ...

    def allow_memory(self, launched: Launched, memory_mb: int) -> None:
        """Let the box have what a call of `memory_mb` may need; nothing where the host gives no such limit."""
        ...

    def oom_kills(self, launched: Launched) -> int:
        """Processes of the box that the host has killed for memory so far."""
        ...

    def inspect(self, launched: Launched) -> dict[str, str]:
        """What the host sees of the box's walls: for each check "", or what is wrong."""
        ...

    def close(self) -> None:
        """The node ends: give back what belongs to no box."""
        ...

    async def save_image(self, launched: Launched) -> bool:
        """Turn a ready box into the image later boxes are restored from; the box ends. False: it did not work."""
        ...

    def wants_image(self, tier: Tier) -> bool:
        """True when `save_image` is worth trying for this tier."""
        ...

    def forget_image(self, tier: Tier) -> None:
        """The image does not restore: start cold from now on."""
        ...


def die_with_parent() -> None:
    """Runs in the new process before exec: when the parent dies, however it dies, this one dies."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _before_exec(steps: Sequence[Callable[[], None]]) -> None:
    """A box ends with its node, and is what the host kills first when it runs out of memory."""
    die_with_parent()
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(OOM_SCORE))
    for step in steps:
        step()


async def spawn(
    argv: list[str], *, log_path: Path, env: dict[str, str], before_exec: Sequence[Callable[[], None]] = ()
) -> asyncio.subprocess.Process:
    """Start `argv` with pipes for frames. Must run in the main thread: the death signal follows the thread."""
    # 0600: the box sees this file as its fd 2, and a gVisor of 2022 guards /proc/1/fd/2 by the mode alone.
    with open(log_path, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as log:
        return await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env=env,
            cwd="/",  # runsc drops to nobody, who may not be allowed into the state directory
            limit=STREAM_LIMIT_BYTES,
            start_new_session=True,
            preexec_fn=functools.partial(_before_exec, before_exec),  # noqa: PLW1509 - nothing else of ours runs threads that hold locks here
        )


def threads_of(pid: int) -> int:
    """Number of host threads of a process; 0 when it is gone."""
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def is_running(pid: int) -> bool:
    """False when the process is gone or waits to be reaped."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(1) != b""
    except OSError:
        return False


def memory_mb_of(pid: int) -> int:
    """Resident memory of a process in MiB; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
    except (OSError, ValueError):
        return 0


async def wait_dead(process: asyncio.subprocess.Process, timeout_s: float) -> bool:
    """True when the process ended in time."""
    try:
        await asyncio.wait_for(process.wait(), timeout_s)
    except TimeoutError:
        return False
    return True
