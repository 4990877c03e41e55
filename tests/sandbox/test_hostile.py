"""The catalogue of hostile programs on real gVisor: each twice in one box, and then a healthy one."""

import re
from collections.abc import Iterator

import httpx
import pytest

from contracts.execution import Execution, ExecutionBatch, ExecutionCall
from tests.sandbox.conftest import RunningNode, call, require_runsc, start_node, stop_node
from tests.sandbox.hostile import Hostile
from tests.sandbox.hostile_programs import PROGRAMS

pytestmark = pytest.mark.runsc

OVERRUN_MS = 3000  # generous: a busy machine is no failure of the sandbox
ROOM = {"wall_s": 20.0, "cpu_s": 15.0}  # for programs that end by themselves
HEALTHY = """
import builtins, decimal, math, os, signal, sys
print(6 * 7)
print(os.listdir('/tmp'), os.listdir('/dev/shm'), os.listdir('.'))
print('others:', [name for name in os.listdir('/proc') if name.isdigit() and name not in ('1', str(os.getpid()))])
print('leaks:', [hasattr(thing, 'leak') for thing in (builtins, math, sys)], 'LEAK' in os.environ, '/leak' in sys.path)
print(round(math.pi, 4), decimal.getcontext().prec, sys.getrecursionlimit(), oct(os.umask(0o22)))
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0) != {0})
"""
HEALTHY_ANSWER = """\
42
['work'] [] ['main.py']
others: []
leaks: [False, False, False] False False
3.1416 28 1000 0o22
set() 0 True
"""


@pytest.fixture(scope="session")
def lonely(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node with one box."""
    require_runsc()
    running = start_node(tmp_path_factory.mktemp("lonely"), "--boxes", "1")
    yield running
    stop_node(running)


def run(node: RunningNode, calls: list[ExecutionCall]) -> list[Execution]:
    """One request, past the client and its patience: what the node itself answers, in the order of the calls."""
    numbered = [call.model_copy(update={"id": f"{number:03}"}) for number, call in enumerate(calls)]
    body = ExecutionBatch(calls=numbered).model_dump_json()
    reply = httpx.post(f"{node.url}/v1/run", content=body, timeout=120).raise_for_status()
    answers = [Execution.model_validate_json(line) for line in reply.content.splitlines()]
    return sorted(answers, key=lambda execution: execution.id)


def replacements(node: RunningNode) -> list[str]:
    """Why boxes were replaced, other than by age and size."""
    log = (node.state_dir / "node.log").read_text()
    return re.findall(r"replacing a .* box: (?!recycled|threads|memory)(.*)", log)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_twice_in_one_box_and_then_a_healthy_call(lonely: RunningNode, program: Hostile) -> None:
    before = replacements(lonely)
    room = {} if program.status == "timeout" else ROOM
    hostile = call(program.code, stdin=program.stdin, **room | program.limits)
    first, second, healthy = run(lonely, [hostile, hostile, call(HEALTHY)])
    for execution in (first, second):
        assert program.misses(execution) == {}
        assert execution.exec_ms < hostile.limits.wall_s * 1000 + OVERRUN_MS
    assert (healthy.status, healthy.stdout, healthy.stderr) == ("ok", HEALTHY_ANSWER, "")
    assert program.may_taint or replacements(lonely) == before


def test_the_catalogue_names_every_program_once() -> None:
    assert len({program.name for program in PROGRAMS}) == len(PROGRAMS) > 150


def test_it_is_gvisor_and_says_so(lonely: RunningNode) -> None:
    (execution,) = run(lonely, [call("import os; os.getuid()")])
    assert execution.stdout == "10000\n"
    assert execution.isolation.startswith("gvisor/")


def test_chance_differs_from_call_to_call_and_from_box_to_box(node: RunningNode) -> None:
    code = (
        "import random, uuid, os, numpy; print(random.random(), uuid.uuid4(), os.urandom(8).hex(), numpy.random.rand())"
    )
    answers = run(node, [call(code, **ROOM) for _ in range(8)])
    assert [(execution.status, execution.stderr) for execution in answers] == [("ok", "")] * 8
    columns = zip(*(execution.stdout.split() for execution in answers), strict=True)
    assert [len(set(column)) for column in columns] == [8, 8, 8, 8]


def test_a_seed_repeats_itself_in_every_box(node: RunningNode) -> None:
    code = "import random, numpy; print(random.random(), numpy.random.rand())"
    assert len({execution.stdout for execution in run(node, [call(code, seed=7, **ROOM) for _ in range(6)])}) == 1
