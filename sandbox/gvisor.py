"""runsc: found, asked what it can do, started, killed, checkpointed. The only file that calls it."""

import contextlib
import functools
import hashlib
import itertools
import json
import operator
import os
import re
import shutil
import signal
import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox import freed_memory
from sandbox.cgroup import MemoryGroups, join
from sandbox.launcher import Launched, NodeRefusesError, memory_mb_of, spawn, threads_of, wait_dead
from sandbox.rootfs import GUEST_DIR, PYTHON, guest_digest
from sandbox.tiers import Tier

# What the fork-server needs to drop to the box uid, to kill it and to clean up after it. The program keeps none.
CAPABILITIES = ["CAP_KILL", "CAP_SETUID", "CAP_SETGID", "CAP_DAC_OVERRIDE", "CAP_FOWNER"]
# Objects of the first three lines outlive their maker and would be seen by the next call; nothing lists them. The rest
# leads to the mounts (facts §5) or into other processes. clone with new namespaces stays: without mount it is harmless.
REFUSED_SYSTEM_CALLS = [
    "shmget", "semget", "msgget",
    "mq_open",
    "add_key", "request_key", "keyctl",
    "unshare", "setns", "mount", "umount2", "pivot_root", "ptrace",
]  # fmt: skip
TMP_MB = 64
SENTRY_EXIT_S = 2.0
CHECKPOINT_S = 20.0
_ENV = [
    "PATH=/usr/local/bin:/usr/bin:/bin",
    "LANG=C.UTF-8",
    "HOME=/tmp",
    f"PYTHONPATH={GUEST_DIR}",
    "LD_LIBRARY_PATH=/usr/local/lib",
    "PYTHONDONTWRITEBYTECODE=1",
    "OPENBLAS_NUM_THREADS=1",
    "OMP_NUM_THREADS=1",
    "MALLOC_ARENA_MAX=1",
    # One heap that grows in large steps and keeps what it has (sandbox/guest/heap.py).
    "MALLOC_TOP_PAD_=16777216",
    "MALLOC_TRIM_THRESHOLD_=67108864",
    "MALLOC_MMAP_THRESHOLD_=33554432",
    "LD_BIND_NOW=1",  # else every child looks up anew what it calls first
    "PYTHONHASHSEED=0",  # the same program prints its sets in the same order in every box
]


@dataclass(frozen=True)
class Runsc:
    """The binary and what it says about itself."""

    path: str
    version: str
    flags: frozenset[str]
    platforms: tuple[str, ...]


def find_runsc(wanted: str = "") -> Runsc | None:
    """The runsc asked for (a path), else the one on PATH; None when there is none."""
    path = shutil.which(wanted or "runsc")
    if path is None:
        return None
    version = re.search(r"version \S*?(\d{8})", _ask(path, "--version"))
    flags = frozenset(re.findall(r"^\s+-([\w-]+)", _ask(path, "flags"), flags=re.MULTILINE))
    listed = re.findall(r"^\W*(kvm|ptrace|systrap)\b", _ask(path, "help", "platforms"), flags=re.MULTILINE)
    return Runsc(path, version[1] if version else "unknown", flags, tuple(dict.fromkeys(listed)))


def _ask(path: str, *arguments: str) -> str:
    try:
        done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def candidate_platforms(runsc: Runsc, wanted: str = "") -> list[str]:
    """The platforms worth a timed trial here: the one asked for, or all but a kvm that this machine cannot do."""
    if wanted:
        if runsc.platforms and wanted not in runsc.platforms:
            have = ", ".join(runsc.platforms)
            raise NodeRefusesError(f"SANDBOX_PLATFORM={wanted}: this runsc ({runsc.version}) has {have}")
        return [wanted]
    names = [name for name in ("ptrace", "systrap", "kvm") if name in runsc.platforms or not runsc.platforms]
    return [name for name in names if name != "kvm" or _has_kvm()]


def _has_kvm() -> bool:
    """A kvm device without the CPU's help hangs: there is one in many virtual machines."""
    is_x86 = os.uname().machine == "x86_64"
    cpu = Path("/proc/cpuinfo").read_text() if is_x86 else "vmx"
    return os.access("/dev/kvm", os.R_OK | os.W_OK) and re.search(r"\b(vmx|svm)\b", cpu) is not None


def bundle_spec(rootfs: Path, tier: Tier) -> dict[str, Any]:
    """The OCI configuration of a box: read-only root, two tmpfs, no network, next to no capability."""
    tmpfs = ["nosuid", "nodev", "mode=1777", f"size={TMP_MB}m"]
    argv = [PYTHON, "-B", "-s", "-m", "sandbox.guest.box", tier.value, "box", "/tmp/work"]  # noqa: S108
    sets = ("bounding", "effective", "permitted")
    return {
        "ociVersion": "1.0.0",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": argv,
            "cwd": "/",
            "env": _ENV,
            "capabilities": dict.fromkeys(sets, CAPABILITIES),
            "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}],
            "noNewPrivileges": True,
        },
        "root": {"path": str(rootfs), "readonly": True},
        "hostname": "box",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
            {"destination": "/dev/shm", "type": "tmpfs", "source": "tmpfs", "options": tmpfs},  # noqa: S108
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": tmpfs},  # noqa: S108
        ],
        "linux": {
            "namespaces": [{"type": name} for name in ("pid", "network", "ipc", "uts", "mount")],
            "seccomp": _system_call_filter(),
        },
    }


def _system_call_filter() -> dict[str, Any]:
    """Everything is gVisor's to answer but REFUSED_SYSTEM_CALLS, which end with EPERM."""
    refused = {"names": REFUSED_SYSTEM_CALLS, "action": "SCMP_ACT_ERRNO"}
    return {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [refused]}


class GvisorLauncher:
    """Boxes of one runsc on one platform, their state and their images under `state_dir`."""

    is_isolated = True

    def __init__(self, runsc: Runsc, platform: str, *, rootfs: Path, state_dir: Path) -> None:
        self.isolation = f"gvisor/{platform} {runsc.version}"
        self.platform = platform
        self._runsc = runsc
        self._is_pinned = platform == "ptrace"  # systrap spins on another core meanwhile
        self._cpus = itertools.cycle(sorted(os.sched_getaffinity(0)))
        self._state_dir = state_dir
        self._root = state_dir / "runsc"
        self._logs = state_dir / "logs"
        for folder in (self._root, self._logs):
            folder.mkdir(parents=True, exist_ok=True)
        self._groups = MemoryGroups.make(uuid.uuid5(uuid.NAMESPACE_URL, str(state_dir)).hex[:12])
        specs = {tier: json.dumps(bundle_spec(rootfs, tier), indent=1) for tier in Tier}
        spec_digest = hashlib.sha256("".join(specs.values()).encode()).hexdigest()[:8]
        made_of = (runsc.version, platform, rootfs.name, guest_digest(), spec_digest, _machine())
        self._images = state_dir / "images" / "-".join(made_of)
        for tier, spec in specs.items():
            bundle = self._bundle(tier)
            bundle.mkdir(parents=True, exist_ok=True)
            (bundle / "config.json").write_text(spec)

    def _bundle(self, tier: Tier) -> Path:
        return self._state_dir / "bundles" / tier.value

    def _image(self, tier: Tier) -> Path:
        return self._images / tier.value

    def _base_argv(self) -> list[str]:
        argv = [self._runsc.path, f"--root={self._root}", f"--platform={self.platform}", "--network=none"]
        argv += ["--ignore-cgroups", "--oci-seccomp"]
        if "directfs" in self._runsc.flags:
            # With directfs a program without privileges can remount and write the host's files (facts §5).
            argv.append("--directfs=false")
        if os.geteuid() != 0:
            argv.append("--rootless")
        return argv

    async def start(self, tier: Tier, *, cold: bool = False) -> Launched:
        """Restore from the tier's image when there is one, else run from cold."""
        box_id = f"box-{uuid.uuid4().hex[:10]}"
        is_restored = not cold and self._image(tier).is_dir()
        command = ["restore", f"--image-path={self._image(tier)}"] if is_restored else ["run"]
        argv = [*self._base_argv(), *command, f"--bundle={self._bundle(tier)}", box_id]
        log_path = self._logs / f"{box_id}.log"
        env = {"PATH": os.environ.get("PATH", "/usr/bin:/bin")}
        before_exec = [freed_memory.keep]
        cpu = None
        if self._groups:
            before_exec.append(functools.partial(join, self._groups.add(box_id)))
        elif self._is_pinned:
            cpu = next(self._cpus)  # for good: its threads are not known
            before_exec.append(functools.partial(os.sched_setaffinity, 0, {cpu}))
        process = await spawn(argv, log_path=log_path, env=env, before_exec=before_exec)
        return Launched(box_id, tier, process, is_restored, log_path, cpu)

    async def kill(self, launched: Launched) -> None:
        """SIGKILL to the sentry: quick and sure; the runsc in front of it then ends and tidies up by itself."""
        pid = self._sentry_pid(launched.box_id)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if pid is None or not await wait_dead(launched.process, SENTRY_EXIT_S):
            with contextlib.suppress(ProcessLookupError):
                launched.process.kill()
            await wait_dead(launched.process, SENTRY_EXIT_S)
        self._forget(launched)

    def _forget(self, launched: Launched) -> None:
        if self._groups:
            self._groups.remove_dead()
        for path in self._root.glob(f"*{launched.box_id}*"):
            path.unlink(missing_ok=True)
        launched.log_path.unlink(missing_ok=True)

    def _sentry_pid(self, box_id: str) -> int | None:
        return self._pid(box_id, box_id, "sandbox", "pid")

    def _gofer_pid(self, box_id: str) -> int | None:
        return self._pid(box_id, str(self._root), "goferPid")

    def _pid(self, box_id: str, mark: str, *keys: str) -> int | None:
        """A process of the box as runsc recorded it, if `mark` in its command line says that the pid is still it."""
        for path in self._root.glob(f"*{box_id}*.state"):
            try:
                pid = int(functools.reduce(operator.getitem, keys, json.loads(path.read_text())))
                if mark.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
            except (OSError, ValueError, KeyError, TypeError):
                continue
        return None

    def helpers(self, launched: Launched) -> list[int]:
        """The gofer, which serves the box its root: without it an import fails, and the program would be blamed."""
        found: list[int] = []
        for path in Path(f"/proc/{launched.process.pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                children = path.read_text().split()
                found += [int(pid) for pid in children if _command(int(pid)).startswith(b"runsc-gofer")]
        if not found and (gofer := self._gofer_pid(launched.box_id)) is not None:
            found.append(gofer)  # a list of children may miss one while another ends
        return found

    def load(self, launched: Launched) -> int:
        """Threads of the sentry."""
        pid = self._sentry_pid(launched.box_id)
        return threads_of(pid) if pid is not None else 0

    def move(self, launched: Launched, cpu: int) -> bool:
        """Pin the threads of the box."""
        if not self._is_pinned or not self._groups:
            return False
        self._groups.pin(launched.box_id, cpu)
        return True

    def memory_mb(self, launched: Launched) -> int:
        """What its memory group is charged, else what the sentry maps, which follows a moment later."""
        if self._groups:
            return self._groups.usage_mb(launched.box_id)
        pid = self._sentry_pid(launched.box_id)
        return memory_mb_of(pid) if pid is not None else 0

    @property
    def has_memory_groups(self) -> bool:
        """True where the host lets the node limit its boxes' memory."""
        return self._groups is not None

    def allow_memory(self, launched: Launched, memory_mb: int) -> None:
        """Set the limit of the box's memory group."""
        if self._groups:
            self._groups.allow(launched.box_id, memory_mb)

    def oom_kills(self, launched: Launched) -> int:
        """As the box's memory group counts them."""
        return self._groups.oom_kills(launched.box_id) if self._groups else 0

    def inspect(self, launched: Launched) -> dict[str, str]:
        """The sentry must be nobody in namespaces of its own, behind seccomp; the gofer must see the root read-only."""
        sentry, gofer = self._sentry_pid(launched.box_id), self._gofer_pid(launched.box_id)
        if sentry is None or gofer is None:
            return {"sentry": "its processes were not found", "gofer": "its processes were not found"}
        return {"sentry": _sentry_fault(sentry), "gofer": _gofer_fault(gofer)}

    def close(self) -> None:
        """Remove the memory groups."""
        if self._groups:
            self._groups.close()

    async def save_image(self, launched: Launched) -> bool:
        """`runsc checkpoint`, then publish by rename. The image is good for this machine and this runsc only."""
        image = self._image(launched.tier)
        building = image.with_name(f"building-{launched.box_id}")
        building.mkdir(parents=True, exist_ok=True)
        argv = [*self._base_argv(), "checkpoint", f"--image-path={building}", launched.box_id]
        process = await spawn(argv, log_path=launched.log_path, env=dict(os.environ))
        is_done = await wait_dead(process, CHECKPOINT_S)
        if not is_done:
            process.kill()
        await self.kill(launched)
        if not is_done or process.returncode != 0 or image.exists():
            shutil.rmtree(building, ignore_errors=True)
            return False
        for stale in self._images.parent.iterdir():
            if stale != self._images:
                shutil.rmtree(stale, ignore_errors=True)
        building.rename(image)
        return True

    def wants_image(self, tier: Tier) -> bool:
        """False when there is one, or when one was made before and did not restore."""
        return not self._image(tier).exists() and not self._useless_mark(tier).exists()

    def forget_image(self, tier: Tier) -> None:
        """Remove the image of the tier and remember that images of this kind do not restore here."""
        shutil.rmtree(self._image(tier), ignore_errors=True)
        self._useless_mark(tier).touch()

    def _useless_mark(self, tier: Tier) -> Path:
        return self._images / f"{tier.value}-does-not-restore"


def _sentry_fault(pid: int) -> str:
    """What is wrong with the rights of a sentry, or ""."""
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    if status["Uid"].split()[0] == "0":
        return "it runs as root"
    if status.get("Seccomp") != "2":
        return "it has no seccomp filter"
    shared = [name for name in ("user", "net", "mnt", "ipc") if _namespace(pid, name) == _namespace("self", name)]
    return f"it shares namespaces with the host: {', '.join(shared)}" if shared else ""


def _gofer_fault(pid: int) -> str:
    """What is wrong with the root that a gofer serves, or ""."""
    mounts = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
    writable = [fields[4] for fields in mounts if "rw" in fields[5].split(",") and fields[4] != "/proc"]
    return f"it sees writable mounts: {', '.join(writable)}" if writable else ""


def _namespace(pid: int | str, name: str) -> str:
    return os.readlink(f"/proc/{pid}/ns/{name}")


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def sweep_stale(state_dir: Path) -> int:
    """Kill boxes that an earlier node of this state directory left running, remove their state. How many died."""
    root = state_dir / "runsc"
    killed = 0
    for path in root.glob("*.state"):
        try:
            pid = int(json.loads(path.read_text())["sandbox"]["pid"])
            if str(root).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
                killed += 1
        except (OSError, ValueError, KeyError, TypeError):
            continue
    for folder in (root, state_dir / "logs", *state_dir.glob("images/*/building-*")):
        shutil.rmtree(folder, ignore_errors=True)
    return killed


def _machine() -> str:
    """An image restores only where the CPU features are those it was made with, and not across a reboot."""
    flags = re.search(r"^(?:flags|Features)\s*:.*$", Path("/proc/cpuinfo").read_text(), flags=re.MULTILINE)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return uuid.uuid5(uuid.NAMESPACE_OID, f"{flags[0] if flags else ''} {boot}").hex[:8]
