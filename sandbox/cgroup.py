"""A memory limit of the host around each box, where the host lets this process make one.

The fork-server watches the memory of its box from inside; this holds when it cannot, and says that it did. Version 1
and 2 of the kernel's control groups, no daemon. The groups of a node lie in one group that carries its name.
"""

import contextlib
import os
import re
from pathlib import Path

MIB = 1 << 20
BASE_MB = 640  # runsc, its kernel, the imported libraries, files and what a call leaves until it is swept
_ROOT = Path("/sys/fs/cgroup")


class MemoryGroups:
    """The groups of one node's boxes under `folder`."""

    def __init__(self, folder: Path, *, is_v2: bool) -> None:
        self._folder = folder
        self._limit_file = "memory.max" if is_v2 else "memory.limit_in_bytes"
        self._threads_file = "cgroup.threads" if is_v2 else "tasks"
        self._usage_file = "memory.current" if is_v2 else "memory.usage_in_bytes"
        self._allowed: dict[str, int] = {}
        self._events_file = "memory.events" if is_v2 else "memory.oom_control"

    @classmethod
    def make(cls, name: str) -> "MemoryGroups | None":
        """The groups for the node `name`; None where this process may not make any."""
        for base, is_v2 in _candidates():
            folder = base / f"astrolabe-{name}"
            try:
                if is_v2:
                    (base / "cgroup.subtree_control").write_text("+memory")
                folder.mkdir(exist_ok=True)
                if is_v2:
                    (folder / "cgroup.subtree_control").write_text("+memory")
                groups = cls(folder, is_v2=is_v2)
                groups.add("trial")
                groups.allow("trial", 64)
                groups.remove("trial")
            except OSError:
                with contextlib.suppress(OSError):
                    folder.rmdir()
                continue
            return groups
        return None

    def add(self, box_id: str) -> Path:
        """A group for the box. A process joins it by writing its pid to the file this returns."""
        (self._folder / box_id).mkdir(exist_ok=True)
        return self._folder / box_id / "cgroup.procs"

    def allow(self, box_id: str, memory_mb: int) -> None:
        """Let the box use what a call of `memory_mb` may need: more than the fork-server lets it have."""
        if self._allowed.get(box_id) == memory_mb:
            return
        limit = (BASE_MB + 2 * memory_mb) * MIB
        with contextlib.suppress(OSError):  # busy: the box holds more than that just now
            (self._folder / box_id / self._limit_file).write_text(str(limit))
            self._allowed[box_id] = memory_mb

    def usage_mb(self, box_id: str) -> int:
        """Memory charged to the box; 0 when it is gone."""
        try:
            return int((self._folder / box_id / self._usage_file).read_text()) // MIB
        except (OSError, ValueError):
            return 0

    def pin(self, box_id: str, cpu: int) -> None:
        """Put every thread of the box on one core; those it makes later follow."""
        with contextlib.suppress(OSError):
            for tid in (self._folder / box_id / self._threads_file).read_text().split():
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(int(tid), {cpu})

    def oom_kills(self, box_id: str) -> int:
        """Processes of the box that the kernel has killed for memory."""
        try:
            text = (self._folder / box_id / self._events_file).read_text()
        except OSError:
            return 0
        found = re.search(r"^oom_kill (\d+)", text, re.MULTILINE)
        return int(found[1]) if found else 0

    def remove(self, box_id: str) -> None:
        """Remove the group of a box that is dead; while the kernel still buries it this does nothing."""
        with contextlib.suppress(OSError):
            (self._folder / box_id).rmdir()
            self._allowed.pop(box_id, None)

    def remove_dead(self) -> int:
        """Remove every group that is empty. How many are left."""
        with contextlib.suppress(OSError):
            for child in self._folder.iterdir():
                if child.is_dir():
                    self.remove(child.name)
            return sum(child.is_dir() for child in self._folder.iterdir())
        return 0

    def close(self) -> None:
        """Remove the node's group."""
        self.remove_dead()
        with contextlib.suppress(OSError):
            self._folder.rmdir()


def join(procs_file: Path) -> None:
    """Put the calling process into a group; runs between fork and exec."""
    with contextlib.suppress(OSError):
        fd = os.open(procs_file, os.O_WRONLY | os.O_CLOEXEC)
        os.write(fd, b"0")
        os.close(fd)


def _candidates() -> list[tuple[Path, bool]]:
    """Where this process's own memory group is: version 2 first, then 1."""
    try:
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return []
    found = []
    for _, controllers, path in lines:
        if not controllers and "memory" in _words(_ROOT / "cgroup.controllers"):
            found.append((_ROOT / path.lstrip("/"), True))
        elif "memory" in controllers.split(","):
            found.append((_ROOT / "memory" / path.lstrip("/"), False))
    return sorted(found, key=lambda pair: not pair[1])


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
