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
