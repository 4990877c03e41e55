"""What a call may hold, in MiB worked by hand; the walls themselves are in the catalogue of hostile programs."""

import pytest

from sandbox.cgroup import BASE_MB
from sandbox.guest import memory
from sandbox.guest.memory import MIB, MemoryMeter, allowed


@pytest.mark.parametrize(
    ("memory_mb", "copied_mb", "allowed_mb"),
    [
        (64, 0, 96 + 96),
        (64, 2 * 46, 96 + 96 + 92),
        (64, 20 * 46, 128 + 256),  # no number of processes lifts it past that
        (512, 8 * 46, 768 + 96 + 368),
        (512, 24 * 46, 1024 + 256),
    ],
)
def test_half_as_much_again_and_the_copies(memory_mb: int, copied_mb: int, allowed_mb: int) -> None:
    assert allowed(memory_mb, copied=copied_mb * MIB) == allowed_mb * MIB


def test_the_box_tells_before_the_host_kills() -> None:
    for memory_mb in (32, 512, 16384):
        assert allowed(memory_mb, copied=1 << 40) <= (BASE_MB + 2 * memory_mb - 384) * MIB


def test_a_process_claims_no_more_of_the_tier_than_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    resident = {10: 80 * MIB, 11: 8 * MIB, 12: 0}  # a fork, one that has become another program, one that has ended
    monkeypatch.setattr(memory.processes, "all_but_me", lambda: list(resident))
    monkeypatch.setattr(memory.processes, "resident", resident.__getitem__)
    meter = MemoryMeter(idle=70 * MIB, copied=46 * MIB)
    for held_mb, is_over in ((192 + 46 + 8, False), (192 + 46 + 9, True)):
        monkeypatch.setattr(memory, "_in_use", lambda mb=held_mb: (70 + mb) * MIB)
        assert meter.is_over(64) is is_over
