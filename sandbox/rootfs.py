"""The one directory a box sees as its root: a copied Python, the libraries it needs, a few packages, nothing else.

A copy rather than binds of the host's /usr: no path of the host is visible, fewer mounts make cheaper forks, and
read-only holds on the host side too (root owns every file, none is writable by others). It is built once and
cached under the state directory by the versions it was made of.
"""

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import uuid
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PYTHON = "/usr/local/bin/python3"
GUEST_DIR = "/opt/box"
CANARY = "/canary"
_LAYOUT = "4"  # part of the cache key: raise it when what is copied changes
_EMPTY_DIRS = ("proc", "dev", "dev/shm", "tmp", "sys", "etc", "usr/bin", "bin")
_LOADER_DIRS = ("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/")
_STDLIB_LEFT_OUT = shutil.ignore_patterns(
    "test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "pydoc_data", "distutils",
    "site-packages", "dist-packages", "config-*", "_tkinter*", "_test*", "*.opt-*.pyc", "*.a",
)  # fmt: skip
_PACKAGE_LEFT_OUT = shutil.ignore_patterns("tests", "*.pyi", "*.opt-*.pyc", "*.a", "include", "f2py")


def prepare_rootfs(state_dir: Path, packages: Iterable[str] = ("numpy", "sympy", "mpmath")) -> Path:
    """The root directory for boxes of this Python, built under `state_dir` if it is not there yet.

    It holds `packages` and what they require, as far as they are installed here.
    """
    distributions = _with_requirements(packages)
    root = state_dir / f"rootfs-{_key(distributions)}"
    if not root.is_dir():
        for old in state_dir.glob("rootfs-*"):
            shutil.rmtree(old)
        building = state_dir / f"rootfs-building-{uuid.uuid4().hex[:8]}"
        _build(building, distributions)
        building.rename(root)
    _install_guest(root)
    return root


def guest_digest() -> str:
    """Changes with every file that runs inside a box."""
    digest = hashlib.sha256()
    for path in sorted(_guest_source().glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _guest_source() -> Path:
    return Path(__file__).parent / "guest"


def _with_requirements(packages: Iterable[str]) -> list[metadata.Distribution]:
    """The installed ones among `packages` and, in turn, what each needs at run time."""
    found: dict[str, metadata.Distribution] = {}
    todo = list(packages)
    while todo:
        name = canonicalize_name(todo.pop())
        with contextlib.suppress(metadata.PackageNotFoundError):
            if name not in found:
                found[name] = metadata.distribution(name)
                needs = [Requirement(text) for text in found[name].requires or ()]
                todo += [need.name for need in needs if not need.marker or need.marker.evaluate({"extra": ""})]
    return [found[name] for name in sorted(found)]


def _key(distributions: Sequence[metadata.Distribution]) -> str:
    parts = [_LAYOUT, sys.version, sys.base_prefix]
    parts += [f"{distribution.name} {distribution.version}" for distribution in distributions]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _build(root: Path, distributions: Sequence[metadata.Distribution]) -> None:
    for name in _EMPTY_DIRS:
        (root / name).mkdir(parents=True, exist_ok=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = root / "usr/local/lib" / version
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=_STDLIB_LEFT_OUT)
    platform_library = Path(sysconfig.get_path("platstdlib", vars={"platbase": sys.base_exec_prefix}))
    if not (library / "lib-dynload").is_dir():
        shutil.copytree(platform_library / "lib-dynload", library / "lib-dynload")
    for distribution in distributions:
        _copy_package(distribution, library / "site-packages")
    binary = Path(sys.executable).resolve()
    target = root / PYTHON.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(binary, target)
    (target.parent / version).symlink_to(target.name)
    _copy_shared_libraries([binary, *library.rglob("*.so")], root)
    _copy_time_zones(root)
    (root / "etc/passwd").write_text("root:x:0:0:root:/tmp:/bin/false\nbox:x:10000:10000::/tmp:/bin/false\n")
    (root / "etc/group").write_text("root:x:0:\nbox:x:10000:\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    _close_permissions(root)
    # The one file that every user may write by its mode: only that the root is read-only keeps it whole, and the
    # self-test of each node tries.
    (root / CANARY.lstrip("/")).write_text("sings\n")
    (root / CANARY.lstrip("/")).chmod(0o666)


def _copy_package(distribution: metadata.Distribution, target: Path) -> None:
    """Copy the top-level packages and modules it brought, and the folder of libraries some wheels come with."""
    home = Path(str(distribution.locate_file("")))
    tops = {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}
    for name in sorted(top for top in tops if not top.endswith((".dist-info", ".pth"))):
        if (home / name).is_dir():
            shutil.copytree(home / name, target / name, ignore=_PACKAGE_LEFT_OUT, dirs_exist_ok=True)
        elif name.endswith((".py", ".so")):
            shutil.copy2(home / name, target / name)


def _copy_shared_libraries(objects: list[Path], root: Path) -> None:
    """Copy what the loader resolves for `objects`: system paths stay, all others move to /usr/local/lib."""
    listing = subprocess.run(["ldd", *map(str, objects)], capture_output=True, text=True, check=False).stdout
    found = set(re.findall(r"(?:=> |^\s)(/\S+) \(0x", listing, flags=re.MULTILINE))
    for name in sorted(found):
        source = Path(os.path.normpath(name))
        if str(source).startswith(str(root)) or ".libs" in source.parent.name:
            continue
        is_system = str(source).startswith(_LOADER_DIRS)
        target = root / str(source).lstrip("/") if is_system else root / "usr/local/lib" / source.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)


def _copy_time_zones(root: Path) -> None:
    source = Path("/usr/share/zoneinfo")
    if source.is_dir():
        ignore = shutil.ignore_patterns("posix", "right")
        shutil.copytree(source, root / "usr/share/zoneinfo", symlinks=True, ignore=ignore)


def _install_guest(root: Path) -> None:
    """Put the fork-server in place; it changes more often than the Python beside it."""
    target = root / GUEST_DIR.lstrip("/") / "sandbox"
    if (target / "digest").is_file() and (target / "digest").read_text() == guest_digest():
        return
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(_guest_source(), target / "guest", ignore=shutil.ignore_patterns("__pycache__"))
    (target / "__init__.py").write_text("")
    (target / "digest").write_text(guest_digest())
    _close_permissions(root / GUEST_DIR.lstrip("/"))


def _close_permissions(root: Path) -> None:
    """Readable by all, writable by the owner only, no set-id bits."""
    for folder, names, files in os.walk(root):
        for name in (*names, *files):
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                mode = os.stat(path).st_mode
                os.chmod(path, (mode & 0o755) | (0o555 if os.path.isdir(path) else 0o444))
    root.chmod(0o755)
