"""A grader process that obeys its answers. In a file of its own, for a spawned process imports it afresh."""

import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

from trainer.reward import pool
from trainer.reward.pool import READY


def serve_by_script(pipe: Connection) -> None:
    """A worker that obeys its answers: hang, die, take memory, be slow, or say right."""
    pipe.send(READY)
    while True:
        try:
            answer, *_ = pipe.recv()
        except EOFError:
            return
        match answer.partition(" "):
            case "hang", _, _:
                time.sleep(3600)
            case "die", _, _:
                os.kill(os.getpid(), signal.SIGKILL)
            case "die-once", _, path:
                if not os.path.exists(path):
                    Path(path).touch()
                    os.kill(os.getpid(), signal.SIGKILL)
            case "bloat", _, _:
                held = bytearray(os.urandom(1)) * 200_000_000
                time.sleep(3600)
                del held
            case "slow", _, _:
                time.sleep(0.1)
        pipe.send(True)


def serve_with_little_memory(pipe: Connection) -> None:
    """The true worker, whose allocations fail after 32 MB."""
    pool.MAX_ADDRESS_MB = 32
    pool._serve(pipe)
