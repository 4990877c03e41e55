"""One heap for everything that Python allocates, in one piece, so that a fork costs fewer page faults.

gVisor copies memory that a fork shares in aligned units of 2 MiB, and to copy one it takes the whole unit off the
address space, whatever else lies there: each neighbour is paged in anew, and so is what a copy was made of in pieces.
Python maps its arenas of 1 MiB between the libraries, the worst place for that. Here they come from the C library's
heap instead, which the host's settings (MALLOC_... in the box's environment) let grow in large steps.
"""

import ctypes

_RAW_DOMAIN = 0


class _Allocator(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("ctx", "malloc", "calloc", "realloc", "free")]


class _ArenaAllocator(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("ctx", "alloc", "free")]


def take_arenas_from_it() -> None:
    """From now on. Those that exist must never be freed: what the interpreter started with lives in them, and a
    process that called this ends by `os._exit`, as those of a box do.

    `free` of an arena has one argument more than `free` of memory, which in C's calling conventions is ignored.
    """
    raw = _Allocator()
    ctypes.pythonapi.PyMem_GetAllocator(_RAW_DOMAIN, ctypes.byref(raw))
    ctypes.pythonapi.PyObject_SetArenaAllocator(ctypes.byref(_ArenaAllocator(raw.ctx, raw.malloc, raw.free)))
