"""The glossary names every event kind, status, reason, decision and metric of the contracts."""

from pathlib import Path
from typing import get_args

import pytest

from contracts.events import LogLevel, Outcome, Payload
from contracts.execution import ExecutionStatus
from contracts.metrics import METRICS
from contracts.scoring import UngradedReason
from contracts.trajectory import Decision, StopReason, TokenClass, ToolStatus

KINDS = [m.model_fields["kind"].default for m in get_args(get_args(Payload)[0])]
WORDS = [
    *KINDS,
    *METRICS,
    *(w.value for e in (ExecutionStatus, UngradedReason, Decision, StopReason, TokenClass, ToolStatus) for w in e),
    *(w.value for e in (LogLevel, Outcome) for w in e),
]


@pytest.fixture(scope="module")
def glossary() -> str:
    return Path("docs/glossary.md").read_text()


@pytest.mark.parametrize("word", sorted(set(WORDS)))
def test_the_glossary_has(word, glossary):
    assert f"`{word}`" in glossary
