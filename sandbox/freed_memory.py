"""A box keeps the memory that its programs free: the next program gets the same pages, wiped, instead of new ones.

gVisor gives freed pages back to the host by punching holes into the file that is its memory, and takes them anew a
page fault at a time: most of what a call costs beyond its program. Where the host refuses the hole, gVisor wipes the
pages itself and keeps them (pkg/sentry/pgalloc, since 2018), which is a tenth of the work. So the host refuses: a
filter of system calls on runsc and its children, one more than they bring along. That the pages are wiped is not
taken on trust: the self-test of each node looks. A box that has grown is replaced.
"""

import ctypes
import os
import platform
from collections.abc import Sequence

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2
_EOPNOTSUPP = 95
KEPT_BYTES = 64 << 20  # a longer piece goes back to the host: what a large program held is not kept
_PUNCH_HOLE = 2  # of the mode, fallocate's second argument
_MACHINES = {"x86_64": (0xC000003E, 285), "aarch64": (0xC00000B7, 47)}  # audit name, number of fallocate

# Classic BPF: load a word of the call's description, jump if equal, jump if any bit is set, return.
_LOAD, _EQUAL, _GREATER, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_NUMBER, _ARCH, _MODE, _LENGTH, _LENGTH_HIGH = 0, 4, 24, 40, 44
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


class _Step(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("k", ctypes.c_uint))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.POINTER(_Step)))


def steps(machine: str) -> Sequence[tuple[int, int, int, int]]:
    """The filter: (code, jump if yes, jump if no, operand); everything but punching a short hole is allowed."""
    arch, fallocate = _MACHINES[machine]
    return (
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 0, 9, arch),
        (_LOAD, 0, 0, _NUMBER),
        (_EQUAL, 0, 7, fallocate),
        (_LOAD, 0, 0, _MODE),
        (_ANY_BIT, 0, 5, _PUNCH_HOLE),
        (_LOAD, 0, 0, _LENGTH_HIGH),
        (_EQUAL, 0, 3, 0),
        (_LOAD, 0, 0, _LENGTH),
        (_GREATER, 1, 0, KEPT_BYTES),
        (_RETURN, 0, 0, _ERRNO | _EOPNOTSUPP),
        (_RETURN, 0, 0, _ALLOW),
    )


def _compile() -> _Program | None:
    if platform.machine() not in _MACHINES:
        return None
    program = steps(platform.machine())
    return _Program(len(program), (_Step * len(program))(*(_Step(*step) for step in program)))


_PROGRAM = _compile()


def keep() -> None:
    """Runs between fork and exec. Where the kernel takes no filter boxes are slower, and nothing else."""
    if _PROGRAM is None:
        return
    if os.geteuid() != 0:
        _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)  # without it only root may set a filter
    _LIBC.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(_PROGRAM), 0, 0)
