"""Programs whose answer is easily got wrong: odd code, odd ends, odd uses of the interpreter."""

import re

from tests.sandbox.hostile import ANY, Hostile, fails

# ruff: noqa: E501
# fmt: off
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
