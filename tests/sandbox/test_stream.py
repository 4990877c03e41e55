"""What a program prints waits in shared memory: nothing is lost, doubled, reordered or left for the next."""

import pytest

from tests.sandbox.conftest import ForkServer


def test_what_waited_when_it_was_killed_is_kept(fork_server: ForkServer) -> None:
    result = fork_server.run("print('before')\nsum(range(10 ** 12))", wall_s=0.3)
    assert (result["status"], result["stdout"], result["stdout_bytes"]) == ("timeout", "before\n", 7)


def test_dying_by_oneself_keeps_it_too(fork_server: ForkServer) -> None:
    result = fork_server.run("import os\nprint('before')\nos.kill(os.getpid(), 9)")
    assert (result["status"], result["stdout"]) == ("signal", "before\n")
    assert fork_server.run("import os\nprint('before')\nos._exit(3)")["stdout"] == "before\n"


def test_nothing_is_left_for_the_next(fork_server: ForkServer) -> None:
    fork_server.run("import os, sys\nprint('secret')\nprint('secret', file=sys.stderr)\nos._exit(0)")
    result = fork_server.run("")
    assert (result["stdout"], result["stderr"]) == ("", "")


def test_many_lines_come_whole(fork_server: ForkServer) -> None:
    result = fork_server.run("for i in range(30_000): print(i)", output_kb=512)
    assert result["stdout"] == "".join(f"{i}\n" for i in range(30_000))


def test_a_write_larger_than_the_buffer(fork_server: ForkServer) -> None:
    result = fork_server.run("print('a')\nprint('b' * 200_000)\nprint('c')", output_kb=512)
    assert result["stdout"] == f"a\n{'b' * 200_000}\nc\n"


def test_subprocesses_print_in_their_turn(fork_server: ForkServer) -> None:
    code = """
import subprocess, sys
print('one')
subprocess.run([sys.executable, '-c', 'print("two")'])
print('three')
"""
    assert fork_server.run(code, wall_s=20, cpu_s=20)["stdout"] == "one\ntwo\nthree\n"


@pytest.mark.parametrize("leave", ["os._exit(0)", "sys.stdout.flush(); os._exit(0)", "sys.exit(0)"])
def test_a_fork_doubles_nothing(fork_server: ForkServer, leave: str) -> None:
    code = f"""
import os, sys
print('parent')
if os.fork() == 0:
    print('child')
    {leave}
os.wait()
print('parent again')
"""
    assert fork_server.run(code)["stdout"] == "parent\nchild\nparent again\n"


def test_a_pool_of_processes_prints(fork_server: ForkServer) -> None:
    code = """
import multiprocessing
def work(n):
    print('work', n)
    return n
if __name__ == '__main__':
    print('start')
    with multiprocessing.get_context('fork').Pool(2) as pool:
        print(sum(pool.map(work, range(4))))
"""
    result = fork_server.run(code, wall_s=20, processes=64)
    lines = result["stdout"].splitlines()
    assert sorted(lines) == ["6", "start", "work 0", "work 1", "work 2", "work 3"], result["stderr"]
    assert (lines[0], lines[-1]) == ("start", "6")


def test_threads_lose_no_line(fork_server: ForkServer) -> None:
    code = """
import sys, threading
sys.setswitchinterval(1e-6)
def work(n):
    for i in range(300): print(f'{n}-{i}\\n', end='')
threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    lines = fork_server.run(code)["stdout"].splitlines()
    assert sorted(lines) == sorted(f"{n}-{i}" for n in range(6) for i in range(300))


def test_bytes_and_flushes_keep_their_order(fork_server: ForkServer) -> None:
    code = """
import os, sys
print('a', flush=True)
os.write(1, b'b\\n')
sys.stdout.buffer.write(b'\\xff\\n')
sys.stdout.buffer.raw.write(b'd\\n')
_ = sys.stdout.write('e')
"""
    assert fork_server.run(code)["stdout"] == "a\nb\n\ufffd\nd\ne"


def test_a_forged_count_is_not_believed(fork_server: ForkServer) -> None:
    code = "import sys\nprint('x')\nslot = sys.stdout.buffer._slot\nslot[:8] = b'\\xff' * 8"
    result = fork_server.run(code, output_kb=4)
    assert result["status"] in ("ok", "output_limit")
    assert len(result["stdout"]) < 8192
    assert fork_server.run("print('y')")["stdout"] == "y\n"
