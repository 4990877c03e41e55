"""Emptying the folders a program can write to, and knowing whether it did."""

import contextlib
import os
from collections.abc import Callable


def stamp(folder: str) -> tuple[int, ...]:
    """Changes when an entry of the folder comes, goes or is renamed; () when there is no folder."""
    try:
        status = os.stat(folder)
    except OSError:
        return ()
    return status.st_ino, status.st_ctime_ns, status.st_mode


def empty(top: str, *, but: str) -> list[str]:
    """Remove what is in a folder; the paths that would not go."""
    paths = [os.path.join(top, name) for name in _names(top)]
    for path in paths:
        if path != but:
            _remove(path)
    return [path for path in paths if path != but and os.path.lexists(path)]


def _names(top: str) -> list[str]:
    try:
        return os.listdir(top)
    except OSError:
        return []


def _remove(path: str) -> None:
    """Remove a file or a tree; what cannot be removed stays and taints the box."""
    try:
        os.unlink(path)
    except OSError:
        with contextlib.suppress(RecursionError):  # a thousand folders deep
            _remove_tree(path)


def _remove_tree(top: str) -> None:
    for folder, names, files in os.walk(top, topdown=False):
        for name in files:
            _try(os.unlink, os.path.join(folder, name))
        for name in names:
            inner = os.path.join(folder, name)
            _try(os.unlink if os.path.islink(inner) else os.rmdir, inner)
    _try(os.rmdir, top)


def _try(remove: Callable[[str], None], path: str) -> None:
    with contextlib.suppress(OSError):
        remove(path)
