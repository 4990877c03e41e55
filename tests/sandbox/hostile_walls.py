"""Hostile programs that go for the walls: files, the host, the kernel, and what the next program would find."""

import re

from tests.sandbox.hostile import ANY, Hostile, dies, fails

# ruff: noqa: E501
# fmt: off
FILES = (
    fails("huge-file", "facts 19", "with open('f', 'wb') as f:\n    while True: f.write(bytes(1 << 20))", r"OSError: \[Errno 27\]", limits={"file_mb": 3}),
    fails("full-disk", "facts 19", "for i in range(9): open(f'f{i}', 'wb').write(bytes(15 << 20))", r"OSError: \[Errno 28\]"),
    fails("full-shm", "facts 19", "for i in range(9): open(f'/dev/shm/f{i}', 'wb').write(bytes(15 << 20))", r"OSError: \[Errno 28\]"),
    Hostile("sparse-file", "snekbox's tests", "import os\nf = open('f', 'wb')\nf.seek((15 << 20) - 1)\nf.write(b'x')\nf.close()\nprint(os.stat('f').st_size)", stdout=f"{15 << 20}\n"),
    fails("sparse-file-too-long", "snekbox's tests", "open('f', 'wb').truncate(10 << 30)", r"OSError: \[Errno 27\]"),
    fails("preallocate", "fallocate", "import os\nfd = os.open('f', os.O_RDWR | os.O_CREAT)\nos.posix_fallocate(fd, 0, 1 << 40)", r"OSError: \[Errno"),
    Hostile("many-inodes", "facts 19", "import os\nfor i in range(3000): os.close(os.open(f'/tmp/f{i}', os.O_CREAT))", limits={"wall_s": 9, "cpu_s": 9}, may_taint=True),
    Hostile("deep-tree", "a path longer than PATH_MAX", "import os\nfor _ in range(1200):\n    os.mkdir('d' * 10)\n    os.chdir('d' * 10)", limits={"wall_s": 9, "cpu_s": 9}, may_taint=True),
    Hostile("deep-tree-of-short-names", "a recursive rmtree", "import os\nfor _ in range(1500):\n    os.mkdir('d')\n    os.chdir('d')", limits={"wall_s": 9, "cpu_s": 9}, may_taint=True),
    Hostile("closed-tree", "what root must be able to remove", "import os\nos.makedirs('/tmp/tree/closed/deep')\nopen('/tmp/tree/closed/f', 'w').close()\nos.chmod('/tmp/tree/closed', 0)\nos.chmod('/tmp/tree', 0)"),
    Hostile("odd-names", "names that are no text", r"open(b'/tmp/\xff\n', 'w').close(); open('/dev/shm/' + 'n' * 255, 'w').close(); open('-rf', 'w').close()"),
    Hostile("links", "Judge0's symlink escape", """
import os
for i, target in enumerate(['/etc/shadow', '/', '/dev/shm', '/proc/1/root', '..', 'loop']):
    os.symlink(target, f'/tmp/l{i}')
os.symlink('/tmp/loop', '/tmp/loop')
for i in range(4): print(os.path.islink(f'/tmp/l{i}'))
""", stdout="True\n" * 4),
    fails("work-is-a-link", "the next call's folder", "import os, shutil\nos.chdir('/')\nshutil.rmtree('/tmp/work')\nos.symlink('/dev/shm', '/tmp/work')", "PermissionError: .*'/tmp/work'"),
    fails("work-is-a-file", "the next call's folder", "import os, shutil\nos.chdir('/')\nshutil.rmtree('/tmp/work')\nopen('/tmp/work', 'w').close()", "PermissionError: .*'/tmp/work'"),
    Hostile("fifo-and-socket", "what blocks a reader", "import os, socket\nos.mkfifo('/tmp/fifo')\ns = socket.socket(socket.AF_UNIX)\ns.bind('/tmp/sock')\nos.mkfifo('/dev/shm/fifo')"),
    Hostile("rm-rf", "snekbox", "import shutil\nshutil.rmtree('/', ignore_errors=True)\nimport os\nprint(os.path.exists('/usr/local/bin/python3'), os.listdir('/tmp'))", stdout="True ['work']\n", limits={"wall_s": 20, "cpu_s": 20}),
    Hostile("upwards", "../ escapes", "import os\nprint(sorted(os.listdir('../' * 40)) == sorted(os.listdir('/')), os.path.exists('../' * 40 + 'root/.ssh'))", stdout="True False\n"),
    fails("open-files", "facts §5", "keep = [open('/dev/null') for _ in range(100)]", r"OSError: \[Errno 24\]", limits={"open_files": 16}),
    Hostile("nowhere-else-to-write", "the root is read-only", """
import os, stat
for top, names, files in os.walk('/'):
    names[:] = [n for n in names if os.path.join(top, n) not in ('/proc', '/sys', '/tmp', '/dev/shm')]
    for path in [top, *(os.path.join(top, f) for f in files)]:
        if os.access(path, os.W_OK) and not stat.S_ISCHR(os.stat(path).st_mode): print(path)
""", limits={"wall_s": 30, "cpu_s": 30}),
    Hostile("dev-full", "devices", "try: open('/dev/full', 'w').write('x' * 99999)\nexcept OSError as error: print(error.errno)", stdout="28\n"),
    Hostile("inotify", "watches die with the program", "import ctypes\nlibc = ctypes.CDLL(None)\nfd = libc.inotify_init()\nprint(fd > 2, libc.inotify_add_watch(fd, b'/tmp', 0xfff) > 0)", stdout="True True\n"),
)

ATTACKS = {
    "tcp": "import socket\nsocket.create_connection(('1.1.1.1', 80), 1)",
    "udp": "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('1.1.1.1', 53))",
    "dns": "import socket\nsocket.getaddrinfo('example.com', 80)",
    "metadata-service": "import urllib.request\nurllib.request.urlopen('http://169.254.169.254/', timeout=1)",
    "packet-socket": "import socket\nsocket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "raw-socket": "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "vsock": "import socket\nsocket.socket(40, socket.SOCK_STREAM).connect((2, 1))",
    "kill-init": "import os\nos.kill(1, 9)",
    "stop-init": "import os\nos.kill(1, 19)",
    "setuid": "import os\nos.setuid(0)",
    "setgroups": "import os\nos.setgroups([0])",
    "chroot": "import os\nos.chroot('/tmp')",
    "shadow": "open('/etc/shadow').read()",
    "shadow-by-a-link": "import os\nos.symlink('/etc/shadow', 'l')\nopen('l').read()",
    "root-home": "import os\nos.listdir('/root')",
    "init-memory": "open('/proc/1/mem', 'r+b')",
    "init-pipes": "import os\nfor n in range(3, 12): os.open(f'/proc/1/fd/{n}', os.O_WRONLY)",
    "init-limits": "import resource\nresource.prlimit(1, resource.RLIMIT_CPU, (1, 1))",
    "write-library": "open('/usr/local/lib/x', 'w')",
    "write-passwd": "open('/etc/passwd', 'a')",
    "write-sysctl": "open('/proc/sys/kernel/hostname', 'w').write('x')",
    "write-guest": "import glob\nopen(glob.glob('/opt/box/sandbox/guest/*.py')[0], 'a')",
    "device-memory": "open('/dev/mem', 'rb')",
    "lift-a-limit": "import resource\nresource.setrlimit(resource.RLIMIT_NPROC, (999, 999))",
    "real-time": "import os\nos.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(5))",
    "hostname": "import socket\nsocket.sethostname('x')",
    "clock": "import time\ntime.clock_settime(time.CLOCK_REALTIME, 0)",
    "block-device": "import os, stat\nos.mknod('/tmp/d', 0o600 | stat.S_IFBLK, os.makedev(8, 0))\nopen('/tmp/d', 'rb')",
}

SYSTEM_CALLS = {
    "ptrace-init": "ptrace(16, 1, 0, 0)",
    "mount": "mount(b'none', b'/tmp', b'tmpfs', 0, None)",
    "umount": "umount(b'/tmp')",
    "remount": "mount(None, b'/', None, 32 | 4096, None)",
    "pivot-root": "syscall(155, b'/tmp', b'/tmp')",
    "reboot": "reboot(0x1234567)",
    "swapon": "swapon(b'/tmp/x', 0)",
    "init-module": "syscall(175, b'x', 1, b'')",
    "bpf": "syscall(321, 0, 0, 0)",
    "io-uring": "syscall(425, 8, 0)",
    "userfaultfd": "syscall(323, 0)",
    "perf-event": "syscall(298, 0, 0, -1, -1, 0)",
    "open-by-handle": "syscall(304, 0, 0, 0)",
    "kexec": "syscall(246, 0, 0, 0, 0)",
    "iopl": "syscall(172, 3)",
    "acct": "acct(b'/tmp/x')",
    "setns": "setns(0, 0)",
}

WALLS = (
    Hostile("walls", "facts 20-22: what is refused with an error, each by its name", f"""
for name, code in {ATTACKS!r}.items():
    try: exec(code, {{}})
    except (OSError, ValueError): pass
    else: print(name, 'fell')
print('all tried')
""", stdout="all tried\n", limits={"wall_s": 20, "cpu_s": 20}),
    Hostile("system-calls", "facts 22: what is refused with an errno, each by its name", f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for name, call in {SYSTEM_CALLS!r}.items():
    ctypes.set_errno(0)
    if eval('libc.' + call) != -1 or ctypes.get_errno() == 0: print(name, 'fell')
print('all tried')
""", stdout="all tried\n"),
    Hostile("own-memory", "/proc/self/mem", """
import ctypes
x = ctypes.create_string_buffer(b'before')
with open('/proc/self/mem', 'r+b', 0) as mem:
    mem.seek(ctypes.addressof(x))
    try: mem.write(b'after!')
    except OSError: x.value = b'refused'
print(x.value in (b'after!', b'refused'))
""", stdout=re.compile("True|^$"), status=re.compile("ok|error"), exit_code=re.compile("0|1"), stderr=ANY),
    dies("own-code", "memory overwritten", "import ctypes\nctypes.memset(id(type(1)), 255, 4096)\nx = 0 + 1\nctypes.string_at(0)", 11, stderr=ANY),
    Hostile("no-secrets", "judge0#564", """
import os
seen = b''
for pid in (1, os.getpid()):
    for name in ('environ', 'cmdline'):
        try: seen += open(f'/proc/{pid}/{name}', 'rb').read()
        except OSError: pass
secret = b'TOKEN SECRET PASSWORD KEY ASTROLABE DATABASE REDIS'.split()
print([word for word in secret if word in seen.upper()], b'/root' in seen)
print(sorted(os.environ))
""", stdout="[] False\n['HOME', 'LANG', 'LD_LIBRARY_PATH', 'OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'PATH', 'TMPDIR', 'TZ']\n"),
    Hostile("user-namespace", "facts §5: the remount hole", """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x10000000 | 0x20000) == 0:  # CLONE_NEWUSER, CLONE_NEWNS
    libc.mount(None, b'/', None, 32 | 4096, None)
    libc.mount(None, b'/usr', None, 32, None)
written = []
for path in ('/usr/local/lib/x', '/etc/passwd', '/opt/box/x', '/x'):
    try: open(path, 'a').close(); written.append(path)
    except OSError: pass
print(written, os.path.exists('/root/.ssh'))
""", stdout="[] False\n"),
    Hostile("mount-in-a-namespace", "a mount over the next call's folders", """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x10000000 | 0x20000) == 0:
    libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)
    libc.mount(b'none', b'/dev/shm', b'tmpfs', 0, None)
try: open('/tmp/x', 'w').write('x')
except OSError: pass
"""),
    Hostile("loopback-works", "its own network is its own", """
import socket
server = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(server.getsockname())
server.accept()[0].sendall(b'hello')
print(client.recv(5))
""", stdout="b'hello'\n"),
)

LEAVINGS = (
    Hostile("files", "facts 30", "for name in ('leak', '/tmp/leak', '/dev/shm/leak'): open(name, 'w').write('x')"),
    Hostile("globals", "facts 30", "import builtins, math, os, sys, random, decimal\nbuiltins.leak = math.leak = sys.leak = 1\nmath.pi = 3\nos.environ['LEAK'] = '1'\nrandom.random = lambda: 4\ndecimal.getcontext().prec = 2\nsys.path.append('/leak')\nsys.setrecursionlimit(99)"),
    Hostile("process-state", "what a child could hand up", "import os, signal, resource\nos.umask(0)\nos.nice(5)\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nsignal.pthread_sigmask(signal.SIG_BLOCK, [10])\nos.sched_setaffinity(0, [0])\nresource.setrlimit(resource.RLIMIT_NOFILE, (8, 8));"),
    Hostile("sysv-shared-memory", "facts §9.17: it outlives its maker", """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
print(libc.shmget(4711, 4096, 0))
shm = libc.shmget(4711, 4096, 0o1666)
if shm >= 0: ctypes.memmove(libc.shmat(shm, None, 0), b'leak', 4)
""", stdout="-1\n", may_taint=True),
    Hostile("sysv-semaphore", "facts §9.17", "import ctypes\nlibc = ctypes.CDLL(None)\nprint(libc.semget(4711, 1, 0))\nlibc.semget(4711, 1, 0o1666);", stdout="-1\n", may_taint=True),
    Hostile("sysv-message-queue", "facts §9.17", "import ctypes\nlibc = ctypes.CDLL(None)\nprint(libc.msgget(4711, 0))\nq = libc.msgget(4711, 0o1666)\nif q >= 0: libc.msgsnd(q, b'\\1' + bytes(15), 8, 0);", stdout="-1\n", may_taint=True),
    Hostile("posix-message-queue", "facts §9.17", "import ctypes\nlibc = ctypes.CDLL(None)\nprint(libc.syscall(240, b'leak', 0, 0, None))\nlibc.syscall(240, b'leak', 0o102, 0o666, None);", stdout="-1\n", may_taint=True),
    Hostile("key", "the kernel's keyring", "import ctypes\nlibc = ctypes.CDLL(None)\nprint(libc.syscall(249, b'user', b'leak', None, -4) >= 0)\nlibc.syscall(248, b'user', b'leak', b'x', 1, -4);", stdout="False\n", may_taint=True),
    Hostile("abstract-socket", "it dies with its maker", "import socket\ns = socket.socket(socket.AF_UNIX)\ns.bind('\\0leak')\ns.listen()"),
    Hostile("posix-shared-memory", "/dev/shm", "from multiprocessing import shared_memory\ns = shared_memory.SharedMemory('leak', create=True, size=99)\nprint(s.size >= 99)", stdout="True\n", stderr=ANY),
    Hostile("port", "a listener left behind", "import os, socket, time\ns = socket.create_server(('127.0.0.1', 4711))\nif os.fork() == 0: time.sleep(99)"),
)
