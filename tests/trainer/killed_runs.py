"""Attempts of tiny runs in processes that die by SIGKILL where they are told to.

`python -m tests.trainer.killed_runs` reads one JSON object a line (`Order`), forks a process for each that runs one
attempt, and answers with how it ended: forked, for importing torch takes longer than a tiny run.
"""

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from contracts.events import Event
from tests.trainer.pipeline_run import TinyRun
from trainer.journal import Journal
from trainer.policy import checkpoint

FINISHED, NOT_FINISHED = 0, 3
Fields = dict[str, Any]


@dataclass(frozen=True)
class Order:
    """One attempt. It dies before or after the first event with those fields is in the journal, or, with `draft`,
    before the checkpoint of that name has its manifest; `nth` counts all events."""

    folder: str
    recipe: Fields
    before: Fields = field(default_factory=dict)
    after: Fields = field(default_factory=dict)
    draft: str = ""
    nth: int = 0


class Attempts:
    """The process that forks; close it at the end."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.trainer.killed_runs"],
            cwd=Path(__file__).parents[2],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, run: TinyRun, **where: Any) -> int:
        """The exit status of one attempt; minus 9 when it was killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = Order(str(run.out.parent), {"stages": run.recipe.model_dump(mode="json")["stages"]}, **where)
        self._process.stdin.write(json.dumps(asdict(order)) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def kill(self, run: TinyRun, **where: Any) -> None:
        assert self.start(run, **where) == -signal.SIGKILL, f"{where} never happened"

    def finish(self, run: TinyRun) -> TinyRun:
        assert self.start(run) == FINISHED
        return run

    def close(self) -> None:
        self._process.communicate(timeout=30)


def _run(order: Order) -> int:
    with pytest.MonkeyPatch.context() as patch:
        run = TinyRun(Path(order.folder), patch, with_calls=True, **order.recipe)
        _die_where_told(order, patch)
        return FINISHED if run.start().value == "finished" else NOT_FINISHED


def _die_where_told(order: Order, patch: pytest.MonkeyPatch) -> None:
    append, write_manifest = Journal.append, checkpoint._write_manifest

    def append_or_die(journal: Journal, payload: Any) -> Event:
        if journal.seq + 1 == order.nth or _is(payload, order.before):
            _die()
        event = append(journal, payload)
        if _is(payload, order.after):
            _die()
        return event

    def write_manifest_or_die(folder: Path) -> None:
        if folder.name == f".{order.draft}":
            _die()
        write_manifest(folder)

    patch.setattr(Journal, "append", append_or_die)
    patch.setattr(checkpoint, "_write_manifest", write_manifest_or_die)


def _is(payload: Any, fields: Fields) -> bool:
    where = payload.rows[0] if payload.kind == "trajectories" else payload
    return bool(fields) and all(getattr(where, n, getattr(payload, n, None)) == v for n, v in fields.items())


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    for line in sys.stdin:
        order = Order(**json.loads(line))
        child = os.fork()
        if child == 0:
            sys.stdin.close()
            os._exit(_run(order))
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
