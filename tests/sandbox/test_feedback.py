"""What a program's author reads: echo, tracebacks, exit codes. The answers do not depend on gVisor."""

import pytest

from tests.sandbox.conftest import ForkServer

DIVISION = """\
Traceback (most recent call last):
  File "main.py", line 3, in <module>
    f()
  File "main.py", line 2, in f
    return 1 / 0
           ~~^~~
ZeroDivisionError: division by zero
"""


@pytest.mark.parametrize(
    ("code", "stdout"),
    [
        ("1 + 1", "2\n"),
        ("x = 3\nx", "3\n"),
        ("x = 3\nx;", ""),
        ("x = 3", ""),
        ("None", ""),
        ("print('a')", "a\n"),
        ("def f():\n    print('once')\n    return 'v'\nf()", "once\n'v'\n"),
        ("if True:\n    5", ""),
        ("'text'", "'text'\n"),
        ("", ""),
        ("# only a comment", ""),
        ("from __future__ import annotations\ndef f(x: y): ...\nf.__annotations__", "{'x': 'y'}\n"),
        ("(1,\n 2)", "(1, 2)\n"),
        ("(1);", ""),
    ],
)
def test_last_expression_is_echoed(fork_server: ForkServer, code: str, stdout: str) -> None:
    result = fork_server.run(code)
    assert (result["status"], result["stdout"], result["stderr"]) == ("ok", stdout, "")


def test_traceback_names_main_py_and_no_frame_of_ours(fork_server: ForkServer) -> None:
    result = fork_server.run("def f():\n    return 1 / 0\nf()")
    assert (result["status"], result["exit_code"], result["stderr"]) == ("error", 1, DIVISION)


def test_stdout_before_the_exception_is_kept(fork_server: ForkServer) -> None:
    result = fork_server.run("print('before')\nraise ValueError('x')")
    assert result["stdout"] == "before\n"
    assert result["stderr"].endswith("ValueError: x\n")


@pytest.mark.parametrize(
    ("code", "stderr"),
    [
        ("x = = 1", '  File "main.py", line 1\n    x = = 1\n        ^\nSyntaxError: invalid syntax\n'),
        (
            "return 5",
            "  File \"main.py\", line 1\n    return 5\n    ^^^^^^^^\nSyntaxError: 'return' outside function\n",
        ),
        ("a\0b", "SyntaxError: source code string cannot contain null bytes\n"),
        ("-" * 100_000 + "1", "SyntaxError: the program is nested too deeply to be compiled\n"),
        ("a" + "+a" * 50_000, "SyntaxError: the program is nested too deeply to be compiled\n"),
    ],
)
def test_syntax_errors_have_a_caret_and_no_frames(fork_server: ForkServer, code: str, stderr: str) -> None:
    result = fork_server.run(code)
    assert (result["status"], result["stderr"]) == ("error", stderr)


@pytest.mark.parametrize(
    ("code", "exit_code", "stderr"),
    [
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('bye')", 1, "bye\n"),
        ("raise SystemExit(256 + 7)", 7, ""),
        ("import os; os._exit(9)", 9, ""),
        ("exit()", 0, ""),
        ("class A:\n    def __str__(self): raise KeyboardInterrupt\nraise SystemExit(A())", 1, ""),
        ("import sys; del sys.stdout", 0, ""),
        ("import sys; sys.stdout = sys.stderr = None", 0, ""),
    ],
)
def test_exits(fork_server: ForkServer, code: str, exit_code: int, stderr: str) -> None:
    result = fork_server.run(code)
    assert (result["exit_code"], result["stderr"]) == (exit_code, stderr)
    assert result["status"] == ("ok" if exit_code == 0 else "error")


def test_input_reads_stdin_and_then_ends(fork_server: ForkServer) -> None:
    assert fork_server.run("print(input(), input())", stdin="a\nb\n")["stdout"] == "a b\n"
    assert fork_server.run("input()")["stderr"].endswith("EOFError: EOF when reading a line\n")


def test_lone_surrogates_and_bytes_do_not_break_the_answer(fork_server: ForkServer) -> None:
    assert fork_server.run("print('\\ud800')")["stdout"] == "\\ud800\n"
    assert fork_server.run("import os; _ = os.write(1, b'\\xff\\0')")["stdout"] == "\ufffd\0"


@pytest.mark.parametrize(
    "code",
    [
        "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-8')\nprint('x')",
        "import io, sys\nsys.stdout = io.StringIO()\nprint('hidden')\nsys.stdout = sys.__stdout__\nprint('x')",
        "import codecs, sys\nsys.stdout = codecs.getwriter('utf-8')(sys.stdout.detach())\nprint('x')",
        "import sys\nprint('x', end='\\n')\ndel sys.stdout",
        "import sys\nsys.stdout.reconfigure(line_buffering=False)\nprint('x')",
        "f = open(1, 'w')\nprint('x', file=f)",
        "class A:\n    def __del__(self): print(x)\nx = 'x'\na = A()",
    ],
)
def test_streams_are_flushed_whatever_the_program_put_in_their_place(fork_server: ForkServer, code: str) -> None:
    result = fork_server.run(code)
    assert (result["status"], result["stdout"], result["stderr"]) == ("ok", "x\n", "")


@pytest.mark.parametrize(
    "damage",
    [
        "import builtins; builtins.__dict__.clear()",
        "import builtins; builtins.isinstance = builtins.len = builtins.getattr = None",
        "import sys; sys.stderr = None",
        "import sys; del sys.stderr",
        "import sys; del sys.excepthook",
        "import sys; sys.excepthook = lambda *_: 1 / 0",
        "import sys; sys.modules.clear()",
    ],
)
def test_a_traceback_survives_what_the_program_broke(fork_server: ForkServer, damage: str) -> None:
    result = fork_server.run(f"{damage}\nprint_ = 0\n[][1]")
    assert (result["status"], result["exit_code"]) == ("error", 1)
    assert result["stderr"].startswith('Traceback (most recent call last):\n  File "main.py", line 3, in <module>\n')
    assert result["stderr"].endswith("IndexError: list index out of range\n")


@pytest.mark.parametrize("odd", ["\f", "'\x1c\x1d\x85'", "'\u2028\u2029'", "#\v"])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_a_traceback_quotes_the_line_that_failed(fork_server: ForkServer, odd: str, newline: str) -> None:
    result = fork_server.run(newline.join(["x = 1", odd, "1 / 0  # here", "y = 2"]))
    assert '  File "main.py", line 3, in <module>\n    1 / 0  # here\n' in result["stderr"]


def test_a_traceback_of_a_hundred_thousand_frames_is_cut_in_the_middle(fork_server: ForkServer) -> None:
    code = "import sys\nsys.setrecursionlimit(10**5)\ndef f(n):\n    return f(n + 1)\nf(0)"
    result = fork_server.run(code)
    assert "[Previous line repeated 1996 more times]\nRecursionError" in result["stderr"]
    assert result["stderr"].startswith('Traceback (most recent call last):\n  File "main.py", line 5, in <module>\n')


def test_threads_are_waited_for_and_show_their_traceback(fork_server: ForkServer) -> None:
    code = "import threading, time\ndef f():\n    time.sleep(0.05)\n    print('late')\n    1 / 0\n"
    result = fork_server.run(code + "threading.Thread(target=f).start()")
    assert result["stdout"] == "late\n"
    assert "    1 / 0\n" in result["stderr"]


def test_atexit_runs(fork_server: ForkServer) -> None:
    assert fork_server.run("import atexit; _ = atexit.register(print, 'bye')")["stdout"] == "bye\n"


def test_timeout_says_where_it_hung(fork_server: ForkServer) -> None:
    result = fork_server.run("print('start')\nwhile True: pass", wall_s=0.3)
    assert (result["status"], result["stdout"]) == ("timeout", "start\n")
    assert '  File "main.py", line 2, in <module>\n' in result["stderr"]
    assert result["stderr"].endswith("TimeLimitExceeded: the program ran out of wall-clock time\n")
    assert "program.py" not in result["stderr"]


def test_cpu_limit_counts_cpu_and_not_the_clock(fork_server: ForkServer) -> None:
    result = fork_server.run("while True:\n    pass", cpu_s=1, wall_s=20)
    assert result["status"] == "cpu_limit"


def test_memory_limit(fork_server: ForkServer) -> None:
    result = fork_server.run("x = bytearray(1 << 30)", memory_mb=64)
    assert (result["status"], result["exit_code"]) == ("memory", 1)
    assert result["stderr"].endswith("MemoryError\n")


def test_a_caught_memory_error_is_no_failure(fork_server: ForkServer) -> None:
    code = "try:\n    bytearray(1 << 30)\nexcept MemoryError:\n    print('caught')"
    assert fork_server.run(code, memory_mb=64)["status"] == "ok"


def test_long_output_keeps_head_and_tail(fork_server: ForkServer) -> None:
    result = fork_server.run("for i in range(2000): print(i)", output_kb=1)
    assert result["status"] == "ok" and result["truncated"]
    assert result["stdout"].startswith("0\n1\n") and result["stdout"].endswith("1999\n")
    assert result["stdout_bytes"] == sum(len(f"{i}\n") for i in range(2000))


def test_deep_recursion_is_folded(fork_server: ForkServer) -> None:
    result = fork_server.run("def f(): f()\nf()")
    assert "more times]" in result["stderr"] and len(result["stderr"]) < 2000


def test_seed_repeats_and_no_seed_does_not(fork_server: ForkServer) -> None:
    code = "import random; random.random()"
    assert fork_server.run(code, seed=7)["stdout"] == fork_server.run(code, seed=7)["stdout"]
    assert fork_server.run(code)["stdout"] != fork_server.run(code)["stdout"]


def test_nothing_of_ours_is_importable(fork_server: ForkServer) -> None:
    result = fork_server.run(
        "import sys\nprint([m for m in sys.modules if m.startswith('sandbox')], sys.argv, __name__)"
    )
    assert result["stdout"] == "[] ['main.py'] __main__\n"


def test_earlier_cells_run_first_and_say_nothing(fork_server: ForkServer) -> None:
    history = ["x = 20\nprint('told before')", "import os; os.write(1, b'told'); y = x + 1", "1 / 0", "z = ("]
    result = fork_server.run("x + y + 1", history=history)
    assert (result["status"], result["stdout"], result["stderr"]) == ("ok", "42\n", "")


def test_an_earlier_cell_may_end_as_it_did(fork_server: ForkServer) -> None:
    result = fork_server.run("print(n)", history=["n = 1", "n = 2\nraise SystemExit(3)\nn = 3"])
    assert (result["status"], result["stdout"]) == ("ok", "2\n")


def test_the_cpu_limit_is_no_whole_number_of_seconds(fork_server: ForkServer) -> None:
    result = fork_server.run("while True: pass", cpu_s=0.3, wall_s=10)
    assert result["status"] == "cpu_limit"
    assert 200 <= result["cpu_ms"] < 900
    assert "main.py" in result["stderr"]


def test_a_program_that_hangs_in_c_says_where(fork_server: ForkServer) -> None:
    result = fork_server.run("def f():\n    return sum(range(10 ** 12))\nf()", wall_s=0.4, cpu_s=20)
    assert result["status"] == "timeout"
    assert 'File "main.py", line 2 in f' in result["stderr"]
    assert "program.py" not in result["stderr"]


def test_a_loop_in_c_ends_at_the_cpu_limit(fork_server: ForkServer) -> None:
    result = fork_server.run("sum(range(10 ** 12))", wall_s=20, cpu_s=0.4)
    assert result["status"] == "cpu_limit"
    assert result["cpu_ms"] < 1500
