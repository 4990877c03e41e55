"""One warm box as the host sees it: frames in, frames out, and errors that say whose failure it was."""

import asyncio
import json
import signal
import struct
from typing import Any

from contracts.execution import ExecutionCall
from sandbox.guest.forkserver import NOT_STARTED
from sandbox.launcher import Launched, Launcher, is_running
from sandbox.tiers import Tier

START_S = 30.0
RESTORE_S = 8.0  # then it is started cold
READY_S = 2.0  # after a result: wiping and forking the next child
WATCHDOG_GRACE_S = 1.2  # past the wall limit: 0.2 s of soft kill in the box, then 1 s
MAX_FRAME_BYTES = 64 << 20
_PROBE = ExecutionCall(id="probe", code="print(6 * 7)")
_PROOF = ExecutionCall(
    id="proof",
    code="""\
for name in ("base64", "ctypes", "mmap", "sqlite3", "lzma"):
    try:
        __import__(name)
    except ImportError:
        pass
print(len(b"x" * (32 << 20)))
""",
)
_PROVEN = f"{32 << 20}\n"


class BoxError(Exception):
    """The box failed, not the program."""


class BoxDiedError(BoxError):
    """Its process ended or its frames make no sense."""


class BoxHungError(BoxError):
    """It did not answer in time."""


class BoxSuspectError(BoxError):
    """A program died of a memory fault in it, and the box cannot do what any program may ask for either."""


class BoxOutOfMemoryError(BoxError):
    """The host's memory limit for the box killed it: what ran in it asked for too much."""


class Box:
    """A started box. One call at a time; after an error it must be closed."""

    def __init__(self, launcher: Launcher, launched: Launched) -> None:
        self._launcher = launcher
        self._launched = launched
        self._helpers: list[int] = []
        self.cpu = launched.cpu
        self._oom_kills = 0
        self._start_mb = 0
        self.calls = 0
        self._is_ready = False  # said along with the last result

    @property
    def id(self) -> str:
        """Its name in logs and answers."""
        return self._launched.box_id

    @classmethod
    async def start(cls, launcher: Launcher, tier: Tier, *, cold: bool = False) -> "Box":
        """Start a box and wait until it takes calls. An image that does not restore is given up for a cold start."""
        launched = await launcher.start(tier, cold=cold)
        box = cls(launcher, launched)
        try:
            async with asyncio.timeout(RESTORE_S if launched.is_restored else START_S):
                if launched.is_restored:
                    await box._probe()
                else:
                    await box._expect("hello")
                    await box._expect("ready")
                box._helpers = launcher.helpers(launched)
                box._start_mb = launcher.memory_mb(launched)
        except (BoxError, TimeoutError) as error:
            reason = box.last_words()
            await box.close()
            if launched.is_restored:
                launcher.forget_image(tier)
                return await cls.start(launcher, tier, cold=True)
            raise BoxDiedError(f"a {tier} box did not start: {error or 'timeout'} {reason}".strip()) from error
        except BaseException:
            await box.close()
            raise
        return box

    async def _probe(self, *, spare: bool = True) -> None:
        """Ask it something: a restored box says no hello."""
        reply = await self.run(_PROBE, spare=spare)
        if reply["stdout"] != "42\n":
            raise BoxDiedError(f"a new box answered {reply}")
        await self.wait_ready()

    async def run(self, call: ExecutionCall, *, spare: bool = True) -> dict[str, Any]:
        """The box's reply to one call; raises a BoxError. Then `wait_ready` before the next.

        `spare`: fork the child of the next call ahead of it, quicker when boxes idle, wasted when they do not.
        """
        self.calls += 1
        self._is_ready = False
        self._launcher.allow_memory(self._launched, call.limits.memory_mb)
        request = {"code": call.code, "stdin": call.stdin, "seed": call.seed, "history": call.history}
        body = json.dumps(request | {"limits": dict(call.limits), "spare": spare}).encode()
        stdin = self._launched.process.stdin
        assert stdin is not None  # noqa: S101 - spawned with pipes
        try:
            async with asyncio.timeout(call.limits.wall_s + WATCHDOG_GRACE_S):
                stdin.write(struct.pack(">I", len(body)) + body)
                await stdin.drain()
                reply = await self._expect("result")
        except TimeoutError:
            raise BoxHungError("the box did not answer past the wall limit") from None
        except (BoxDiedError, ConnectionError, OSError) as error:
            if self._was_oom_killed():
                raise BoxOutOfMemoryError("the host's memory limit killed the box") from error
            raise BoxDiedError(f"the box is gone: {error}") from error
        if reply["status"] == NOT_STARTED:
            raise BoxDiedError(f"the program was not started: {reply['stderr'][-400:].strip() or 'no reason given'}")
        self._is_ready = bool(reply.get("is_ready"))
        if not all(map(is_running, self._helpers)):
            raise BoxDiedError("a process that the box needs is gone")
        if reply["signal"] == signal.SIGKILL and self._was_oom_killed():
            reply |= {"status": "memory", "signal": None, "exit_code": 1}
        return reply

    def _was_oom_killed(self) -> bool:
        """True when the host killed something of the box for memory since this was last asked."""
        seen, self._oom_kills = self._oom_kills, self._launcher.oom_kills(self._launched)
        return self._oom_kills > seen

    async def wait_ready(self) -> str:
        """Wait until the box is clean and takes the next call; the reason to replace it, or ""."""
        if self._is_ready:
            return ""
        try:
            async with asyncio.timeout(READY_S):
                return str((await self._expect("ready"))["tainted"])
        except TimeoutError:
            raise BoxHungError("the box did not become ready again") from None

    async def prove(self) -> str:
        """A program died of a memory fault: does the box still map files and memory? BoxSuspectError if not.

        Waits until the box is ready, before and after; the reason to replace it, or "".
        """
        tainted = await self.wait_ready()
        try:
            reply = await self.run(_PROOF, spare=False)
        except BoxOutOfMemoryError as error:  # not by the program, which has ended
            raise BoxSuspectError(str(error)) from error
        if reply["stdout"] != _PROVEN:
            raise BoxSuspectError(f"programs die in it: {reply['status']} {reply['signal'] or ''}".strip())
        return tainted or await self.wait_ready()

    async def wait_dead(self) -> None:
        """Wait until its process has ended."""
        await self._launched.process.wait()

    @property
    def is_restored(self) -> bool:
        """From an image, not from cold."""
        return self._launched.is_restored

    @property
    def pid(self) -> int:
        """Of the runsc in front of it, whose children its kernel and its gofer are."""
        return self._launched.process.pid

    def threads(self) -> int:
        """Host threads it holds."""
        return self._launcher.load(self._launched)

    def move(self, cpu: int) -> bool:
        """Go to a core; False when it cannot or need not."""
        is_moved = self._launcher.move(self._launched, cpu)
        self.cpu = cpu if is_moved else self.cpu
        return is_moved

    def growth_mb(self) -> int:
        """Memory it holds on the host beyond what it held at its start."""
        return self._launcher.memory_mb(self._launched) - self._start_mb

    def inspect(self) -> dict[str, str]:
        """What the host sees of its walls: for each check "", or what is wrong."""
        return self._launcher.inspect(self._launched)

    def last_words(self) -> str:
        """The end of what the box wrote to its log, for a person."""
        try:
            return self._launched.log_path.read_text(errors="replace")[-400:].strip()
        except OSError:
            return ""

    async def save_image(self) -> bool:
        """Checkpoint it; ends the box. First its spare child goes, whose pages would be restored for nothing."""
        await self._probe(spare=False)
        return await self._launcher.save_image(self._launched)

    async def close(self) -> None:
        """Kill it. Never raises for a box that is dead already."""
        await asyncio.shield(self._launcher.kill(self._launched))

    async def _expect(self, kind: str) -> dict[str, Any]:
        stdout = self._launched.process.stdout
        assert stdout is not None  # noqa: S101 - spawned with pipes
        try:
            (length,) = struct.unpack(">I", await stdout.readexactly(4))
            if length > MAX_FRAME_BYTES:
                raise BoxDiedError(f"a frame of {length} bytes")
            frame = json.loads(await stdout.readexactly(length))
        except (asyncio.IncompleteReadError, ValueError) as error:
            raise BoxDiedError(f"the box is gone ({type(error).__name__})") from error
        if not isinstance(frame, dict) or frame.get("kind") != kind:
            raise BoxDiedError(f"expected a {kind} frame, got {str(frame)[:200]}")
        return frame
