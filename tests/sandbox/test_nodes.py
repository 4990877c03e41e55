"""Two real nodes and a client: one is killed, frozen or left while calls are under way."""

import asyncio
import random
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from contracts.execution import ExecutionCall
from sandbox.client import SandboxClient, SandboxUnavailable
from tests.sandbox.conftest import RunningNode, call, require_runsc, start_node, stop_node

pytestmark = pytest.mark.runsc


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RunningNode]]:
    """Two nodes; tests leave them able to answer."""
    require_runsc()
    running = [start_node(tmp_path_factory.mktemp(name), "--boxes", "1") for name in ("one", "two")]
    yield running
    for node in running:
        node.process.send_signal(signal.SIGCONT)
        stop_node(node)
        assert not node.sentries()
        assert not list((node.state_dir / "runsc").glob("*.state"))


def mixed_calls(count: int, seed: int) -> list[ExecutionCall]:
    """Short calls and some that take a while; each prints its number."""
    chance = random.Random(seed)
    return [
        call(f"import time; time.sleep({chance.choice([0, 0, 0.05, 0.3])}); print({number})", id=str(number))
        for number in range(count)
    ]


async def until(holds: Callable[[], bool], within_s: float = 15.0) -> None:
    """Poll for a state of another process; there is no event to wait for."""
    give_up = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < give_up, "it did not happen in time"
        await asyncio.sleep(0.02)


async def run_and_strike(
    client: SandboxClient, calls: list[ExecutionCall], victim: RunningNode, number: signal.Signals
) -> list[str]:
    """Strike the victim once it has answered something and has more to do; then every call must be answered once."""
    answered: list[str] = []
    has_answered = asyncio.Event()

    async def strike() -> None:
        await has_answered.wait()
        await until(lambda: victim.health()["busy"] > 0)
        victim.process.send_signal(number)

    striking = asyncio.create_task(strike())
    async for execution in client.run_many(calls):
        assert execution.stdout == f"{execution.id}\n"
        answered.append(execution.id)
        if execution.node.endswith(victim.url.rsplit(":", 1)[1]):
            has_answered.set()
    await striking
    return answered


async def test_a_killed_node_costs_no_answer_and_serves_again_once_it_is_back(nodes: list[RunningNode]) -> None:
    victim = nodes[0]
    calls = mixed_calls(24, seed=11)
    async with SandboxClient([node.url for node in nodes]) as client:
        answered = await run_and_strike(client, calls, victim, signal.SIGKILL)
        assert sorted(map(int, answered)) == list(range(24))
        victim.process.wait(5)
        await until(lambda: not victim.sentries())

        nodes[0] = start_node(victim.state_dir, "--boxes", "1", port=int(victim.url.rsplit(":", 1)[1]))
        assert len(list((victim.state_dir / "runsc").glob("*.state"))) <= 2  # what the dead one left is swept
        async with asyncio.timeout(20):  # used again once a heartbeat has found it
            while len({execution.node async for execution in client.run_many(mixed_calls(4, seed=1))}) < 2:
                pass


async def test_a_frozen_node_is_left_and_its_late_answers_are_not_heard(nodes: list[RunningNode]) -> None:
    victim = nodes[1]
    calls = mixed_calls(24, seed=12)
    async with SandboxClient([node.url for node in nodes]) as client:
        answered = await run_and_strike(client, calls, victim, signal.SIGSTOP)
        assert sorted(map(int, answered)) == list(range(24))

        victim.process.send_signal(signal.SIGCONT)
        answered = [execution.id async for execution in client.run_many(calls)]
    assert sorted(map(int, answered)) == list(range(24))


async def test_a_client_that_leaves_takes_its_calls_along(nodes: list[RunningNode]) -> None:
    served = [node.health()["served"] for node in nodes]
    async with SandboxClient([node.url for node in nodes]) as client:
        runs = [asyncio.create_task(client.run(call("import time; time.sleep(0.5)"))) for _ in range(40)]
        await until(lambda: all(node.health()["queued"] > 5 for node in nodes))
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
        await until(lambda: all(node.health()["queued"] == 0 and node.health()["busy"] == 0 for node in nodes))
    assert sum(node.health()["served"] for node in nodes) - sum(served) < 10


async def test_a_deadline_is_kept_by_busy_nodes(nodes: list[RunningNode]) -> None:
    async with SandboxClient([node.url for node in nodes]) as client:
        long = call("import time; time.sleep(20)", wall_s=30)
        busy = [asyncio.create_task(client.run(long)) for _ in nodes]
        await until(lambda: all(node.health()["busy"] == 1 for node in nodes))
        started = time.monotonic()
        with pytest.raises(SandboxUnavailable, match="within 0.5 s"):
            await client.run(call("print(1)"), deadline_s=0.5)
        assert time.monotonic() - started < 2
        for run in busy:
            run.cancel()
        await asyncio.gather(*busy, return_exceptions=True)
        await until(lambda: all(node.health()["ready"] == 1 for node in nodes))
