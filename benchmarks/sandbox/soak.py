"""10,000 calls of the mix with hostile ones among them on one real node: `make soak-sandbox`.

Every 500 calls, with the node idle, it counts what a leak would show in: memory, threads and file descriptors of the
node, number, threads and memory of its sentries, files of the state directory, cgroups. The run is flat when no median
of the last third is above that of the first third, after a warm-up, by more than its bound.

The number of boxes is fixed and the programs have time, so that the verdict is the same on a busy machine.
"""

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from benchmarks.sandbox.contestants import Node, settle
from benchmarks.sandbox.load import burst
from benchmarks.sandbox.machine import descendants, rss_kb
from benchmarks.sandbox.report import table
from benchmarks.sandbox.workload import Expected, Kind, Task, mixed_load
from contracts.execution import ExecutionCall, ExecutionStatus, Limits

CALLS = 10_000
SAMPLE_EVERY = 500
SENDERS = 8
WARM_UP_SAMPLES = 2
HOSTILE_SHARE = 0.02
ANY_END = frozenset(status for status in ExecutionStatus if not status.is_ours)
PATIENT_LIMITS = Limits(wall_s=20.0, cpu_s=20.0)  # a slow machine is no fault of the sandbox
HOSTILE_LIMITS = Limits(wall_s=1.0, cpu_s=1.0, memory_mb=256)
HOSTILE = {
    "fork bomb": "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n",
    "threads": "import threading, time\nfor _ in range(500):\n"
    "    threading.Thread(target=time.sleep, args=[9]).start()\n",
    "memory": "x = []\nwhile True:\n    x.append(bytearray(8 << 20))\n",
    "output": "while True:\n    print('x' * 10000)\n",
    "daemon": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(100)\nprint('left one')\n",
    "files": "for n in range(3000):\n    open(f'f{n}', 'w').write('x')\nprint('done')\n",
    "kills": "import os, signal\nos.kill(-1, signal.SIGKILL)\n",
    "deaf": "import signal\nfor n in range(1, 32):\n    try:\n        signal.signal(n, signal.SIG_IGN)\n"
    "    except OSError:\n        pass\nwhile True:\n    pass\n",
    "crash": "import ctypes\nctypes.string_at(0)\n",
}


@dataclass(frozen=True)
class Sample:
    """What the node holds at one moment. Everything but the first two must stay flat."""

    calls: int
    replaced: int
    node_rss_mb: float
    node_threads: int
    node_fds: int
    sentries: int
    sentry_threads: int
    sentry_rss_mb: float
    processes: int
    state_files: int
    cgroups: int


# By how much the median of the last third may exceed that of the first: a ratio, and so many for small numbers.
BOUNDS: dict[str, tuple[float, float]] = {
    "node_rss_mb": (1.15, 8),
    "node_threads": (1.0, 2),
    "node_fds": (1.0, 6),
    "sentries": (1.0, 1),
    # A box just replaced has few threads and processes, one before its recycling many: all boxes together swing.
    "sentry_threads": (1.5, 100),
    "sentry_rss_mb": (1.3, 60),
    "processes": (1.5, 60),
    "state_files": (1.0, 4),
    "cgroups": (1.0, 1),
}


def growth(samples: Sequence[Sample]) -> list[str]:
    """What grew past its bound, one sentence each; nothing when the run is flat."""
    settled = samples[max(0, min(WARM_UP_SAMPLES, len(samples) - 2)) :]
    third = max(1, len(settled) // 3)
    found = []
    for name, (ratio, slack) in BOUNDS.items():
        first = statistics.median(getattr(sample, name) for sample in settled[:third])
        last = statistics.median(getattr(sample, name) for sample in settled[-third:])
        if last > max(first * ratio, first + slack):
            found.append(f"{name} grew from {first:g} to {last:g}")
    return found


def soak_load(count: int, seed: int) -> list[Task]:
    """The mix with a hostile program in every fifty."""
    rng = random.Random(seed)
    tasks = [task if task.kind.is_over_limit else _patient(task) for task in mixed_load(count, seed)]
    for index in rng.sample(range(count), round(count * HOSTILE_SHARE)):
        name = rng.choice(sorted(HOSTILE))
        call = ExecutionCall(id=f"{name}-{index}", code=HOSTILE[name], limits=HOSTILE_LIMITS)
        tasks[index] = Task(call, Kind.SPIN, Expected(ANY_END, is_any_output=True))
    return tasks


def _patient(task: Task) -> Task:
    return replace(task, call=task.call.model_copy(update={"limits": PATIENT_LIMITS}))


async def soak(node: Node, tasks: Sequence[Task]) -> tuple[list[Sample], Counter[str], list[str]]:
    """Run it; samples, how the calls ended, and what was wrong with answers."""
    samples, statuses, faults = [await _look(node, 0)], Counter[str](), []
    started = time.monotonic()
    for done, part in _parts(tasks):
        measured = await burst(node, part, senders=SENDERS)
        statuses.update(sample.status for sample in measured.samples)
        faults += [f"{sample.kind.value}: {sample.fault}" for sample in measured.faults]
        if measured.lost or measured.duplicates:
            faults.append(f"{measured.lost} lost, {measured.duplicates} answered twice before call {done}")
        samples.append(await _look(node, done))
        print(f"{done} calls, {time.monotonic() - started:.0f} s", flush=True)
    return samples, statuses, faults


def _parts(tasks: Sequence[Task]) -> Iterator[tuple[int, Sequence[Task]]]:
    for start in range(0, len(tasks), SAMPLE_EVERY):
        part = tasks[start : start + SAMPLE_EVERY]
        yield start + len(part), part


async def _look(node: Node, calls: int) -> Sample:
    await settle(node)
    health = await node.health()
    sentries = node.sentries()
    return Sample(
        calls=calls,
        replaced=health.replaced,
        node_rss_mb=round(rss_kb(node.pid) / 1024, 1),
        node_threads=_count(f"/proc/{node.pid}/task"),
        node_fds=_count(f"/proc/{node.pid}/fd"),
        sentries=len(sentries),
        sentry_threads=sum(_count(f"/proc/{pid}/task") for pid in sentries),
        sentry_rss_mb=round(sum(map(rss_kb, sentries)) / 1024, 1),
        processes=len(descendants(node.pid)),
        state_files=sum(len(names) for folder, _, names in os.walk(node.state_dir) if "rootfs-" not in folder),
        cgroups=_cgroups(sentries),
    )


def _count(folder: str) -> int:
    try:
        return len(os.listdir(folder))
    except OSError:
        return 0


def _cgroups(sentries: Sequence[int]) -> int:
    """Control groups beside those the sentries are in, where the node makes some: those of dead boxes must go."""
    nodes: set[Path] = set()
    for pid in sentries:
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            group = Path("/sys/fs/cgroup") / controllers / path.lstrip("/")
            if group.parent.name.startswith("astrolabe-"):
                nodes.add(group.parent)
    return sum(entry.is_dir() for folder in nodes for entry in folder.iterdir())


def main() -> int:
    """Print the table and the verdict; code 1 when something grew or an answer was wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sandbox.soak", description=__doc__)
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--boxes", type=int, default=2 * len(os.sched_getaffinity(0)) + 1)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sandbox-soak-") as folder:
        samples, statuses, faults = asyncio.run(_run(options, Path(folder)))
    header = [field.name for field in fields(Sample)]
    print(f"\n{table(header, [list(asdict(sample).values()) for sample in samples])}")
    print(f"\nended: {', '.join(f'{count} {status}' for status, count in statuses.most_common())}")
    found = growth(samples)
    for line in [*found, *faults[:20]]:
        print(line)
    print(f"verdict: {'NOT flat' if found else 'flat'}, {len(faults)} faults")
    return 1 if found or faults else 0


async def _run(options: argparse.Namespace, folder: Path) -> tuple[list[Sample], Counter[str], list[str]]:
    node = Node("ours", folder / "node", boxes=options.boxes)
    try:
        await node.start()
        return await soak(node, soak_load(options.calls, options.seed))
    finally:
        await node.stop()


if __name__ == "__main__":
    sys.exit(main())
