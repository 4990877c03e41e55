"""What this machine gives us: cores, memory and CPU time, as the innermost limit says (affinity, cgroup v1 or v2)."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

_MIB = 1 << 20
_ROOT = Path("/")


def count_cores(root: Path = _ROOT) -> int:
    """Cores that we may use: affinity, and the CPU quota of the cgroup rounded up."""
    return max(1, min(len(os.sched_getaffinity(0)), math.ceil(_quota_cores(root))))


def available_mb(root: Path = _ROOT) -> int:
    """Memory that could still be taken, in MiB: the machine's, or what the cgroup leaves when that is less."""
    lines = (root / "proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    for folder in _cgroups(root, "memory"):
        limit = _number(folder / "memory.max", folder / "memory.limit_in_bytes")
        used = _number(folder / "memory.current", folder / "memory.usage_in_bytes")
        if limit is not None and used is not None:
            free = min(free, limit - used + _cache_bytes(folder))
    return max(0, int(free)) // _MIB


def idle_share(before: tuple[int, int], after: tuple[int, int]) -> float:
    """Share of the machine's CPU time that nobody used between two `cpu_ticks`."""
    total = after[0] - before[0]
    return (after[1] - before[1]) / total if total > 0 else 0.0


def cpu_ticks(root: Path = _ROOT) -> tuple[int, int]:
    """CPU time of all cores since boot and how much of it was idle, in ticks."""
    fields = [int(word) for word in (root / "proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(fields), fields[3] + fields[4]


def _quota_cores(root: Path) -> float:
    cores = math.inf
    for folder in _cgroups(root, "cpu"):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            quota, period = str(_number(folder / "cpu.cfs_quota_us")), str(_number(folder / "cpu.cfs_period_us"))
        if quota.isdigit() and period.isdigit():  # neither "max" nor -1 nor missing
            cores = min(cores, int(quota) / int(period))
    return cores if cores < math.inf else 1 << 16


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """The folders that may hold our limits: our own cgroup and, inside a container, the root of the mount."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, names, path = line.split(":", 2)
        if names == "":  # version 2
            yield from dict.fromkeys((root / "sys/fs/cgroup", root / "sys/fs/cgroup" / path.lstrip("/")))
        elif controller in names.split(","):
            top = root / "sys/fs/cgroup" / controller
            yield from dict.fromkeys((top, top / path.lstrip("/")))


def _cache_bytes(folder: Path) -> int:
    """File cache that the kernel drops when memory is wanted; it counts as used."""
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    stat = dict(line.split(" ", 1) for line in lines if " " in line)
    return int(stat.get("total_inactive_file", stat.get("inactive_file", "0")))


def _number(*paths: Path) -> int | None:
    """The number in the first of the files that exists; None for "max" or none at all."""
    for path in paths:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        return int(text) if text.lstrip("-").isdigit() else None
    return None
