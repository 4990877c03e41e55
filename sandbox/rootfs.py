"""The one directory a box sees as its root: a copied Python, the libraries it needs, a few packages, nothing else.

A copy rather than binds of the host's /usr: no path of the host is visible, fewer mounts make cheaper forks, and
read-only holds on the host side too (root owns every file, none is writable by others). It is built once and
cached under the state directory by the versions it was made of.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import uuid
from importlib import metadata
from pathlib import Path

PACKAGES = ("numpy", "sympy", "mpmath")
PYTHON = "/usr/local/bin/python3"
GUEST_DIR = "/opt/box"
_LAYOUT = "2"  # part of the cache key: raise it when what is copied changes
_EMPTY_DIRS = ("proc", "dev", "dev/shm", "tmp", "sys", "etc", "usr/bin", "bin")
_LOADER_DIRS = ("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/")
_STDLIB_LEFT_OUT = shutil.ignore_patterns(
    "test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "pydoc_data", "distutils",
    "site-packages", "dist-packages", "config-*", "_tkinter*", "_test*", "*.opt-*.pyc", "*.a",
)  # fmt: skip
_PACKAGE_LEFT_OUT = shutil.ignore_patterns("tests", "*.pyi", "*.opt-*.pyc", "*.a", "include", "f2py")


def prepare_rootfs(state_dir: Path) -> Path:
    """The root directory for boxes of this Python, built under `state_dir` if it is not there yet."""
    root = state_dir / f"rootfs-{_key()}"
    if not root.is_dir():
        for old in state_dir.glob("rootfs-*"):
            shutil.rmtree(old)
        building = state_dir / f"rootfs-building-{uuid.uuid4().hex[:8]}"
        _build(building)
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


def _key() -> str:
    parts = [_LAYOUT, sys.version, sys.base_prefix]
    for name in PACKAGES:
        try:
            parts.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            parts.append(f"no {name}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _build(root: Path) -> None:
    for name in _EMPTY_DIRS:
        (root / name).mkdir(parents=True, exist_ok=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = root / "usr/local/lib" / version
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=_STDLIB_LEFT_OUT)
    platform_library = Path(sysconfig.get_path("platstdlib", vars={"platbase": sys.base_exec_prefix}))
    if not (library / "lib-dynload").is_dir():
        shutil.copytree(platform_library / "lib-dynload", library / "lib-dynload")
    for distribution in PACKAGES:
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


def _copy_package(distribution: str, target: Path) -> None:
    """Copy the package and the folder of libraries some wheels bring along; nothing when it is not installed."""
    try:
        home = Path(str(metadata.distribution(distribution).locate_file("")))
    except metadata.PackageNotFoundError:
        return
    for name in (distribution, f"{distribution}.libs"):
        if (home / name).is_dir():
            shutil.copytree(home / name, target / name, ignore=_PACKAGE_LEFT_OUT)


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
