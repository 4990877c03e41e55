"""Killed at any instant and resumed, a run gives the numbers of one that was never stopped, bit for bit."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from contracts.events import Outcome
from tests.trainer.pipeline_run import TinyRun, dump
from trainer.journal import Journal


class Killed(BaseException):
    """As far as the pipeline can tell, the process is gone."""


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    with pytest.MonkeyPatch.context() as patch:
        run = TinyRun(tmp_path_factory.mktemp("resume") / "whole", patch)
        assert run.start() is Outcome.FINISHED
    return run


def start_killed(run: TinyRun, patch: pytest.MonkeyPatch, after_events: int) -> None:
    """Start, and die when the attempt has written so many events."""
    append = Journal.append

    def append_or_die(journal: Journal, payload: object) -> object:
        if journal.seq >= after_events:
            raise Killed
        return append(journal, payload)

    with patch.context() as inner:
        inner.setattr(Journal, "append", append_or_die)
        with pytest.raises(Killed):
            run.start()


@pytest.mark.parametrize("share", [0.02, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 0.97])
def test_a_kill_changes_no_number(
    share: float, uninterrupted: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = len(uninterrupted.events())
    run = TinyRun(tmp_path / "killed", monkeypatch)
    start_killed(run, monkeypatch, after_events=int(total * share))
    assert run.start() is Outcome.FINISHED
    assert dump(run.figures()) == dump(uninterrupted.figures())
    assert run.weights() == uninterrupted.weights()


def test_killed_again_and_again(uninterrupted: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = TinyRun(tmp_path / "often", monkeypatch)
    for _ in range(4):
        start_killed(run, monkeypatch, after_events=30)
    assert run.start() is Outcome.FINISHED
    assert dump(run.figures()) == dump(uninterrupted.figures())
    assert run.weights() == uninterrupted.weights()
    assert sorted({event.attempt for event in run.events()}) == [1, 2, 3, 4, 5]


CHILD = """
import sys
from pathlib import Path
import pytest
from tests.trainer.pipeline_run import TinyRun
with pytest.MonkeyPatch.context() as patch:
    TinyRun(Path(sys.argv[1]), patch).start()
"""


@pytest.mark.integration
def test_a_real_kill_changes_no_number(uninterrupted: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = TinyRun(tmp_path / "real", monkeypatch)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path / "real")],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    journal = run.out / "events.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and child.poll() is None:
        if journal.exists() and b'"stage":2,"step":2' in journal.read_bytes():
            break
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    with journal.open("ab") as stream:
        stream.write(b'{"run":"r","att')
    assert run.start() is Outcome.FINISHED
    assert dump(run.figures()) == dump(uninterrupted.figures())
    assert run.weights() == uninterrupted.weights()
