"""What a program prints waits in memory that the fork-server shares, so that no print needs a system call.

A system call of a box costs as much as a thousand lines of Python, and a program that prints ten thousand lines
flushed each. Yet what was printed must not be lost when the program is killed. So the buffer lies in a shared mapping:
the fork-server reads what a dead program had not written to its pipe.
"""

import _posixsubprocess
import contextlib
import io
import mmap
import os
import threading
from typing import Any

CAPACITY = 64 * 1024
COUNT_BYTES = 8
_NOTHING = bytes(COUNT_BYTES)
_SLOT_BYTES = COUNT_BYTES + CAPACITY  # how much waits, and what
_open: dict[int, "SharedBuffer"] = {}


class SharedMemory:
    """The buffers of a program's stdout and stderr, one after the other. Made before the first fork."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, 2 * _SLOT_BYTES)
        whole = memoryview(self._map)  # made once: the code behind it is one more thing that a child would page in
        self._slots = [whole[number * _SLOT_BYTES : (number + 1) * _SLOT_BYTES] for number in (0, 1)]
        self._zeros = bytes(len(self._map))

    def open_text(self, fd: int, number: int) -> "SharedText":
        """A text stream on `fd` that waits in the slot of stdout (0) or stderr (1)."""
        stream = SharedText(fd, self._slots[number])
        _open[number] = stream.buffer
        return stream

    def take(self, number: int) -> bytes:
        """What is in a slot. The count is the program's word: at most what fits is believed."""
        slot = self._slots[number]
        count = min(int.from_bytes(slot[:COUNT_BYTES], "little"), CAPACITY)
        return bytes(slot[COUNT_BYTES : COUNT_BYTES + count])

    def wipe(self) -> None:
        """Nothing of one program is there for the next."""
        self._map[:] = self._zeros


class SharedBuffer(io.BufferedIOBase):
    """A buffered writer on `fd` whose buffer is a slot. `flush` leaves it be, `spill` writes it to the fd."""

    def __init__(self, fd: int, slot: memoryview) -> None:
        self._fd = fd
        self._slot = slot
        self._used = 0
        self._lock = threading.RLock()  # of C, and open to a signal handler that prints
        self._is_direct = False  # a forked process must not write into its parent's buffer
        self.name = f"<fd {fd}>"
        self.mode = "wb"

    def write(self, data: Any) -> int:
        """Take the bytes; they reach the fd when the buffer is full."""
        view = memoryview(data).cast("B")
        with self._lock:
            if self._is_direct or len(view) > CAPACITY - self._used:
                self.spill()
            if self._is_direct or len(view) > CAPACITY:
                self._write_out(view)
            else:
                start = COUNT_BYTES + self._used
                self._slot[start : start + len(view)] = view
                self._used += len(view)
                self._slot[:COUNT_BYTES] = self._used.to_bytes(COUNT_BYTES, "little")
        return len(view)

    def spill(self) -> None:
        """Write what waits to the fd."""
        with self._lock:
            waiting, self._used = bytes(self._slot[COUNT_BYTES : COUNT_BYTES + self._used]), 0
            if waiting:
                try:
                    self._write_out(memoryview(waiting))
                finally:
                    self._slot[:COUNT_BYTES] = _NOTHING

    def _write_out(self, view: memoryview) -> None:
        while view:
            view = view[os.write(self._fd, view) :]

    def go_direct(self) -> None:
        """In a forked process: what waits is the parent's to write."""
        self._lock, self._used, self._is_direct = threading.RLock(), 0, True

    def fileno(self) -> int:
        """The file descriptor under it."""
        return self._fd

    def writable(self) -> bool:
        """Always."""
        return True

    @property
    def raw(self) -> io.FileIO:
        """The unbuffered file, as any buffered writer has one."""
        self.spill()
        return io.FileIO(self._fd, "wb", closefd=False)


class SharedText(io.TextIOWrapper):
    """A text stream on a shared buffer that never raises on what it is given."""

    buffer: SharedBuffer

    def __init__(self, fd: int, slot: memoryview) -> None:
        buffer = SharedBuffer(fd, slot)
        # By line into the buffer, which costs no system call; a program's own flush goes on to the fd.
        super().__init__(buffer, encoding="utf-8", errors="backslashreplace", line_buffering=True)

    def settle(self) -> None:
        """Leave everything in the shared buffer."""
        super().flush()

    def flush(self) -> None:
        """As the program asked: to the fd, in order with what its subprocesses print."""
        super().flush()
        self.buffer.spill()


def _before_fork() -> None:
    for buffer in _open.values():
        with contextlib.suppress(OSError):
            buffer.spill()


def _after_fork() -> None:
    for buffer in _open.values():
        buffer.go_direct()


def _fork_exec(*arguments: Any) -> int:
    """What subprocess calls; no hook of a fork runs there."""
    _before_fork()
    return _real_fork_exec(*arguments)


_real_fork_exec = _posixsubprocess.fork_exec
_posixsubprocess.fork_exec = _fork_exec
os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
