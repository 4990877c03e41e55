"""A node from start to stop: lock, sweep, root, platform, boxes, self-test, service."""

import asyncio
import fcntl
import logging
import shutil
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from sandbox.access import TokenGuard
from sandbox.box import Box, BoxError
from sandbox.gvisor import GvisorLauncher, Runsc, candidate_platforms, find_runsc, sweep_stale
from sandbox.launcher import Launcher, NodeRefusesError
from sandbox.plain import PlainLauncher
from sandbox.platforms import cheapest, try_all
from sandbox.pool import Pool
from sandbox.rootfs import prepare_rootfs
from sandbox.selftest import require_isolation
from sandbox.service import build_app
from sandbox.settings import NodeSettings
from sandbox.tiers import packages_of

log = logging.getLogger("sandbox.node")

NO_RUNSC = (
    "runsc (gVisor) is not installed, so untrusted code cannot be contained; install it (Debian, Ubuntu: "
    "apt-get install runsc) or set SANDBOX_ALLOW_UNISOLATED=1 to run every program with your own rights"
)


async def serve(settings: NodeSettings) -> None:
    """Run a node until SIGINT or SIGTERM; raises NodeRefusesError when it must not serve."""
    loop = asyncio.get_running_loop()
    serving = asyncio.create_task(_serve(settings))
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, serving.cancel)
    try:
        await serving
    except asyncio.CancelledError:
        log.info("sandbox node stopped")


async def _serve(settings: NodeSettings) -> None:
    with _listen(settings) as listener:
        async with open_node(settings) as pool:
            app: ASGIApp = build_app(pool, judge_profile=settings.judge_profile)
            if settings.token:
                app = TokenGuard(app, settings.token)
            elif settings.host not in ("127.0.0.1", "::1", "localhost"):
                log.warning("whoever reaches %s may run programs here: set SANDBOX_TOKEN to ask for it", settings.host)
            config = uvicorn.Config(
                app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=1
            )
            server = _Server(config)
            running = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                while not server.started and not running.done():
                    await asyncio.sleep(0.01)
                url = f"http://{settings.host}:{listener.getsockname()[1]}"
                kind = pool.launcher.isolation.split(" ")[0] if pool.launcher.is_isolated else "NOT ISOLATED"
                log.info("sandbox node ready: %d boxes, %s, %s", len(pool.slots), kind, url)
                pool.make_images()
                await running
            finally:
                await pool.stop()
                server.should_exit = True
                await running


class _Server(uvicorn.Server):
    """Signals are the node's: it stops boxes before it stops listening."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the handlers alone."""
        yield


@asynccontextmanager
async def open_node(settings: NodeSettings) -> AsyncIterator[Pool]:
    """A started pool that has survived the self-test; on exit nothing of it is left."""
    settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _lock(settings.state_dir):
        killed = sweep_stale(settings.state_dir)
        if killed:
            log.warning("killed %d boxes that an earlier node left behind", killed)
        try:
            launcher = await choose_launcher(settings)
        except OSError as error:
            # A failed copy of many files names them all: one is enough.
            reason = error.args[0][0][2] if isinstance(error, shutil.Error) else error.strerror or str(error)
            raise NodeRefusesError(f"cannot fill {settings.state_dir}: {reason}") from error
        pool = Pool(
            launcher,
            boxes=settings.box_counts(),
            node=settings.name,
            max_boxes=settings.most_boxes(),
            max_queued=settings.max_queued,
            max_queued_bytes=settings.max_queued_mb << 20,
        )
        try:
            await pool.start(require_isolation if launcher.is_isolated else _trust)
            yield pool
        except BoxError as error:
            raise NodeRefusesError(f"{launcher.isolation}: {error}") from error
        finally:
            await pool.stop()
            launcher.close()


async def _trust(_: Box) -> None:
    """Without isolation there is nothing to attack."""


async def choose_launcher(settings: NodeSettings) -> Launcher:
    """gVisor on the fastest platform that works here; plain processes only where the owner allows them."""
    runsc = await asyncio.to_thread(find_runsc, settings.runsc)
    if runsc is None:
        if settings.runsc:
            raise NodeRefusesError(f"SANDBOX_RUNSC={settings.runsc} is no program")
        if not settings.allow_unisolated:
            raise NodeRefusesError(NO_RUNSC)
        log.warning("runsc is not installed: programs run WITHOUT ISOLATION (SANDBOX_ALLOW_UNISOLATED=1)")
        return PlainLauncher(state_dir=settings.state_dir)
    launchers = await launchers_for(runsc, settings)
    if len(launchers) == 1:
        return launchers[0]  # its first box is its trial
    return cheapest(runsc, await try_all(launchers))


async def launchers_for(runsc: Runsc, settings: NodeSettings) -> list[GvisorLauncher]:
    """One for each platform worth a trial, on a root that is built now if need be."""
    rootfs = await asyncio.to_thread(prepare_rootfs, settings.state_dir, packages_of(settings.tiers))
    names = candidate_platforms(runsc, settings.platform)
    return [GvisorLauncher(runsc, name, rootfs=rootfs, state_dir=settings.state_dir) for name in names]


@contextmanager
def _lock(state_dir: Path) -> Iterator[None]:
    """One node per state directory: the sweep at start kills what it finds there."""
    with (state_dir / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NodeRefusesError(f"another sandbox node uses {state_dir}; give this one a --state-dir") from None
        yield


@contextmanager
def _listen(settings: NodeSettings) -> Iterator[socket.socket]:
    """Take the port before anything is started, so that a taken one is known at once."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # With the protocol named asyncio sets TCP_NODELAY on what it accepts; without, answers wait 40 ms for an ACK.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
        except OSError as error:
            reason = error.strerror or str(error)
            raise NodeRefusesError(f"cannot listen on {settings.host}:{settings.port}: {reason}") from error
        yield listener
