"""How much memory a call holds, all its processes and files together, as the kernel of the box counts it.

A fork in gVisor copies what it shares in large units, so that each process of a call holds pages of the tier as its
own. How much that is, is measured when the box starts: it is no doing of the program. What earlier programs freed and
the box keeps (sandbox/freed_memory.py) is in no count here.
"""

import os
import signal
from collections.abc import Callable
from typing import NamedTuple

from sandbox.guest import processes

MIB = 1 << 20
MARGIN_MB = 96  # what a MemoryError's traceback takes, and pages of the tier that few programs touch
MOST_MARGIN_MB = 256  # less than the host allows (sandbox/cgroup.py), so that the box is the first to tell


class MemoryMeter(NamedTuple):
    """Tells a call that is over its limit. Both in bytes."""

    idle: int  # what the box holds without a call
    copied: int  # what each process of a call holds as its own at least, before its program has done anything

    @classmethod
    def measure(cls, touch: Callable[[], None]) -> "MemoryMeter":
        """Before the first call. `touch` does what a usual program does; a child runs it."""
        idle = _in_use()
        read_fd, write_fd = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                touch()
                os.write(write_fd, b".")
                signal.pause()
            finally:
                os._exit(1)
        os.close(write_fd)
        if not os.read(read_fd, 1):
            raise RuntimeError("the first child of the box died")
        copied = _in_use() - idle
        processes.signal_one(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read_fd)
        return cls(idle, copied)

    def is_over(self, memory_mb: int) -> bool:
        """True when what runs in the box besides us holds more than a call of `memory_mb` may."""
        held = _in_use() - self.idle
        return held > allowed(memory_mb, copied=0) and held > allowed(memory_mb, copied=self._copied_now())

    def _copied_now(self) -> int:
        """A process that has dropped the tier's pages, by exec for one, has no claim to them."""
        return sum(min(processes.resident(pid), self.copied) for pid in processes.all_but_me())


def allowed(memory_mb: int, *, copied: int) -> int:
    """Bytes that a call may hold: half as much again as its limit, and what its processes copy of the tier."""
    return min((memory_mb * 3 // 2 + MARGIN_MB) * MIB + copied, (memory_mb * 2 + MOST_MARGIN_MB) * MIB)


def _in_use() -> int:
    """Bytes of the whole box: memory of its processes, shared or not, and files in memory."""
    with open("/proc/meminfo", "rb") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(b"AnonPages:")) * 1024
