"""What the fork-server asks of and does to single processes."""

import contextlib
import os
import resource


def signal_one(pid: int, number: int) -> None:
    """Send a signal; a process that is gone is none to fail over."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and its threads so far; 0 when it has just ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rsplit(b")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    """Bytes of memory that a process sees, shared or not; 0 when it has ended."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/statm", "rb") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
    return 0


def all_but_me() -> list[int]:
    """Pids of every other process of the box."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def own_children() -> list[int]:
    """Pids of the children of this process."""
    with contextlib.suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(pid) for pid in file.read().split()]
    return []
