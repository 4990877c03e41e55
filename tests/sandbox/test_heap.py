"""Arenas from the heap, in an interpreter of its own: the switch is for good."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import os
from sandbox.guest import heap

def heap_kb():
    with open("/proc/self/maps") as file:
        low, high = next(line for line in file if line.endswith("[heap]\\n")).split()[0].split("-")
    return (int(high, 16) - int(low, 16)) // 1024

heap.take_arenas_from_it()
before = heap_kb()
objects = [(n, str(n)) for n in range(100_000)]
grown = heap_kb() - before
print(grown > 8_000)

def deep(n):
    return n and 1 + deep(n - 1)

del objects
print(deep(900))  # the interpreter's own stack comes in chunks from there, too
print(len([str(n) for n in range(100_000)]), flush=True)
os._exit(0)
"""


def test_small_objects_live_in_the_heap_and_are_freed_there() -> None:
    environ = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout.split()) == (0, ["True", "900", "100000"]), done.stderr
