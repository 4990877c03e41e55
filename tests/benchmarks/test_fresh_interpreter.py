"""code-judge's execution model, and the count of what a tree of processes used: on real processes."""

import os
import subprocess
import sys

import pytest

from benchmarks.sandbox.fresh_interpreter import judge
from benchmarks.sandbox.machine import descendants, rss_kb, usage_of, words_of
from contracts.execution import ExecutionCall, ExecutionStatus, Limits


def run(code: str, wall_s: float = 5.0):
    return judge(ExecutionCall(id="a", code=code, limits=Limits(wall_s=wall_s, cpu_s=wall_s)))


def test_a_program_prints_without_the_mark_of_the_epilogue():
    answer = run("print('first')\nprint('second')\n")
    assert (answer.status, answer.stdout, answer.stdout_bytes) == (ExecutionStatus.OK, "first\nsecond\n", 13)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("1 / 0\n", ExecutionStatus.ERROR),
        ("x = = 1\n", ExecutionStatus.ERROR),
        ("import time\ntime.sleep(60)\n", ExecutionStatus.TIMEOUT),
        ("while True:\n    pass\n", ExecutionStatus.TIMEOUT),
    ],
)
def test_how_a_program_ends(code, status):
    assert run(code, wall_s=0.5).status is status


def test_every_call_has_an_interpreter_of_its_own():
    codes = "import os\nprint(os.getpid())\n"
    assert run(codes).stdout != run(codes).stdout


def test_a_tree_of_processes_is_found_and_its_reaped_children_count():
    code = (
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'sum(range(10**6))'])\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True)\ninput()\n"
    )
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as root:
        grandchild = int(root.stdout.readline())
        assert descendants(root.pid) == [grandchild] and grandchild in descendants(os.getpid())
        assert words_of(root.pid)[:2] == argv[:2] and rss_kb(root.pid) > 1000
        usage = usage_of(root.pid)
        assert usage.tree_s >= usage.root_s > 0
        root.stdin.close()
    assert usage_of(root.pid).tree_s == 0
