"""File descriptors of the fork-server: the two that lead to the host, and what comes out of a program."""

import contextlib
import os

from sandbox.guest.output import HeadTail

READ_BYTES = 65536


def open_fd(*candidates: int) -> int:
    """The first of them that is open."""
    for fd in candidates:
        with contextlib.suppress(OSError):
            os.fstat(fd)
            return fd
    return -1


def hide_frame_pipes() -> tuple[int, int]:
    """Move the frame pipes off fd 0 and 1, where a child would inherit them by habit."""
    fds = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for target in (0, 1):
        os.dup2(null, target)
    os.close(null)
    for fd in fds:
        os.set_inheritable(fd, False)
    return fds


def drain(fd: int, stream: HeadTail, *, limit: int) -> bool:
    """Read what is there, but not past `limit` bytes in all. False at the end of the stream."""
    while stream.total <= limit:
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return True
        if not data:
            return False
        stream.feed(data)
    return True


def empty(fd: int) -> None:
    """Throw away what is there."""
    with contextlib.suppress(BlockingIOError):
        os.read(fd, 512)
