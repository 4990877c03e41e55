"""The filter by hand, as the kernel would run it."""

import pytest

from sandbox.freed_memory import steps

ALLOW, NOT_SUPPORTED = 0x7FFF0000, 0x0005005F


def run(machine: str, *, arch: int, number: int, mode: int, length: int = 4096) -> int:
    """Interpret the filter on one system call."""
    words = {4: arch, 0: number, 24: mode, 40: length & 0xFFFFFFFF, 44: length >> 32}
    program, at, value = steps(machine), 0, 0
    while True:
        code, yes, no, operand = program[at]
        at += 1
        match code:
            case 0x20:
                value = words[operand]
            case 0x15:
                at += yes if value == operand else no
            case 0x25:
                at += yes if value > operand else no
            case 0x45:
                at += yes if value & operand else no
            case _:
                return operand


@pytest.mark.parametrize(
    ("arch", "number", "mode", "verdict"),
    [
        (0xC000003E, 285, 3, NOT_SUPPORTED),  # fallocate, keep size and punch a hole
        (0xC000003E, 285, 0, ALLOW),  # fallocate that only reserves
        (0xC000003E, 1, 3, ALLOW),  # write
        (0x40000003, 285, 3, ALLOW),  # number 285 of another architecture
    ],
)
def test_only_holes_are_refused(arch: int, number: int, mode: int, verdict: int) -> None:
    assert run("x86_64", arch=arch, number=number, mode=mode) == verdict


def test_the_same_on_arm() -> None:
    assert run("aarch64", arch=0xC00000B7, number=47, mode=3) == NOT_SUPPORTED
    assert run("aarch64", arch=0xC00000B7, number=285, mode=3) == ALLOW


def test_long_holes_are_punched() -> None:
    for length, verdict in ((64 << 20, NOT_SUPPORTED), ((64 << 20) + 4096, ALLOW), (1 << 33, ALLOW)):
        assert run("x86_64", arch=0xC000003E, number=285, mode=3, length=length) == verdict
