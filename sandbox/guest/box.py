"""Where a box starts: python -m sandbox.guest.box TIER box WORK_DIR. It arranges memory before the rest is imported."""

import sys
from importlib import import_module

from sandbox.guest import heap

if __name__ == "__main__":
    heap.take_arenas_from_it()
    for name in ("ctypes", "ctypes._endian", "_ctypes"):
        sys.modules.pop(name, None)
    import_module("sandbox.guest.forkserver").main()
