"""The verdict of the soak, and its load."""

from dataclasses import replace

from benchmarks.sandbox.soak import HOSTILE, Sample, growth, soak_load
from benchmarks.sandbox.workload import mixed_load

FLAT = Sample(0, 0, 60.0, 2, 40, 3, 150, 200.0, 40, 30, 12)


def run_of(**last: float) -> list[Sample]:
    """Twelve samples; the last four have other values."""
    return [FLAT] * 8 + [replace(FLAT, **last)] * 4


def test_a_run_without_growth_is_flat():
    assert growth(run_of()) == []
    assert growth(run_of(node_rss_mb=66, sentry_threads=200, replaced=50)) == []


def test_a_leak_is_named_with_its_numbers():
    assert growth(run_of(node_fds=60)) == ["node_fds grew from 40 to 60"]
    assert growth(run_of(state_files=45, sentries=5)) == ["sentries grew from 3 to 5", "state_files grew from 30 to 45"]


def test_what_shrinks_is_flat():
    assert growth(run_of(sentry_rss_mb=20.0)) == []


def test_the_warm_up_does_not_count():
    cold = replace(FLAT, node_rss_mb=20.0)
    assert growth([cold, cold, *[FLAT] * 10]) == []


def test_one_program_in_fifty_is_hostile():
    tasks = soak_load(500, 1)
    changed = [a for a, b in zip(tasks, mixed_load(500, 1), strict=True) if a.call.code != b.call.code]
    assert len(changed) == 10 and all(task.call.code in HOSTILE.values() for task in changed)
