"""When a node must not serve, and the one sentence it says then."""

import socket
from pathlib import Path

import pytest

from sandbox import node as node_module
from sandbox.gvisor import GvisorLauncher, Runsc, bundle_spec, candidate_platforms, sweep_stale
from sandbox.launcher import NodeRefusesError
from sandbox.node import choose_launcher, open_node
from sandbox.plain import PlainLauncher
from sandbox.selftest import CHECKS
from sandbox.settings import NodeSettings, read_settings
from sandbox.tiers import Tier

OLD = Runsc("/bin/false", "20221219", frozenset({"network"}), ("ptrace", "kvm"))
NEW = Runsc("/bin/false", "20240729", frozenset({"network", "directfs"}), ("systrap", "ptrace", "kvm"))


@pytest.fixture
def no_runsc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_module, "find_runsc", lambda *_: None)


async def test_without_runsc_it_refuses_and_says_what_to_do(tmp_path: Path, no_runsc: None) -> None:
    with pytest.raises(NodeRefusesError, match="apt-get install runsc"):
        await choose_launcher(NodeSettings(state_dir=tmp_path))


async def test_without_runsc_the_owner_may_allow_it(tmp_path: Path, no_runsc: None) -> None:
    launcher = await choose_launcher(NodeSettings(state_dir=tmp_path, allow_unisolated=True))
    assert isinstance(launcher, PlainLauncher) and not launcher.is_isolated


async def test_two_nodes_do_not_share_a_state_directory(tmp_path: Path, no_runsc: None) -> None:
    settings = NodeSettings(state_dir=tmp_path, allow_unisolated=True, boxes=1)
    async with open_node(settings):
        with pytest.raises(NodeRefusesError, match="another sandbox node uses"):
            async with open_node(settings):
                pytest.fail("two nodes")


def test_a_taken_port_is_one_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = NodeSettings(port=taken.getsockname()[1])
        with pytest.raises(NodeRefusesError, match="cannot listen on 127.0.0.1"), node_module._listen(settings):
            pytest.fail("listening twice")


def test_settings_come_from_the_environment(tmp_path: Path) -> None:
    environ = {"SANDBOX_PLATFORM": "ptrace", "SANDBOX_STATE_DIR": str(tmp_path), "SANDBOX_ALLOW_UNISOLATED": "1"}
    settings = read_settings(environ, host="127.0.0.1", port=1, boxes=2, state_dir=None)
    assert (settings.platform, settings.state_dir, settings.allow_unisolated) == ("ptrace", tmp_path, True)
    assert not read_settings(
        {"SANDBOX_ALLOW_UNISOLATED": "yes"}, host="", port=1, boxes=2, state_dir=tmp_path
    ).allow_unisolated


@pytest.mark.parametrize("boxes", [-1, 5000])
def test_a_senseless_number_of_boxes_is_refused(boxes: int) -> None:
    with pytest.raises(NodeRefusesError, match="--boxes"):
        read_settings({}, host="", port=1, boxes=boxes, state_dir=None)


def test_a_platform_this_runsc_has_not_is_refused() -> None:
    with pytest.raises(NodeRefusesError, match="this runsc .* has ptrace, kvm"):
        candidate_platforms(OLD, "systrap")
    assert candidate_platforms(NEW, "systrap") == ["systrap"]


def test_directfs_is_off_where_it_exists(tmp_path: Path) -> None:
    for runsc, is_off in ((OLD, False), (NEW, True)):
        launcher = GvisorLauncher(runsc, "ptrace", rootfs=tmp_path / "rootfs-x", state_dir=tmp_path)
        argv = launcher._base_argv()
        assert ("--directfs=false" in argv) is is_off
        assert "--network=none" in argv


def test_the_bundle_holds_what_isolation_needs(tmp_path: Path) -> None:
    spec = bundle_spec(tmp_path, Tier.LIGHT)
    assert spec["root"]["readonly"] is True
    assert spec["process"]["noNewPrivileges"] is True
    assert all("SYS_ADMIN" not in name for names in spec["process"]["capabilities"].values() for name in names)
    assert all(mount["type"] in ("proc", "tmpfs") for mount in spec["mounts"])


def test_sweep_spares_pids_that_are_no_box_of_ours(tmp_path: Path) -> None:
    root = tmp_path / "runsc"
    root.mkdir()
    (root / "a.state").write_text('{"sandbox": {"pid": 1}}')
    (root / "b.state").write_text("not json")
    assert sweep_stale(tmp_path) == 0
    assert not root.exists()


def test_every_check_of_the_probe_is_required() -> None:
    probe = (Path(node_module.__file__).parent / "escape_probe.py").read_text()
    assert all(f'"{check}":' in probe for check in CHECKS)
