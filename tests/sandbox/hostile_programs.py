"""The catalogue of hostile programs, as data: what was reported, the code, and the one right answer to it.

`source` names the report (a GitHub repository and issue) or says what the program is after. A text is the whole
stream; a pattern is searched for. Every program runs twice in one box, and then a healthy one must find nothing of it.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from contracts.execution import Execution

# ruff: noqa: E501
# fmt: off
ANY = re.compile("")
HARD: dict[str, Any] = {"exit_code": None, "signal": 9, "stderr": ANY}  # killed: it did not hear the soft signal


@dataclass(frozen=True)
class Hostile:
    """One program and the answer it deserves."""

    name: str
    source: str
    code: str
    status: str | re.Pattern[str] = "ok"
    exit_code: int | re.Pattern[str] | None = 0
    signal: int | re.Pattern[str] | None = None  # ANY where the soft signal may come through or not
    stdout: str | re.Pattern[str] = ""
    stderr: str | re.Pattern[str] = ""
    stdin: str = ""
    limits: dict[str, float] = field(default_factory=dict)
    may_taint: bool = False  # the box may be replaced afterwards

    def misses(self, execution: Execution) -> dict[str, object]:
        """What the answer has wrong, by field."""
        fields = ("status", "exit_code", "signal", "stdout", "stderr")
        found = {name: getattr(execution, name) for name in fields if not _fits(getattr(self, name), getattr(execution, name))}
        return found | ({} if execution.attempts == 1 else {"attempts": execution.attempts, "reason": execution.reason})


def _fits(wanted: object, got: object) -> bool:
    return bool(wanted.search(str(got))) if isinstance(wanted, re.Pattern) else wanted == got


def fails(name: str, source: str, code: str, stderr: str, **fields: Any) -> Hostile:
    """A program with exit code 1 and this pattern in its stderr."""
    return Hostile(name, source, code, **{"status": "error", "exit_code": 1, "stderr": re.compile(stderr), **fields})


def hangs(name: str, source: str, code: str, **fields: Any) -> Hostile:
    """A program that runs out of wall time and says where."""
    fields = {"exit_code": 1, "stderr": re.compile("main.py(.|\n)*TimeLimitExceeded: "), **fields}
    return Hostile(name, source, code, "timeout", **{"limits": {"wall_s": 0.4}, **fields})


def dies(name: str, source: str, code: str, number: int, **fields: Any) -> Hostile:
    """A program that ends by a signal of its own making."""
    return Hostile(name, source, code, "signal", None, number, **fields)


TIME = (
    hangs("spin", "inspect_ai#2779", "print('on')\nwhile True: pass", stdout="on\n"),
    hangs("sleep", "ProgramBench#31", "import time\nprint('before', end='')\ntime.sleep(100)", stdout="before"),
    hangs("loop-in-c", "smolagents#2564", "x = sum(range(10 ** 12))", **HARD),
    hangs("regex", "catastrophic backtracking", "import re\nre.match('(a+)+$', 'a' * 64 + 'b')", stderr=ANY),
    hangs("sympy", "sympy#9691, PrairieLearn#14417", "import sympy\nsympy.factorint(2 ** 997 - 1)"),
    hangs("sum-of-iterator", "C code that calls Python", "sum(0 for _ in iter(int, 1))"),
    hangs("swallow", "except BaseException", "import time\nwhile True:\n    try: time.sleep(100)\n    except BaseException: pass", **HARD),
    hangs("finally", "a loop in finally", "import time\ntry: time.sleep(100)\nfinally:\n    while True: pass", **HARD),
    hangs("ignore-signals", "OpenShell#3159", """
import signal, time
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: time.sleep(100)
""", **HARD),
    hangs("block-signals", "OpenShell#3159", """
import signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
while True: time.sleep(100)
""", **HARD),
    hangs("alarm-off", "alarm(0) disables code-judge's limit", "import signal, time\nsignal.alarm(0)\nsignal.setitimer(signal.ITIMER_REAL, 0)\ntime.sleep(100)"),
    hangs("alarm-storm", "handlers that never end", """
import signal
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
while True: pass
"""),
    dies("alarm", "facts 26", "import signal, time\nsignal.alarm(1)\ntime.sleep(100)", 14),
    hangs("stop-self", "facts 26", "import os\nos.kill(os.getpid(), 19)", **HARD),
    hangs("thread-forever", "facts 16", "import threading, time\nthreading.Thread(target=time.sleep, args=(100,)).start()", stderr=ANY),
    hangs("thread-deadlock", "facts 16", "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()"),
    hangs("atexit-forever", "facts 16", "import atexit, time\natexit.register(time.sleep, 100)\nprint('x')", stdout="x\n", stderr=ANY, exit_code=0),
    hangs("excepthook-forever", "a hook in a loop", "import sys\ndef hook(*_):\n    while True: pass\nsys.excepthook = hook\n1 / 0", stderr=re.compile("ZeroDivisionError")),
    hangs("threading-excepthook-forever", "a hook in a loop", """
import threading
def hook(*_):
    while True: pass
threading.excepthook = hook
threading.Thread(target=lambda: 1 / 0).start()
""", stderr=ANY),
    hangs("str-forever", "an exception whose __str__ loops", "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E", stderr=ANY),
    hangs("repr-forever", "an echo whose __repr__ loops", "class A:\n    def __repr__(self):\n        while True: pass\nA()"),
    hangs("del-forever", "a finalizer in a loop", "class A:\n    def __del__(self):\n        while True: pass\na = A()", stderr=ANY, exit_code=0),
    hangs("settrace-forever", "a trace function in a loop", "import sys\ndef f(*_):\n    while True: pass\nsys.settrace(f)\n(lambda: 0)()"),
    hangs("gc-forever", "a collector callback in a loop", "import gc\ndef f(*_):\n    while True: pass\ngc.callbacks.append(f)\ngc.collect()", **HARD),
    hangs("import-forever", "a finder in a loop", "import sys\nclass F:\n    def find_spec(self, *_):\n        while True: pass\nsys.meta_path.insert(0, F())\nimport nothing_of_this_name"),
    hangs("asyncio-forever", "asyncio.run", "import asyncio\nasyncio.run(asyncio.sleep(100))", stderr=ANY),
    hangs("child-forever", "langfuse#15955", "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'while True: pass'])", stderr=ANY),
    hangs("read-own-pipe", "a read that never ends", "import os\nos.read(os.pipe()[0], 1)"),
    Hostile("cpu", "facts §5", "while True: pass", "cpu_limit", 1, stderr=re.compile("CpuLimitExceeded: "), limits={"cpu_s": 1, "wall_s": 9}),
    Hostile("cpu-unheard", "its signals ignored", "import signal\nfor number in (signal.SIGXCPU, signal.SIGPROF): signal.signal(number, signal.SIG_IGN)\nwhile True: pass", "cpu_limit", None, 9, stderr=ANY, limits={"cpu_s": 1, "wall_s": 9}),
)

PROCESSES = (
    hangs("fork-bomb", "NemoClaw#809, codex#38909", "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", limits={"wall_s": 0.4, "processes": 24}, stderr=ANY, exit_code=ANY, signal=ANY),
    Hostile("fork-bomb-that-ends", "judgev2#27", "import os\nfor _ in range(5):\n    try: os.fork()\n    except OSError: pass", limits={"processes": 24}),
    Hostile("setsid-daemon", "code-judge's killpg misses it", """
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            for name in ('/tmp/alive', '/dev/shm/alive'):
                try: open(name, 'w').write('x')
                except OSError: pass
    os._exit(0)
os.wait();
"""),
    Hostile("grandchild-holds-the-pipe", "rakazo#28, boxlite#1459", "import os, time\nif os.fork() == 0:\n    time.sleep(100)\nelse:\n    print('done')", stdout="done\n"),
    Hostile("writes-after-the-end", "facts §9.17", """
import os, time
if os.fork() == 0:
    while True: os.write(1, b'x')
time.sleep(0.05)
""", stdout=re.compile("^x+$")),
    Hostile("zombies", "kernel_gateway#181", "import os, time\nfor _ in range(10):\n    if os.fork() == 0: os._exit(0)\ntime.sleep(0.05)"),
    Hostile("orphans", "kernel_gateway#181", "import os, time\nfor _ in range(5):\n    if os.fork() == 0:\n        if os.fork() == 0: time.sleep(100)\n        os._exit(0)\nfor _ in range(5): os.wait()"),
    Hostile("fork-and-exec", "process table", """
import os, sys
for _ in range(3):
    if os.fork() == 0: os.execv(sys.executable, [sys.executable, '-S', '-c', 'print(1, flush=True)'])
    os.wait()
""", stdout="1\n1\n1\n"),
    Hostile("exec-over-itself", "the process is no longer ours", "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'print(3)'])", stdout="3\n"),
    hangs("exec-and-hang", "the soft signal kills it", "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'while True: pass'])", stderr="", exit_code=None, signal=10, limits={"wall_s": 1}),
    fails("too-many-processes", "facts §5", "import os, time\nfor i in range(9):\n    if os.fork() == 0: time.sleep(9)", r"BlockingIOError: \[Errno 11\]", limits={"processes": 4}),
    fails("500-threads", "facts 25", "import threading, time\nfor _ in range(500): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()", "RuntimeError: can't start new thread"),
    Hostile("pool", "facts 24: needs /dev/shm", "import multiprocessing\nwith multiprocessing.get_context('fork').Pool(2) as pool: print(pool.map(abs, [-1, -2]))", stdout="[1, 2]\n"),
    Hostile("spawn-pool", "imports main.py again", "import multiprocessing\ndef f(x): return x * x\nif __name__ == '__main__':\n    with multiprocessing.get_context('spawn').Pool(1) as pool: print(pool.map(f, [3]))", stdout="[9]\n"),
    Hostile("pool-left-open", "facts 24", "import multiprocessing\npool = multiprocessing.get_context('fork').Pool(2)\nprint(pool.apply(abs, (-1,)))", stdout="1\n", stderr=ANY),
    dies("segv", "facts 26", "import ctypes\nctypes.string_at(0)", 11),
    dies("abort", "facts 26", "import os\nos.abort()", 6),
    dies("kill-self", "facts 26", "import os\nprint('a')\nos.kill(os.getpid(), 9)", 9, stdout="a\n"),
    dies("pthread-kill", "facts 26", "import signal, threading\nsignal.pthread_kill(threading.get_ident(), signal.SIGTERM)", 15),
    fails("interrupt-self", "KeyboardInterrupt", "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(1)", "KeyboardInterrupt"),
    Hostile("kill-all", "facts 22", "import os\ntry: os.kill(-1, 9)\nexcept OSError: pass\nprint('alive')", stdout="alive\n"),
    Hostile("kill-group", "facts 22", "import os, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nos.killpg(0, 15)\nprint('alive')", stdout="alive\n"),
    Hostile("nice", "priorities", "import os\nos.nice(19)\nprint(os.nice(0))", stdout=ANY),
    dies("stack-overflow-in-c", "facts 13", "import sys\nsys.setrecursionlimit(10 ** 9)\ndef f(x): return list(map(f, [x]))\nf(1)", 11),
    fails("recursion", "facts 13", "def f(): f()\nf()", r"\[Previous line repeated \d+ more times\]\nRecursionError"),
    fails("recursion-in-repr", "facts 13", "x = []\nfor _ in range(10 ** 5): x = [x]\nprint(x)", "RecursionError"),
)

MEMORY = (
    Hostile("one-process", "daytona#4489", "x = []\nwhile True: x.append(bytearray(1 << 20))", "memory", 1, stderr=re.compile("main.py(.|\n)*MemoryError\n$"), limits={"memory_mb": 64}),
    Hostile("at-once", "daytona#4489", "x = bytearray(1 << 40)", "memory", 1, stderr=re.compile("MemoryError\n$")),
    Hostile("by-numpy", "tmc-sandbox#7", "import numpy\nnumpy.zeros(10 ** 13)", "memory", 1, stderr=re.compile("ArrayMemoryError")),
    Hostile("endless-string", "gvisor#2433", "x = 'x'\nwhile True: x += x", "memory", 1, stderr=re.compile("MemoryError\n$"), limits={"memory_mb": 64}),
    Hostile("caught", "a program may try", "try: bytearray(1 << 40)\nexcept MemoryError: print('caught')", stdout="caught\n"),
    Hostile("many-processes", "RLIMIT_AS holds one process only", """
import os, time
for i in range(6):
    if os.fork() == 0:
        x = b'x' * (48 << 20)
        time.sleep(60)
time.sleep(60)
""", "memory", None, 9, limits={"memory_mb": 64, "wall_s": 9}),
    Hostile("many-processes-that-print", "a check only while it is quiet is none", """
import os, time
for i in range(6):
    if os.fork() == 0:
        x = b'x' * (48 << 20)
        time.sleep(60)
while True:
    os.write(1, b'.')
    time.sleep(0.001)
""", "memory", None, 9, stdout=ANY, limits={"memory_mb": 64, "wall_s": 4}),
    Hostile("many-programs", "what is copied of the tier is no excuse for what has left it", """
import os, sys, time
for i in range(8):
    if os.fork() == 0: os.execv(sys.executable, [sys.executable, '-S', '-c', 'import time; x = b"x" * (48 << 20); time.sleep(60)'])
time.sleep(60)
""", "memory", None, 9, limits={"memory_mb": 64, "wall_s": 9}),
    Hostile("idle-processes", "what they copy of the tier is not their doing", """
import os, time
for i in range(6):
    if os.fork() == 0: time.sleep(60)
time.sleep(0.5)
""", limits={"memory_mb": 64, "wall_s": 9}),
    Hostile("files-count-too", "tmpfs is memory", """
import os, time
os.chdir('/tmp')
for place in ('/tmp', '/dev/shm'):
    for i in range(4): open(f'{place}/f{i}', 'wb').write(bytes(15 << 20))
os.fork()
os.fork()
x = b'x' * (48 << 20)
time.sleep(60)
""", "memory", None, 9, limits={"memory_mb": 64, "wall_s": 9}),
    Hostile("memfd", "memory with a file's face", """
import os, time
keep = [os.memfd_create(f'm{i}') for i in range(20)]
for fd in keep: os.write(fd, bytes(15 << 20))
time.sleep(60)
""", "memory", None, 9, limits={"memory_mb": 64, "wall_s": 9}),
    Hostile("shared-mapping", "memory of nobody", """
import mmap, os, time
for i in range(8):
    if os.fork() == 0:
        m = mmap.mmap(-1, 48 << 20)
        for _ in range(40): m.write(b'x' * (1 << 20))
        time.sleep(60)
time.sleep(60)
""", "memory", None, 9, limits={"memory_mb": 64, "wall_s": 9}),
    Hostile("numpy-under-a-limit", "SandboxFusion#45", "import numpy\nx = numpy.ones((600, 600))\nprint((x @ x)[0, 0])", stdout="600.0\n", limits={"memory_mb": 128}),
    Hostile("threads-under-a-limit", "SandboxFusion#45", "import threading\nts = [threading.Thread(target=sum, args=(range(9),)) for _ in range(16)]\nfor t in ts: t.start()\nfor t in ts: t.join()\nprint(len(ts))", stdout="16\n", limits={"memory_mb": 192}),
    fails("bomb-in-an-exception", "a message of 20 MB", "raise ValueError('x' * 20_000_000)", "", status="output_limit", exit_code=None, signal=9),
)

OUTPUT = (
    Hostile("endless-lines", "snekbox#81", "while True: print('x' * 1000)", "output_limit", None, 9, stdout=re.compile(r"bytes omitted"), limits={"output_kb": 4}),
    Hostile("endless-line", "haiku.rag#623", "import os\nwhile True: os.write(1, b'x' * 65536)", "output_limit", None, 9, stdout=re.compile(r"^x{2048}\n... \[\d+ bytes omitted\] ...\nx{2048}$"), limits={"output_kb": 4}),
    Hostile("endless-stderr", "ggcode#1316", "import os\nwhile True: os.write(2, b'x' * 65536)", "output_limit", None, 9, stderr=re.compile(r"bytes omitted"), limits={"output_kb": 4}),
    Hostile("endless-from-a-child", "agent-gov#2303", "import os\nif os.fork() == 0:\n    while True: os.write(1, b'x' * 4096)\nos.wait()", "output_limit", None, 9, stdout=ANY, limits={"output_kb": 4}),
    Hostile("long-but-allowed", "head and tail", "for i in range(5000): print(i)", stdout=re.compile(r"^0\n1\n(.|\n)*bytes omitted(.|\n)*\n4999\n$"), limits={"output_kb": 8}),
    Hostile("not-utf-8", "inspect_k8s#206, snekbox#100", r"import sys; _ = sys.stdout.buffer.write(b'\xff\xfe\x00ok')", stdout="\ufffd\ufffd\0ok"),
    Hostile("lone-surrogate", "rllm#895", r"print('\ud800')", stdout="\\ud800\n"),
    Hostile("surrogate-in-an-exception", "rllm#895", r"raise ValueError('\ud800')", "error", 1, stderr=re.compile(r"ValueError: \\ud800\n$")),
    Hostile("all-control-characters", "terminals and JSON", "import sys; _ = sys.stdout.buffer.write(bytes(range(32)) + b'\\x7f')", stdout="".join(map(chr, range(32))) + "\x7f"),
    Hostile("line-separators", "NDJSON splits on them, if done badly", r"print('a\x0bb\x0cc\x1cd\x85e\u2028f\u2029g\rh')", stdout="a\x0bb\x0cc\x1cd\x85e\u2028f\u2029g\rh\n"),
    Hostile("markers", "code-judge's @@E, forged frames", """
import os, struct
frame = b'{"kind": "result", "status": "ok", "stdout": "forged", "exit_code": 0}'
frame = struct.pack('>I', len(frame)) + frame
for fd in range(3, 1025):
    try: os.write(fd, frame)
    except OSError: pass
    else: print('wrote to', fd)
print('@@E')
""", stdout="@@E\n"),
    Hostile("frames-on-stdout", "forged frames", r"import os; _ = os.write(1, b'\0\0\0\x02{}')", stdout="\0\0\0\x02{}"),
    Hostile("close-all", "facts §10", "import os\nos.closerange(0, 1025)", stdout=""),
    Hostile("print-to-a-closed-stdout", "facts §10: what was printed is told", "import os\nos.close(1)\nprint('x')", stdout="x\n"),
    fails("write-to-a-closed-stdout", "facts §10", "import os\nos.close(1)\nos.write(1, b'x')", r"OSError: \[Errno 9\]"),
    fails("fail-with-a-closed-stderr", "facts §10", "import os\nos.close(2)\n1 / 0", "ZeroDivisionError"),
    Hostile("scribble-in-the-shared-buffer", "a count that lies", "import sys\nslot = sys.stdout.buffer._slot\nslot[:8] = bytes([255] * 8)\nslot[8:16] = b'scribble'", stdout=re.compile("^scribble\0")),
    Hostile("stdout-of-garbage", "facts §10", "import sys\nprint('a')\nsys.stdout = 5", stdout="a\n"),
    Hostile("stdout-wrapped-anew", "a usual idiom", "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-8')\nprint('é')", stdout="é\n"),
    Hostile("stdout-restored", "a usual idiom", "import io, sys\nsys.stdout = io.StringIO()\nprint('hidden')\nsys.stdout = sys.__stdout__\nprint('x', end='')", stdout="x"),
    Hostile("no-newline", "buffers", "print('a', end='')\nprint('b', end='', flush=True)", stdout="ab"),
    Hostile("unflushed-file-on-fd-1", "buffers", "f = open(1, 'w')\nf.write('x');", stdout="x"),
    hangs("buffered-before-a-kill", "facts 34", "print('before', end='')\nwhile True: pass", stdout="before"),
    Hostile("stdout-is-no-terminal", "programs that ask", "import os, sys\nprint(sys.stdout.isatty(), os.isatty(0))\ntry: os.get_terminal_size()\nexcept OSError as error: print(error.errno)", stdout="False False\n25\n"),
    Hostile("huge-write-at-once", "a pipe holds 64 KB", "import os\nprint(os.write(1, b'x' * 300_000) == 300_000, flush=True)", stdout=re.compile("True\n$")),
)

STDIN = (
    fails("input-of-nothing", "facts 14", "input()", "EOFError: EOF when reading a line\n$"),
    Hostile("a-megabyte", "facts §10", "import sys\nprint(len(sys.stdin.read()))", stdout="1048576\n", stdin="x" * (1 << 20)),
    Hostile("unread", "nobody reads it", "print('x')", stdout="x\n", stdin="y" * (1 << 20)),
    Hostile("fast-idioms", "competitive programming", "import io, os, sys\nread = io.BytesIO(os.read(0, os.fstat(0).st_size)).readline\nprint(int(read()), read())", stdout="3 b'b\\n'\n", stdin="3\nb\n"),
    Hostile("open-0", "competitive programming", "print(*map(int, open(0)))", stdout="1 2 3\n", stdin="1\n2\n3\n"),
    Hostile("odd-characters", "encodings", "print(ascii(input()))", stdout=r"'\x00\xe9\u2028\U0001f600'" + "\n", stdin="\0é\u2028😀\n"),
    fails("breakpoint", "a debugger without a terminal", "breakpoint()", "bdb.BdbQuit\n$", stdout=ANY),
    Hostile("quit", "site's quit closes stdin", "quit()"),
    fails("write-to-stdin", "it is read-only or ours", "import sys\nsys.stdin.write('x')", "UnsupportedOperation|OSError", stdin="x"),
)

FILES = (
    fails("huge-file", "facts 19", "with open('f', 'wb') as f:\n    while True: f.write(bytes(1 << 20))", r"OSError: \[Errno 27\]", limits={"file_mb": 3}),
    fails("full-disk", "facts 19", "for i in range(9): open(f'f{i}', 'wb').write(bytes(15 << 20))", r"OSError: \[Errno 28\]"),
    fails("full-shm", "facts 19", "for i in range(9): open(f'/dev/shm/f{i}', 'wb').write(bytes(15 << 20))", r"OSError: \[Errno 28\]"),
    Hostile("sparse-file", "snekbox's tests", "import os\nf = open('f', 'wb')\nf.seek((15 << 20) - 1)\nf.write(b'x')\nf.close()\nprint(os.stat('f').st_size)", stdout=f"{15 << 20}\n"),
    fails("sparse-file-too-long", "snekbox's tests", "open('f', 'wb').truncate(10 << 30)", r"OSError: \[Errno 27\]"),
    fails("preallocate", "fallocate", "import os\nfd = os.open('f', os.O_RDWR | os.O_CREAT)\nos.posix_fallocate(fd, 0, 1 << 40)", r"OSError: \[Errno"),
    Hostile("many-inodes", "facts 19", "import os\nfor i in range(3000): os.close(os.open(f'/tmp/f{i}', os.O_CREAT))", limits={"wall_s": 9, "cpu_s": 9}, may_taint=True),
    Hostile("deep-tree", "a path longer than PATH_MAX", "import os\nfor _ in range(1200):\n    os.mkdir('d' * 10)\n    os.chdir('d' * 10)", limits={"wall_s": 9, "cpu_s": 9}, may_taint=True),
    Hostile("deep-tree-of-short-names", "a recursive rmtree", "import os\nfor _ in range(1500):\n    os.mkdir('d')\n    os.chdir('d')", limits={"wall_s": 9, "cpu_s": 9}, may_taint=True),
    Hostile("closed-tree", "what root must be able to remove", "import os\nos.makedirs('/tmp/tree/closed/deep')\nopen('/tmp/tree/closed/f', 'w').close()\nos.chmod('/tmp/tree/closed', 0)\nos.chmod('/tmp/tree', 0)"),
    Hostile("odd-names", "names that are no text", r"open(b'/tmp/\xff\n', 'w').close(); open('/dev/shm/' + 'n' * 255, 'w').close(); open('-rf', 'w').close()"),
    Hostile("links", "Judge0's symlink escape", """
import os
for i, target in enumerate(['/etc/shadow', '/', '/dev/shm', '/proc/1/root', '..', 'loop']):
    os.symlink(target, f'/tmp/l{i}')
os.symlink('/tmp/loop', '/tmp/loop')
for i in range(4): print(os.path.islink(f'/tmp/l{i}'))
""", stdout="True\n" * 4),
    fails("work-is-a-link", "the next call's folder", "import os, shutil\nos.chdir('/')\nshutil.rmtree('/tmp/work')\nos.symlink('/dev/shm', '/tmp/work')", "PermissionError: .*'/tmp/work'"),
    fails("work-is-a-file", "the next call's folder", "import os, shutil\nos.chdir('/')\nshutil.rmtree('/tmp/work')\nopen('/tmp/work', 'w').close()", "PermissionError: .*'/tmp/work'"),
    Hostile("fifo-and-socket", "what blocks a reader", "import os, socket\nos.mkfifo('/tmp/fifo')\ns = socket.socket(socket.AF_UNIX)\ns.bind('/tmp/sock')\nos.mkfifo('/dev/shm/fifo')"),
    Hostile("rm-rf", "snekbox", "import shutil\nshutil.rmtree('/', ignore_errors=True)\nimport os\nprint(os.path.exists('/usr/local/bin/python3'), os.listdir('/tmp'))", stdout="True ['work']\n", limits={"wall_s": 20, "cpu_s": 20}),
    Hostile("upwards", "../ escapes", "import os\nprint(sorted(os.listdir('../' * 40)) == sorted(os.listdir('/')), os.path.exists('../' * 40 + 'root/.ssh'))", stdout="True False\n"),
    fails("open-files", "facts §5", "keep = [open('/dev/null') for _ in range(100)]", r"OSError: \[Errno 24\]", limits={"open_files": 16}),
    Hostile("nowhere-else-to-write", "the root is read-only", """
import os, stat
for top, names, files in os.walk('/'):
    names[:] = [n for n in names if os.path.join(top, n) not in ('/proc', '/sys', '/tmp', '/dev/shm')]
    for path in [top, *(os.path.join(top, f) for f in files)]:
        if os.access(path, os.W_OK) and not stat.S_ISCHR(os.stat(path).st_mode): print(path)
""", limits={"wall_s": 30, "cpu_s": 30}),
    Hostile("dev-full", "devices", "try: open('/dev/full', 'w').write('x' * 99999)\nexcept OSError as error: print(error.errno)", stdout="28\n"),
    Hostile("inotify", "watches die with the program", "import ctypes\nlibc = ctypes.CDLL(None)\nfd = libc.inotify_init()\nprint(fd > 2, libc.inotify_add_watch(fd, b'/tmp', 0xfff) > 0)", stdout="True True\n"),
)

ATTACKS = {
    "tcp": "import socket\nsocket.create_connection(('1.1.1.1', 80), 1)",
    "udp": "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('1.1.1.1', 53))",
    "dns": "import socket\nsocket.getaddrinfo('example.com', 80)",
    "metadata-service": "import urllib.request\nurllib.request.urlopen('http://169.254.169.254/', timeout=1)",
    "packet-socket": "import socket\nsocket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "raw-socket": "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "vsock": "import socket\nsocket.socket(40, socket.SOCK_STREAM).connect((2, 1))",
    "kill-init": "import os\nos.kill(1, 9)",
    "stop-init": "import os\nos.kill(1, 19)",
    "setuid": "import os\nos.setuid(0)",
    "setgroups": "import os\nos.setgroups([0])",
    "chroot": "import os\nos.chroot('/tmp')",
    "shadow": "open('/etc/shadow').read()",
    "shadow-by-a-link": "import os\nos.symlink('/etc/shadow', 'l')\nopen('l').read()",
    "root-home": "import os\nos.listdir('/root')",
    "init-memory": "open('/proc/1/mem', 'r+b')",
    "init-pipes": "import os\nfor n in range(3, 12): os.open(f'/proc/1/fd/{n}', os.O_WRONLY)",
    "init-limits": "import resource\nresource.prlimit(1, resource.RLIMIT_CPU, (1, 1))",
    "write-library": "open('/usr/local/lib/x', 'w')",
    "write-passwd": "open('/etc/passwd', 'a')",
    "write-sysctl": "open('/proc/sys/kernel/hostname', 'w').write('x')",
    "write-guest": "import glob\nopen(glob.glob('/opt/box/sandbox/guest/*.py')[0], 'a')",
    "device-memory": "open('/dev/mem', 'rb')",
    "lift-a-limit": "import resource\nresource.setrlimit(resource.RLIMIT_NPROC, (999, 999))",
    "real-time": "import os\nos.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(5))",
    "hostname": "import socket\nsocket.sethostname('x')",
    "clock": "import time\ntime.clock_settime(time.CLOCK_REALTIME, 0)",
    "block-device": "import os, stat\nos.mknod('/tmp/d', 0o600 | stat.S_IFBLK, os.makedev(8, 0))\nopen('/tmp/d', 'rb')",
}
SYSTEM_CALLS = {
    "ptrace-init": "ptrace(16, 1, 0, 0)",
    "mount": "mount(b'none', b'/tmp', b'tmpfs', 0, None)",
    "umount": "umount(b'/tmp')",
    "remount": "mount(None, b'/', None, 32 | 4096, None)",
    "pivot-root": "syscall(155, b'/tmp', b'/tmp')",
    "reboot": "reboot(0x1234567)",
    "swapon": "swapon(b'/tmp/x', 0)",
    "init-module": "syscall(175, b'x', 1, b'')",
    "bpf": "syscall(321, 0, 0, 0)",
    "io-uring": "syscall(425, 8, 0)",
    "userfaultfd": "syscall(323, 0)",
    "perf-event": "syscall(298, 0, 0, -1, -1, 0)",
    "open-by-handle": "syscall(304, 0, 0, 0)",
    "kexec": "syscall(246, 0, 0, 0, 0)",
    "iopl": "syscall(172, 3)",
    "acct": "acct(b'/tmp/x')",
    "setns": "setns(0, 0)",
}
WALLS = (
    Hostile("walls", "facts 20-22: what is refused with an error, each by its name", f"""
for name, code in {ATTACKS!r}.items():
    try: exec(code, {{}})
    except (OSError, ValueError): pass
    else: print(name, 'fell')
print('all tried')
""", stdout="all tried\n", limits={"wall_s": 20, "cpu_s": 20}),
    Hostile("system-calls", "facts 22: what is refused with an errno, each by its name", f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for name, call in {SYSTEM_CALLS!r}.items():
    ctypes.set_errno(0)
    if eval('libc.' + call) != -1 or ctypes.get_errno() == 0: print(name, 'fell')
print('all tried')
""", stdout="all tried\n"),
    Hostile("own-memory", "/proc/self/mem", """
import ctypes
x = ctypes.create_string_buffer(b'before')
with open('/proc/self/mem', 'r+b', 0) as mem:
    mem.seek(ctypes.addressof(x))
    try: mem.write(b'after!')
    except OSError: x.value = b'refused'
print(x.value in (b'after!', b'refused'))
""", stdout=re.compile("True|^$"), status=re.compile("ok|error"), exit_code=re.compile("0|1"), stderr=ANY),
    dies("own-code", "memory overwritten", "import ctypes\nctypes.memset(id(type(1)), 255, 4096)\nx = 0 + 1\nctypes.string_at(0)", 11, stderr=ANY),
    Hostile("no-secrets", "judge0#564", """
import os
seen = b''
for pid in (1, os.getpid()):
    for name in ('environ', 'cmdline'):
        try: seen += open(f'/proc/{pid}/{name}', 'rb').read()
        except OSError: pass
secret = b'TOKEN SECRET PASSWORD KEY ASTROLABE DATABASE REDIS'.split()
print([word for word in secret if word in seen.upper()], b'/root' in seen)
print(sorted(os.environ))
""", stdout="[] False\n['HOME', 'LANG', 'LD_LIBRARY_PATH', 'OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'PATH', 'TMPDIR', 'TZ']\n"),
    Hostile("user-namespace", "facts §5: the remount hole", """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x10000000 | 0x20000) == 0:  # CLONE_NEWUSER, CLONE_NEWNS
    libc.mount(None, b'/', None, 32 | 4096, None)
    libc.mount(None, b'/usr', None, 32, None)
written = []
for path in ('/usr/local/lib/x', '/etc/passwd', '/opt/box/x', '/x'):
    try: open(path, 'a').close(); written.append(path)
    except OSError: pass
print(written, os.path.exists('/root/.ssh'))
""", stdout="[] False\n"),
    Hostile("mount-in-a-namespace", "a mount over the next call's folders", """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x10000000 | 0x20000) == 0:
    libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)
    libc.mount(b'none', b'/dev/shm', b'tmpfs', 0, None)
try: open('/tmp/x', 'w').write('x')
except OSError: pass
"""),
    Hostile("loopback-works", "its own network is its own", """
import socket
server = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(server.getsockname())
server.accept()[0].sendall(b'hello')
print(client.recv(5))
""", stdout="b'hello'\n"),
)

CODE = (
    fails("nul", "snekbox's tests", "a\0b", "null bytes\n$"),
    Hostile("byte-order-mark", "facts 18", "\ufeffprint('x')", stdout="x\n"),
    Hostile("crlf", "facts 18", "if 1:\r\n    print('a')\r\n    print('b')\r\n", stdout="a\nb\n"),
    Hostile("cr", "facts 18", "print('a')\rprint('b')\r", stdout="a\nb\n"),
    fails("tabs-and-spaces", "facts 18", "if 1:\n    x = 1\n\ty = 2", "TabError|IndentationError"),
    fails("deep-parentheses", "facts 18", "(" * 500 + ")" * 500, "SyntaxError: too many nested parentheses\n$"),
    fails("100k-unary-minus", "facts 18", "-" * 100_000 + "1", "^SyntaxError: the program is nested too deeply"),
    fails("50k-plus", "facts 18", "a" + "+a" * 50_000, "^SyntaxError: the program is nested too deeply"),
    fails("deep-indent", "facts 18", "".join(" " * i + "if 1:\n" for i in range(110)) + " " * 110 + "pass", "IndentationError: too many levels"),
    fails("too-long", "facts 18: 1.2 MB", "#" * 1_200_000, "^SyntaxError: the program is longer than 1048576 bytes\n$"),
    Hostile("long", "a megabyte of comment", "#" * ((1 << 20) - 20) + "\nprint('x')", stdout="x\n"),
    Hostile("long-literal", "a megabyte of text", "x = '" + "é" * 500_000 + "'\nprint(len(x))", stdout="500000\n"),
    Hostile("many-lines", "a long list", "x = [\n" + "1,\n" * 50_000 + "]\nprint(len(x))", stdout="50000\n", limits={"wall_s": 20, "cpu_s": 20}),
    fails("huge-integer-literal", "helm#1381, SkyThought#28", "x = " + "9" * 5000, "SyntaxError: Exceeds the limit"),
    fails("huge-integer-to-text", "Math-Verify#51, VNOI#30", "print(10 ** 5000)", "ValueError: Exceeds the limit"),
    Hostile("huge-integer-allowed", "mathics#941", "import sys\nsys.set_int_max_str_digits(0)\nprint(len(str(10 ** 5000)))", stdout="5001\n"),
    Hostile("future", "facts 32", "from __future__ import annotations\ndef f(x: y): ...\nprint(f.__annotations__)", stdout="{'x': 'y'}\n"),
    Hostile("latin-1-cookie", "PEP 263", "# -*- coding: latin-1 -*-\nprint('é')", stdout="é\n"),
    fails("form-feed-and-separators", "lines as the compiler counts them", "\f\nx = '\u2028\x1c\x85'\n\f1 / 0  # here\n", 'File "main.py", line 3, in <module>\n    1 / 0  # here\n'),
    fails("look-alike-characters", "a model that writes typography", "print(\u2018x\u2019)", r"SyntaxError: invalid character '\u2018' \(U\+2018\)" + "\n$"),
    Hostile("unicode-names", "identifiers", "\u03c0, \u540d = 3, 4\nprint(\u03c0 + \u540d)", stdout="7\n"),
    Hostile("empty", "nothing", ""),
    Hostile("only-newlines", "nothing", "\n\n\r\n\f\n"),
    fails("unclosed", "a program cut off", "print('a'\n", r"SyntaxError: '\(' was never closed" + "\n$"),
    fails("markdown", "a program still in its fence", "```python\nprint(1)\n```", "SyntaxError: invalid syntax\n$"),
    fails("top-level-await", "a notebook's habit", "import asyncio\nawait asyncio.sleep(0)", "SyntaxError: 'await' outside function\n$"),
)

ENDINGS = (
    Hostile("exit", "facts 15", "import sys\nsys.exit()"),
    Hostile("exit-3", "facts 15", "import sys\nsys.exit(3)", "error", 3),
    Hostile("exit-text", "facts 15", "import sys\nsys.exit('bye')", "error", 1, stderr="bye\n"),
    Hostile("exit-none", "pdd#605", "raise SystemExit(None)"),
    Hostile("exit-object", "facts 15", "raise SystemExit([1, 2])", "error", 1, stderr="[1, 2]\n"),
    Hostile("exit-256", "exit codes are bytes", "raise SystemExit(256)"),
    Hostile("exit-minus-1", "exit codes are bytes", "raise SystemExit(-1)", "error", 255),
    Hostile("exit-bad-object", "__str__ that raises", "class A:\n    def __str__(self): raise KeyboardInterrupt\nprint('a', end='')\nraise SystemExit(A())", "error", 1, stdout="a"),
    Hostile("os-exit", "code-judge loses its trailer", "import os\nprint('a')\nos._exit(0)", stdout="a\n"),
    Hostile("os-exit-9", "facts 15", "import os\nos._exit(9)", "error", 9),
    Hostile("exit-in-a-thread", "ends the thread only", "import sys, threading\nt = threading.Thread(target=sys.exit)\nt.start()\nt.join()\nprint('x')", stdout="x\n"),
    Hostile("late-thread", "facts 16", "import threading, time\ndef f():\n    time.sleep(0.05)\n    print('late')\nthreading.Thread(target=f).start()", stdout="late\n"),
    Hostile("daemon-thread", "it ends with the program", "import threading, time\nthreading.Thread(target=time.sleep, args=(99,), daemon=True).start()\nprint('x')", stdout="x\n"),
    Hostile("atexit", "facts 16", "import atexit\natexit.register(print, 'bye');", stdout="bye\n"),
    Hostile("atexit-that-raises", "facts 16", "import atexit\natexit.register(lambda: 1 / 0);", stderr=re.compile("ZeroDivisionError")),
    Hostile("finalizer", "as in any interpreter", "class A:\n    def __del__(self): print('bye')\na = A()", stdout="bye\n"),
    Hostile("finalizer-that-raises", "__del__", "class A:\n    def __del__(self): 1 / 0\na = A()\ndel a", stderr=re.compile("Exception ignored in(.|\n)*ZeroDivisionError")),
    Hostile("unraisable-hook-that-raises", "sys.unraisablehook", "import sys\nsys.unraisablehook = lambda _: 1 / 0\nclass A:\n    def __del__(self): 1 / 0\nA();", stderr=re.compile("ZeroDivisionError")),
    fails("interrupt", "KeyboardInterrupt", "raise KeyboardInterrupt", "KeyboardInterrupt\n$"),
    fails("generator-exit", "GeneratorExit", "raise GeneratorExit", "GeneratorExit\n$"),
    fails("exception-group", "PEP 654", "raise ExceptionGroup('g', [ValueError(1), TypeError(2)])", r"ExceptionGroup: g \(2 sub-exceptions\)"),
    fails("chain", "__cause__ in a ring", "a, b = ValueError(1), ValueError(2)\na.__cause__, b.__cause__ = b, a\nraise a", "ValueError: 1\n$"),
    fails("str-that-raises", "__str__", "class E(Exception):\n    def __str__(self): raise self\nraise E", r"E: <exception str\(\) failed>" + "\n$"),
    fails("name-that-lies", "__name__ and __module__", "class E(Exception): pass\nE.__name__ = 'x' * 99\nE.__module__ = None\nE.__qualname__ = '\\n'\nraise E", ""),
    fails("excepthook-that-raises", "sys.excepthook", "import sys\nsys.excepthook = lambda *_: [][1]\n1 / 0", "main.py(.|\n)*ZeroDivisionError: division by zero\n$"),
    fails("excepthook-of-its-own", "sys.excepthook", "import sys\nsys.excepthook = lambda *_: print('mine')\n1 / 0", "^$", stdout="mine\n"),
    fails("no-built-ins", "builtins emptied", "import builtins\nbuiltins.__dict__.clear()\n1 / 0", "main.py(.|\n)*ZeroDivisionError: division by zero\n$"),
    fails("no-modules", "sys.modules emptied", "import sys\nsys.modules.clear()\n1 / 0", "ZeroDivisionError: division by zero\n$"),
    Hostile("bad-built-ins", "builtins replaced", "import builtins\nfor name in ('len', 'isinstance', 'open', 'getattr', 'print', 'Exception'): builtins.__dict__[name] = None"),
    Hostile("bad-exit", "what we end with", "import os, sys, threading, gc, atexit\nprint('a')\nos._exit = os.kill = threading._shutdown = gc.collect = None", re.compile("ok|error"), re.compile("[01]"), stdout="a\n", stderr=ANY),
    Hostile("climb-our-frames", "sys._getframe", """
import os, sys
frame = sys._getframe()
print('climbing')
while frame:
    for value in [*frame.f_globals.values(), *frame.f_locals.values()]:
        for name in ('_reply_fd', '_in_fd'):
            try: os.write(getattr(value, name), b'forged')
            except (AttributeError, OSError): pass
    frame = frame.f_back
print('out')
""", stdout="climbing\nout\n"),
)

INTERPRETER = (
    Hostile("main-module", "pickle and dataclasses need it", """
import dataclasses, doctest, inspect, pickle, sys
@dataclasses.dataclass
class Point:
    '''
    >>> Point(1, 2)
    Point(x=1, y=2)
    '''
    x: int
    y: int
print(__name__, __file__, sys.argv, Point.__module__)
print(pickle.loads(pickle.dumps(Point(1, 2))), doctest.testmod().failed)
print(inspect.getsource(Point).splitlines()[0])
""", stdout="__main__ main.py ['main.py'] __main__\nPoint(x=1, y=2) 0\n@dataclasses.dataclass\n", limits={"wall_s": 9}),
    Hostile("imports-itself", "main.py is there", "if __name__ == '__main__':\n    import main\n    print(main.x)\nx = 5", stdout="5\n"),
    Hostile("asyncio", "an event loop", "import asyncio\nasync def f():\n    await asyncio.sleep(0.01)\n    return 3\nprint(asyncio.run(f()))", stdout="3\n"),
    Hostile("subprocess-of-python", "sys.executable", "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'import math; print(math.pi)'], capture_output=True, text=True).stdout)", stdout="3.141592653589793\n\n"),
    Hostile("no-shell", "there is none, and that is no failure of ours", "import os\nprint(os.system('true') != 0)", stdout="True\n", stderr=ANY),
    Hostile("time-zones", "facts 28", "import datetime, time, zoneinfo\nprint(time.tzname[0], datetime.datetime(2024, 7, 1, tzinfo=zoneinfo.ZoneInfo('Europe/Berlin')).utcoffset())", stdout="UTC 2:00:00\n"),
    Hostile("library", "what programs import", """
import csv, ctypes, hashlib, json, sqlite3, ssl, statistics, tempfile, unittest, xml.etree.ElementTree, zlib
with tempfile.NamedTemporaryFile('w') as f: f.write('x')
print(sqlite3.connect(':memory:').execute('select 1 + 1').fetchone(), statistics.mean([1, 2, 3]), hashlib.md5(b'').hexdigest()[:4])
""", stdout="(2,) 2 d41d\n", limits={"wall_s": 9}),
    Hostile("science", "tiers", "import numpy, sympy\nx = sympy.Symbol('x')\nprint(sympy.solve(x ** 2 - 4), int(numpy.arange(4).sum()))", stdout="[-2, 2] 6\n"),
    fails("nothing-of-ours", "our package is no module of the program", "import sys\nassert not [name for name in sys.modules if name.startswith('sandbox')]\nimport sandbox", "ModuleNotFoundError"),
    Hostile("profile", "sys.setprofile", "import sys\nsys.setprofile(lambda *_: 1 / 0)\ntry: len('x')\nexcept ZeroDivisionError: sys.setprofile(None); print('x')", stdout="x\n"),
    fails("trace-that-raises", "sys.settrace", "import sys\nsys.settrace(lambda *_: 1 / 0)\ndef f(): pass\nf();", "ZeroDivisionError"),
    Hostile("faulthandler", "a watchdog of its own", "import faulthandler, time\nfaulthandler.dump_traceback_later(0.05, exit=True)\ntime.sleep(9)", "error", 1, stderr=re.compile("Timeout")),
)

LEAVINGS = (
    Hostile("files", "facts 30", "for name in ('leak', '/tmp/leak', '/dev/shm/leak'): open(name, 'w').write('x')"),
    Hostile("globals", "facts 30", "import builtins, math, os, sys, random, decimal\nbuiltins.leak = math.leak = sys.leak = 1\nmath.pi = 3\nos.environ['LEAK'] = '1'\nrandom.random = lambda: 4\ndecimal.getcontext().prec = 2\nsys.path.append('/leak')\nsys.setrecursionlimit(99)"),
    Hostile("process-state", "what a child could hand up", "import os, signal, resource\nos.umask(0)\nos.nice(5)\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nsignal.pthread_sigmask(signal.SIG_BLOCK, [10])\nos.sched_setaffinity(0, [0])\nresource.setrlimit(resource.RLIMIT_NOFILE, (8, 8));"),
    Hostile("sysv-shared-memory", "facts §9.17: it outlives its maker", """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
print(libc.shmget(4711, 4096, 0))
shm = libc.shmget(4711, 4096, 0o1666)
if shm >= 0: ctypes.memmove(libc.shmat(shm, None, 0), b'leak', 4)
""", stdout="-1\n", may_taint=True),
    Hostile("sysv-semaphore", "facts §9.17", "import ctypes\nlibc = ctypes.CDLL(None)\nprint(libc.semget(4711, 1, 0))\nlibc.semget(4711, 1, 0o1666);", stdout="-1\n", may_taint=True),
    Hostile("sysv-message-queue", "facts §9.17", "import ctypes\nlibc = ctypes.CDLL(None)\nprint(libc.msgget(4711, 0))\nq = libc.msgget(4711, 0o1666)\nif q >= 0: libc.msgsnd(q, b'\\1' + bytes(15), 8, 0);", stdout="-1\n", may_taint=True),
    Hostile("posix-message-queue", "facts §9.17", "import ctypes\nlibc = ctypes.CDLL(None)\nprint(libc.syscall(240, b'leak', 0, 0, None))\nlibc.syscall(240, b'leak', 0o102, 0o666, None);", stdout="-1\n", may_taint=True),
    Hostile("key", "the kernel's keyring", "import ctypes\nlibc = ctypes.CDLL(None)\nprint(libc.syscall(249, b'user', b'leak', None, -4) >= 0)\nlibc.syscall(248, b'user', b'leak', b'x', 1, -4);", stdout="False\n", may_taint=True),
    Hostile("abstract-socket", "it dies with its maker", "import socket\ns = socket.socket(socket.AF_UNIX)\ns.bind('\\0leak')\ns.listen()"),
    Hostile("posix-shared-memory", "/dev/shm", "from multiprocessing import shared_memory\ns = shared_memory.SharedMemory('leak', create=True, size=99)\nprint(s.size >= 99)", stdout="True\n", stderr=ANY),
    Hostile("port", "a listener left behind", "import os, socket, time\ns = socket.create_server(('127.0.0.1', 4711))\nif os.fork() == 0: time.sleep(99)"),
)

GROUPS = (TIME, PROCESSES, MEMORY, OUTPUT, STDIN, FILES, WALLS, CODE, ENDINGS, INTERPRETER, LEAVINGS)
PROGRAMS = [program for group in GROUPS for program in group]
