"""One hostile program per limit and per wall, on real gVisor; after each the node still answers."""

from collections.abc import AsyncIterator

import pytest

from contracts.execution import Execution
from sandbox.client import SandboxClient
from tests.sandbox.conftest import RunningNode, call

pytestmark = pytest.mark.runsc


@pytest.fixture
async def client(node: RunningNode) -> AsyncIterator[SandboxClient]:
    async with SandboxClient([node.url]) as client:
        yield client
        assert (await client.run(call("print(6 * 7)"))).stdout == "42\n"


async def run(client: SandboxClient, code: str, **limits: float) -> Execution:
    return await client.run(call(code, **limits))


async def test_it_is_gvisor_and_says_so(client: SandboxClient) -> None:
    execution = await run(client, "import os; os.getuid()")
    assert execution.stdout == "10000\n"
    assert execution.isolation.startswith("gvisor/")


async def test_spin(client: SandboxClient) -> None:
    execution = await run(client, "print('on')\nwhile True: pass", wall_s=0.5)
    assert (execution.status, execution.stdout) == ("timeout", "on\n")
    assert execution.exec_ms < 1500


async def test_cpu(client: SandboxClient) -> None:
    assert (await run(client, "while True: pass", cpu_s=1, wall_s=20)).status == "cpu_limit"


async def test_loop_in_c(client: SandboxClient) -> None:
    assert (await run(client, "x = 10 ** 10 ** 9", wall_s=0.5, cpu_s=20)).status in ("timeout", "memory")


async def test_sleep_that_ignores_signals(client: SandboxClient) -> None:
    code = """
import signal, time
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: time.sleep(100)
"""
    execution = await run(client, code, wall_s=0.5)
    assert (execution.status, execution.signal) == ("timeout", 9)


async def test_stopping_itself(client: SandboxClient) -> None:
    assert (await run(client, "import os; os.kill(os.getpid(), 19)", wall_s=0.5)).status == "timeout"


async def test_fork_bomb(client: SandboxClient) -> None:
    code = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    assert (await run(client, code, wall_s=1, processes=24)).status == "timeout"


async def test_processes(client: SandboxClient) -> None:
    code = "import os, time\nfor i in range(9):\n    if os.fork() == 0: time.sleep(9)"
    execution = await run(client, code, processes=4)
    assert execution.status == "error"
    assert "BlockingIOError: [Errno 11]" in execution.stderr


async def test_endless_output(client: SandboxClient) -> None:
    execution = await run(client, "while True: print('x' * 1000)", output_kb=4)
    assert (execution.status, execution.truncated) == ("output_limit", True)
    assert len(execution.stdout) < 5000
    assert execution.stdout_bytes < 1 << 20


async def test_memory_of_one_process(client: SandboxClient) -> None:
    execution = await run(client, "x = []\nwhile True: x.append(bytearray(1 << 20))", memory_mb=64)
    assert execution.status == "memory"
    assert execution.stderr.endswith("MemoryError\n")


async def test_memory_of_many_processes_together(client: SandboxClient) -> None:
    code = """
import os, time
for i in range(8):
    if os.fork() == 0:
        x = b'x' * (56 << 20)
        time.sleep(60)
time.sleep(60)
"""
    assert (await run(client, code, memory_mb=64, wall_s=10)).status == "memory"


async def test_huge_file(client: SandboxClient) -> None:
    execution = await run(client, "open('f', 'wb').write(bytes(3 << 20))", file_mb=1)
    assert "OSError: [Errno 27]" in execution.stderr


async def test_a_full_disk_is_the_programs_own(client: SandboxClient) -> None:
    execution = await run(client, "for i in range(9): open(f'f{i}', 'wb').write(bytes(15 << 20))")
    assert "[Errno 28]" in execution.stderr


async def test_open_files(client: SandboxClient) -> None:
    execution = await run(client, "keep = [open('/dev/null') for _ in range(100)]", open_files=16)
    assert "[Errno 24]" in execution.stderr


async def test_daemon_dies_with_its_call(client: SandboxClient) -> None:
    code = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            open('/tmp/alive', 'w').write('x')
            open('/dev/shm/alive', 'w').write('x')
    os._exit(0)
time.sleep(0.05)
"""
    assert (await run(client, code)).status == "ok"
    for _ in range(4):
        assert (
            await run(client, "import os; print(os.listdir('/tmp'), os.listdir('/dev/shm'))")
        ).stdout == "['work'] []\n"


async def test_kill_all(client: SandboxClient) -> None:
    execution = await run(client, "import os\nprint('a', flush=True)\nos.kill(-1, 9)\nprint('b')")
    assert execution.stdout.startswith("a\n")
    assert execution.attempts == 1


async def test_crash(client: SandboxClient) -> None:
    execution = await run(client, "import ctypes; ctypes.string_at(0)")
    assert (execution.status, execution.signal) == ("signal", 11)


@pytest.mark.parametrize(
    "attack",
    [
        "import socket; socket.create_connection(('1.1.1.1', 80), 1)",
        "import socket; socket.getaddrinfo('example.com', 80)",
        "import os; os.kill(1, 9)",
        "import os; os.setuid(0)",
        "open('/etc/shadow').read()",
        "open('/proc/1/mem', 'r+b')",
        "import os; [os.open(f'/proc/1/fd/{n}', os.O_WRONLY) for n in range(3, 12)]",
        "open('/usr/local/lib/x', 'w')",
        "open('/etc/passwd', 'a')",
        "import os; os.listdir('/root')",
        "import os; os.chroot('/tmp')",
        "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    ],
)
async def test_walls(client: SandboxClient, attack: str) -> None:
    execution = await run(client, attack)
    assert (execution.status, execution.stdout) == ("error", "")
    assert "rror: [Errno" in execution.stderr.splitlines()[-1]


async def test_nothing_leaks_from_one_call_to_the_next(client: SandboxClient) -> None:
    leave = """
import builtins, math, os
builtins.leak = math.leak = 1
os.environ['LEAK'] = '1'
for name in ('leak', '/tmp/leak', '/dev/shm/leak'):
    open(name, 'w').write('x')
os.makedirs('/tmp/tree/closed/deep'); os.chmod('/tmp/tree/closed', 0)
"""
    look = """
import builtins, math, os
print(hasattr(builtins, 'leak'), hasattr(math, 'leak'), 'LEAK' in os.environ)
print(sorted(os.listdir('.')), os.listdir('/tmp'), os.listdir('/dev/shm'))
"""
    for _ in range(3):
        assert (await run(client, leave)).status == "ok"
    for _ in range(4):
        assert (await run(client, look)).stdout == "False False False\n['main.py'] ['work'] []\n"


async def test_two_boxes_of_one_image_differ_in_chance(client: SandboxClient) -> None:
    code = "import random, uuid, os; print(random.random(), uuid.uuid4(), os.urandom(8).hex())"
    wanted = [call(code) for _ in range(8)]
    assert len({execution.stdout async for execution in client.run_many(wanted)}) == 8


async def test_science_is_there(client: SandboxClient) -> None:
    execution = await run(
        client, "import sympy, numpy\nx = sympy.Symbol('x')\nsympy.solve(x**2 - 4), int(numpy.arange(4).sum())"
    )
    assert execution.stdout == "([-2, 2], 6)\n"


async def test_common_modules_work(client: SandboxClient) -> None:
    code = """
import datetime, hashlib, json, multiprocessing, sqlite3, statistics, subprocess, sys, zlib, zoneinfo
print(multiprocessing.get_context('fork').Pool(2).map(abs, [-1, -2]))
print(subprocess.run([sys.executable, '-c', 'print(3)'], capture_output=True, text=True).stdout.strip())
print(zoneinfo.ZoneInfo('Europe/Berlin').key, json.dumps([1]), hashlib.sha256(b'').hexdigest()[:4])
"""
    execution = await run(client, code)
    assert execution.stdout == "[1, 2]\n3\nEurope/Berlin [1] e3b0\n", execution.stderr
