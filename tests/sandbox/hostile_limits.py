"""Hostile programs that go for the limits: time, processes, memory, output."""

import re

from tests.sandbox.hostile import ANY, HARD, Hostile, dies, fails, hangs

# ruff: noqa: E501
# fmt: off
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
""", "memory", None, 9, stderr=re.compile("^(MemoryError: .* than the box has\n)?$"), limits={"memory_mb": 64, "wall_s": 9}),  # the call's limit or the box's, whichever is seen first
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
