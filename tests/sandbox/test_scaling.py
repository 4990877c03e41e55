"""How many boxes of which tier, and what the machine says it has."""

import os
from pathlib import Path

import pytest

from sandbox.launcher import NodeRefusesError
from sandbox.machine import available_mb, count_cores, cpu_ticks, idle_share
from sandbox.scaling import Move, TierLoad, count_boxes, fit_total, needed_mb, plan
from sandbox.settings import NodeSettings, read_settings
from sandbox.tiers import Tier

TIERS = list(Tier)
LIGHT, RICHEST = TIERS[0], TIERS[-1]
STARVED = {"waiting": 9, "waited_s": 2.0}


def move(*loads: TierLoad, base: int = 3, most: int = 6, idle_cores: float = 1.0) -> Move | None:
    return plan(loads, base=base, most=most, idle_cores=idle_cores)


def test_an_idle_box_of_another_tier_is_turned_over() -> None:
    loads = TierLoad(LIGHT, 2, idle_s=(9.0, 3.0)), TierLoad(RICHEST, 1, **STARVED)
    assert move(*loads) == Move(LIGHT, RICHEST)


def test_it_waits_before_it_does_anything() -> None:
    assert move(TierLoad(LIGHT, 2, idle_s=(9.0,)), TierLoad(RICHEST, 1, waiting=9, waited_s=1.9)) is None


def test_a_box_that_worked_just_now_is_not_turned_over() -> None:
    loads = TierLoad(LIGHT, 2, idle_s=(2.9,)), TierLoad(RICHEST, 1, **STARVED)
    assert move(*loads) == Move(None, RICHEST)
    assert move(*loads, most=3) is None


def test_the_last_box_of_a_tier_stays() -> None:
    loads = TierLoad(LIGHT, 1, idle_s=(60.0,)), TierLoad(RICHEST, 2, **STARVED)
    assert move(*loads) == Move(None, RICHEST)


def test_without_an_idle_core_nothing_would_help() -> None:
    assert move(TierLoad(LIGHT, 2, idle_s=(9.0,)), TierLoad(RICHEST, 1, **STARVED), idle_cores=0.4) is None


def test_calls_that_sleep_are_helped_whoever_else_uses_the_cores() -> None:
    loads = TierLoad(LIGHT, 2, cpu_share=0.19, **STARVED), TierLoad(RICHEST, 1, **STARVED)
    assert move(*loads, idle_cores=0.0) == Move(None, LIGHT)
    assert move(TierLoad(LIGHT, 2, cpu_share=0.21, **STARVED), idle_cores=0.0) is None


def test_the_tier_with_the_longest_line_a_box_is_helped() -> None:
    loads = TierLoad(LIGHT, 4, waiting=8, waited_s=5.0), TierLoad(RICHEST, 1, waiting=3, waited_s=5.0)
    assert move(*loads) == Move(None, RICHEST)


def test_extra_boxes_end_after_half_a_minute() -> None:
    quiet = TierLoad(LIGHT, 3, idle_s=(30.0, 40.0, 50.0)), TierLoad(RICHEST, 1, idle_s=(90.0,))
    assert move(*quiet) == Move(LIGHT, None)
    assert move(*quiet, base=4) is None
    assert move(TierLoad(LIGHT, 4, idle_s=(29.0, 0.1)), base=3) is None


@pytest.mark.parametrize(
    ("total", "expected"), [(1, [0, 1]), (2, [1, 1]), (3, [2, 1]), (5, [4, 1]), (6, [4, 2]), (9, [6, 3])]
)
def test_boxes_of_two_tiers(total: int, expected: list[int]) -> None:
    counts = count_boxes([LIGHT, RICHEST], total=total)
    assert [counts.get(LIGHT, 0), counts.get(RICHEST, 0)] == expected


@pytest.mark.parametrize("total", range(1, 40))
def test_every_box_is_dealt_out(total: int) -> None:
    counts = count_boxes(TIERS, total=total)
    assert sum(counts.values()) == total
    assert counts[RICHEST] >= 1
    assert len(counts) == min(total, len(TIERS))


def test_boxes_fit_into_half_of_the_memory() -> None:
    tiers = [LIGHT, RICHEST]
    room = 2 * needed_mb(count_boxes(tiers, total=4))
    assert fit_total(tiers, wanted=9, memory_mb=room) == 4
    assert fit_total(tiers, wanted=3, memory_mb=room) == 3
    assert fit_total(tiers, wanted=9, memory_mb=1) == 1


def test_an_explicit_number_is_kept() -> None:
    assert sum(NodeSettings(boxes=7).box_counts().values()) == NodeSettings(boxes=7).most_boxes() == 7
    assert NodeSettings(boxes=7, max_boxes=9).most_boxes() == 9
    assert NodeSettings().most_boxes() >= sum(NodeSettings().box_counts().values()) >= 1


def read(**environ: str) -> NodeSettings:
    return read_settings(environ, host="", port=1, boxes=0, state_dir=Path())


def test_the_environment_sets_the_bounds() -> None:
    settings = read(SANDBOX_MAX_QUEUED="9", SANDBOX_MAX_QUEUED_MB="3", SANDBOX_JUDGE_PROFILE="symbolic")
    assert (settings.max_queued, settings.max_queued_mb, settings.judge_profile) == (9, 3, "symbolic")
    with pytest.raises(NodeRefusesError, match="SANDBOX_MAX_QUEUED=many"):
        read(SANDBOX_MAX_QUEUED="many")
    with pytest.raises(NodeRefusesError, match="choose from simple, complex"):
        read(SANDBOX_JUDGE_PROFILE="fast")


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with 8 GiB available and no limits."""
    write(tmp_path, "proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n")
    write(tmp_path, "proc/self/cgroup", "4:memory:/box/1\n3:cpu,cpuacct:/\n0::/\n")
    return tmp_path


def test_without_a_limit_the_machine_counts(root: Path) -> None:
    assert available_mb(root) == 8192
    assert count_cores(root) == len(os.sched_getaffinity(0))


def test_a_cgroup_of_version_1(root: Path) -> None:
    write(root, "sys/fs/cgroup/memory/box/1/memory.limit_in_bytes", str(2048 << 20))
    write(root, "sys/fs/cgroup/memory/box/1/memory.usage_in_bytes", str(1024 << 20))
    write(root, "sys/fs/cgroup/memory/box/1/memory.stat", f"cache 5\ntotal_inactive_file {512 << 20}\n")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    assert available_mb(root) == 1536
    assert count_cores(root) == 1


def test_a_cgroup_of_version_2(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/\n")
    write(root, "sys/fs/cgroup/memory.max", str(1024 << 20))
    write(root, "sys/fs/cgroup/memory.current", str(256 << 20))
    write(root, "sys/fs/cgroup/cpu.max", "100000 100000\n")
    assert available_mb(root) == 768
    assert count_cores(root) == 1
    write(root, "sys/fs/cgroup/memory.max", "max\n")
    write(root, "sys/fs/cgroup/cpu.max", "max 100000\n")
    assert available_mb(root) == 8192


def test_idle_time_is_a_share_of_all_cores(root: Path) -> None:
    write(root, "proc/stat", "cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 1\n")
    before = cpu_ticks(root)
    write(root, "proc/stat", "cpu  150 0 100 740 110 0 0 0 0 0\ncpu0 1 1\n")
    assert before == (1000, 800)
    assert idle_share(before, cpu_ticks(root)) == 0.5
    assert idle_share(before, before) == 0.0
