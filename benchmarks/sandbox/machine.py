"""The machine beside the numbers: what it is, what a page fault costs here, what a tree of processes has used."""

import mmap
import os
import platform
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from sandbox.gvisor import find_runsc

_TICKS = os.sysconf("SC_CLK_TCK")
_FAULT_PAGES = 16_384


@dataclass(frozen=True)
class MachineFacts:
    """What a reader needs to compare these numbers with others."""

    cores: int
    cpu: str
    kernel: str
    python: str
    runsc: str
    nice: int
    anonymous_fault_us: float
    cow_fault_us: float
    load_before: float
    load_after: float = 0.0

    def lines(self) -> list[str]:
        """A markdown table."""
        return ["| machine | |", "|---|---|", *(f"| {name} | {value} |" for name, value in asdict(self).items())]


def read_machine() -> MachineFacts:
    """Measure and read; takes about half a second."""
    model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), flags=re.MULTILINE)
    runsc = find_runsc()
    anonymous, cow = _fault_costs()
    return MachineFacts(
        cores=len(os.sched_getaffinity(0)),
        cpu=model[1] if model else platform.machine(),
        kernel=platform.release(),
        python=platform.python_version(),
        runsc=f"{runsc.version}, {' '.join(runsc.platforms)}" if runsc else "none",
        nice=os.nice(0),
        anonymous_fault_us=round(anonymous, 2),
        cow_fault_us=round(cow, 2),
        load_before=round(os.getloadavg()[0], 2),
    )


def _fault_costs() -> tuple[float, float]:
    """Microseconds of a first write to a page: of fresh memory, and of memory shared with a parent by fork."""
    area = mmap.mmap(-1, _FAULT_PAGES * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_NOHUGEPAGE)
    anonymous = _touch(area) - _touch(area)  # the second pass is the loop without faults
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, repr(_touch(area) - _touch(area)).encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        cow = float(pipe.read())
    os.waitpid(pid, 0)
    area.close()
    return anonymous / _FAULT_PAGES * 1e6, cow / _FAULT_PAGES * 1e6


def _touch(area: mmap.mmap) -> float:
    started = time.process_time()
    for offset in range(0, len(area), mmap.PAGESIZE):
        area[offset] = 1
    return time.process_time() - started


@dataclass(frozen=True)
class Usage:
    """CPU seconds of a tree of processes, ended children included, and of its root alone."""

    tree_s: float
    root_s: float

    def __sub__(self, other: "Usage") -> "Usage":
        return Usage(self.tree_s - other.tree_s, self.root_s - other.root_s)


def usage_of(*roots: int) -> Usage:
    """What the processes `roots`, their descendants and the children they have reaped used so far.

    A process killed together with its parent is missed: its time goes to whoever reaps it. That is a box that died.
    """
    own = {pid: _cpu(pid) for pid in roots}
    tree = sum(own_s + reaped_s for pid in descendants(*roots) for own_s, reaped_s in [_cpu(pid)])
    return Usage(tree + sum(a + b for a, b in own.values()), sum(a for a, _ in own.values()))


def descendants(*roots: int) -> list[int]:
    """Pids of all children, grandchildren and so on, whatever session they are in."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields:
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    waiting = list(roots)
    while waiting:
        mine = children.get(waiting.pop(), [])
        found += mine
        waiting += mine
    return found


def _cpu(pid: int) -> tuple[float, float]:
    """CPU seconds of a process, and of the children it has reaped."""
    fields = _stat(pid)
    if not fields:
        return 0.0, 0.0
    user, system, reaped_user, reaped_system = (int(field) for field in fields[11:15])
    return (user + system) / _TICKS, (reaped_user + reaped_system) / _TICKS


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on; empty when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text[text.rindex(")") + 2 :].split()


def words_of(pid: int) -> list[str]:
    """The command line of a process; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return []


def rss_kb(pid: int) -> int:
    """Resident memory of a process; 0 when it is gone."""
    fields = _stat(pid)
    return int(fields[21]) * mmap.PAGESIZE // 1024 if fields else 0
