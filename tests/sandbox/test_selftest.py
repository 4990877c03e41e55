"""The self-test finds walls that are down, on real gVisor, and the node then refuses; and the host's memory limit."""

import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from contracts.execution import ExecutionCall, Limits
from sandbox.box import Box, BoxOutOfMemoryError
from sandbox.gvisor import GvisorLauncher, candidate_platforms, find_runsc
from sandbox.launcher import NodeRefusesError
from sandbox.node import open_node
from sandbox.rootfs import prepare_rootfs
from sandbox.selftest import attack, require_isolation
from sandbox.settings import NodeSettings
from sandbox.tiers import Tier
from tests.sandbox.conftest import require_runsc, runscs

pytestmark = pytest.mark.runsc


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_runsc()
    return tmp_path_factory.mktemp("walls")


@asynccontextmanager
async def open_box(
    state_dir: Path,
    *,
    runsc: str = "",
    platform: str = "ptrace",
    change_spec: Callable[[dict[str, Any]], object] = lambda _: None,
    **replaced: str,
) -> AsyncIterator[Box]:
    """A box whose bundle or flags of runsc (old=new) are not as they should be."""
    found = find_runsc(runsc)
    assert found is not None
    launcher = GvisorLauncher(found, platform, rootfs=prepare_rootfs(state_dir), state_dir=state_dir)
    for path in state_dir.glob("bundles/*/config.json"):
        spec = json.loads(path.read_text())
        change_spec(spec)
        path.write_text(json.dumps(spec))
    base_argv = launcher._base_argv()
    for name, value in replaced.items():
        base_argv = [f"--{name}={value}" if flag.startswith(f"--{name}=") else flag for flag in base_argv]
    launcher._base_argv = lambda: base_argv  # type: ignore[method-assign]
    box = await Box.start(launcher, Tier.LIGHT, cold=True)
    try:
        yield box
    finally:
        await box.close()
        launcher.close()


def kinds() -> list[tuple[str, str]]:
    """Every runsc here on every platform that it has and this machine can do."""
    found = [(path, find_runsc(path)) for path in runscs()]
    return [(path, name) for path, runsc in found if runsc for name in candidate_platforms(runsc)]


@pytest.mark.parametrize(("runsc", "platform"), kinds())
async def test_every_wall_holds(state_dir: Path, runsc: str, platform: str) -> None:
    async with open_box(state_dir, runsc=runsc, platform=platform) as box:
        verdicts = await attack(box)
    assert {verdict.check for verdict in verdicts} >= {"sentry", "gofer", "remount", "network", "kill-all"}
    assert [verdict for verdict in verdicts if not verdict.is_held] == []


@pytest.mark.parametrize("runsc", runscs()[1:])
async def test_files_served_by_the_sentry_itself_are_found(state_dir: Path, runsc: str) -> None:
    """directfs, the default since 2023: guests could remount and write files of the host."""
    async with open_box(state_dir, runsc=runsc, directfs="true") as box:
        broken = {verdict.check for verdict in await attack(box) if not verdict.is_held}
    assert "sentry" in broken


@pytest.mark.parametrize(("runsc", "platform"), kinds())
async def test_it_runs_replaces_and_restores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runsc: str, platform: str
) -> None:
    settings = NodeSettings(state_dir=tmp_path, boxes=1, runsc=runsc, platform=platform)
    async with open_node(settings) as pool:
        launcher = pool.launcher
        template = await Box.start(launcher, Tier.SYMPY, cold=True)
        assert await template.save_image()
        clones = [await Box.start(launcher, Tier.SYMPY) for _ in range(2)]
        code = (
            "import random, numpy, uuid, os\nprint(random.random(), numpy.random.rand(), uuid.uuid4(), os.urandom(4))"
        )
        said = [(await box.run(ExecutionCall(id="r", code=code)))["stdout"] for box in clones]
        for box in clones:
            await box.close()
    assert [box.is_restored for box in clones] == [True, True]
    assert len(set(" ".join(said).split())) == len(" ".join(said).split())


@pytest.mark.parametrize("runsc", runscs())
async def test_kept_memory_is_not_held_against_the_next(state_dir: Path, runsc: str) -> None:
    async with open_box(state_dir, runsc=runsc) as box:
        for code, memory_mb in (("x = b'x' * (230 << 20)", 900), ("import time\ntime.sleep(0.4)\nprint(42)", 32)):
            call = ExecutionCall(id="m", code=code, limits=Limits(memory_mb=memory_mb))
            reply = await box.run(call)
            await box.wait_ready()
            assert reply["status"] == "ok"


async def test_a_writable_root_is_found(state_dir: Path) -> None:
    async with open_box(state_dir, change_spec=lambda spec: spec["root"].update(readonly=False)) as box:
        with pytest.raises(NodeRefusesError, match="write-root: BREACH '/canary'"):
            await require_isolation(box)
    (canary,) = state_dir.glob("rootfs-*/canary")
    canary.write_text("sings\n")


async def test_the_network_of_the_host_is_found(state_dir: Path) -> None:
    async with open_box(state_dir, network="host") as box:
        broken = {verdict.check for verdict in await attack(box) if not verdict.is_held}
    assert "sentry" in broken


async def test_a_path_of_the_host_is_found(tmp_path: Path) -> None:
    require_runsc()

    def bind(spec: dict[str, Any]) -> None:
        spec["mounts"].append(
            {"destination": "/mnt", "type": "bind", "source": str(tmp_path), "options": ["rbind", "rw"]}
        )

    async with open_box(tmp_path, change_spec=bind) as box:  # runsc makes the folder in the root: not the others' root
        broken = {verdict.check for verdict in await attack(box) if not verdict.is_held}
    assert {"gofer", "host-files"} <= broken


async def test_a_secret_in_the_environment_is_found(state_dir: Path) -> None:
    def leak(spec: dict[str, Any]) -> None:
        spec["process"]["env"].append("API_KEY=x")

    async with open_box(state_dir, change_spec=leak) as box:
        broken = [verdict for verdict in await attack(box) if not verdict.is_held]
    assert [(verdict.check, "API_KEY" in verdict.detail) for verdict in broken] == [("secrets", True)]


async def test_a_node_that_fails_the_self_test_does_not_serve(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.gvisor._ENV", ["PATH=/usr/local/bin", "LD_LIBRARY_PATH=/usr/local/lib",
                                                "PYTHONPATH=/opt/box", "API_KEY=x"])  # fmt: skip
    with pytest.raises(NodeRefusesError, match=r"does not serve. secrets: BREACH \['API_KEY'\]"):
        async with open_node(NodeSettings(state_dir=state_dir, boxes=1, platform="ptrace")):
            pass


async def test_the_memory_limit_of_the_host_ends_the_box(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.cgroup.BASE_MB", 100)
    code = "import os\nfor i in range(4): os.fork()\nx = bytearray(60 << 20)\nimport time\ntime.sleep(5)"
    limits = Limits(memory_mb=64, processes=64)
    async with open_box(state_dir) as box:
        call = ExecutionCall(id="m", code=code, limits=limits)
        if os.geteuid() != 0 or not box._launcher.has_memory_groups:  # type: ignore[attr-defined]
            assert (await box.run(call))["status"] == "memory"  # by the fork-server alone
            return
        try:
            reply = await box.run(call)
        except BoxOutOfMemoryError:
            return
        assert reply["status"] == "memory"
