# ruff: noqa: T201, SIM115, S108 - the text of a program, not a module
# Attacks the box it runs in, as the user of an untrusted program would. Prints one line a check: "NAME ok" or
# "NAME BREACH what". It runs as the text of a call, so it imports nothing of ours. The last check kills all it can.
import ctypes
import os
import socket
import sys

libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, CLONE_NEWUSER, MS_REMOUNT, MS_BIND = 0x20000, 0x10000000, 0x20, 0x1000
PTRACE_ATTACH = 16


def check(name, attack):
    """A breach is an attack that returns something."""
    try:
        found = attack()
    except (OSError, ValueError):
        found = None
    print(name, f"BREACH {found!r}" if found else "ok", flush=True)


def identity():
    status = dict(line.split(":\t", 1) for line in open("/proc/self/status") if ":\t" in line)
    if os.getuid() == 0 or int(status["CapEff"], 16) or int(status["CapPrm"], 16):
        return f"uid {os.getuid()} caps {status['CapEff']}"


def become_root():
    os.setuid(0)
    return "setuid(0)"


def write_root():
    for path in ("/canary", "/escape", os.__file__, "/etc/passwd", "/opt/box/sandbox/escape"):
        try:
            with open(path, "a") as file:
                file.write("# escaped\n")
            return path
        except OSError:
            pass


def remount():
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0:
        for target in (b"/", b"/usr", b"/opt/box"):
            libc.mount(b"none", target, None, MS_REMOUNT | MS_BIND, None)
            libc.mount(b"none", target, None, MS_REMOUNT, None)
        return write_root()


def in_child(attack):
    """Run `attack` in a child, because it may change what the process is; its finding comes by a pipe."""

    def run():
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.write(writer, str(attack() or "").encode())
            finally:
                os._exit(0)
        os.close(writer)
        found = os.read(reader, 1000).decode()
        os.close(reader)
        os.waitpid(pid, 0)
        return found

    return run


def init_memory():
    with open("/proc/1/mem", "r+b") as file:
        return f"opened {file.name}"


def init_pipes():
    for name in os.listdir("/proc/1/fd"):
        for mode in (os.O_WRONLY, os.O_RDONLY):
            try:
                os.close(os.open(f"/proc/1/fd/{name}", mode | os.O_NONBLOCK))
            except OSError:
                continue
            target = os.readlink(f"/proc/1/fd/{name}")
            if target != "/dev/null" and not target.startswith("/proc/"):  # there it reads what all may read
                return f"/proc/1/fd/{name} {target}"


def own_fds():
    extra = []
    for fd in range(3, 64):
        try:
            os.fstat(fd)
            extra.append(fd)
        except OSError:
            pass
    return extra


def kill_init():
    os.kill(1, 9)
    return "kill(1)"


def trace_init():
    return libc.ptrace(PTRACE_ATTACH, 1, 0, 0) == 0 and "ptrace(1)"


def network():
    for family, kind, target in (
        (socket.AF_INET, socket.SOCK_STREAM, ("1.1.1.1", 53)),
        (socket.AF_INET, socket.SOCK_STREAM, ("169.254.169.254", 80)),
        (socket.AF_INET, socket.SOCK_DGRAM, ("8.8.8.8", 53)),
    ):
        try:
            with socket.socket(family, kind) as sock:
                sock.settimeout(1)
                sock.connect(target)
                sock.send(b"x")
            return target
        except OSError:
            pass


def raw_sockets():
    for family, kind in ((socket.AF_INET, socket.SOCK_RAW), (socket.AF_PACKET, socket.SOCK_RAW)):
        try:
            socket.socket(family, kind, 255).close()
            return family
        except OSError:
            pass


def host_files():
    paths = ["/root", "/home", "/etc/shadow", "/etc/hostname", "/var", "/mnt", "/run", "/boot", "/sys/fs/cgroup/cpu"]
    return [path for path in paths if os.path.exists(path)]


def devices():
    expected = {"fd", "stdin", "stdout", "stderr", "ptmx", "shm", "pts", "null", "zero", "full", "random", "urandom"}
    expected |= {"tty", "net", "fuse"}
    found = sorted(set(os.listdir("/dev")) - expected)
    for kind, major, minor in ((0o60000, 8, 0), (0o20000, 1, 1), (0o20000, 10, 232)):  # first disk, mem, kvm
        path = f"/tmp/device-{major}-{minor}"
        try:
            os.mknod(path, kind | 0o600, os.makedev(major, minor))
            os.close(os.open(path, os.O_RDONLY))
            found.append(path)
        except OSError:
            pass
    return found


def secrets():
    allowed = {"PATH", "LANG", "HOME", "PYTHONPATH", "LD_LIBRARY_PATH", "LD_BIND_NOW", "PYTHONDONTWRITEBYTECODE"}
    allowed |= {"OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MALLOC_ARENA_MAX", "PYTHONHASHSEED", "TZ", "TMPDIR"}
    allowed |= {"MALLOC_TOP_PAD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"}
    with open("/proc/1/environ", "rb") as file:
        names = {item.split(b"=")[0].decode() for item in file.read().split(b"\0") if item}
    return sorted((names | set(os.environ)) - allowed)


for name, attack in {
    "identity": identity,
    "become-root": become_root,
    "write-root": write_root,
    "remount": in_child(remount),
    "init-memory": init_memory,
    "init-pipes": init_pipes,
    "own-fds": own_fds,
    "kill-init": kill_init,
    "trace-init": in_child(trace_init),
    "network": network,
    "raw-sockets": raw_sockets,
    "host-files": host_files,
    "devices": devices,
    "secrets": secrets,
}.items():
    check(name, attack)
sys.stdout.flush()
os.kill(-1, 9)
