import json
import subprocess
import sys
from math import inf, nan

import pytest
from pydantic import ValidationError

from contracts.events import Event, encode_number
from contracts.metrics import METRICS
from contracts.trajectory import Decision

LINE = {"run": "r", "attempt": 1, "seq": 1, "time": "2026-01-01T00:00:00Z"}


def event(payload):
    return Event.model_validate({**LINE, "payload": payload})


def test_non_finite_numbers_travel_as_words():
    values = {name: encode_number(x) for name, x in [("a", nan), ("b", inf), ("c", -inf), ("d", 0.5)]}
    sent = event({"kind": "metrics", "stage": 0, "step": 1, "values": values}).model_dump_json()
    assert json.loads(sent)["payload"]["values"] == {"a": "NaN", "b": "Infinity", "c": "-Infinity", "d": 0.5}
    assert Event.model_validate_json(sent) == event({"kind": "metrics", "stage": 0, "step": 1, "values": values})


@pytest.mark.parametrize(
    "payload",
    [
        {"kind": "no_such_kind"},
        {"kind": "log", "level": "shout", "text": "x"},
        {"kind": "metrics", "stage": 0, "step": 1, "values": {"a": "0.5 or so"}},
        {"kind": "heartbeat", "extra": 1},
    ],
)
def test_a_bad_payload_is_refused(payload):
    with pytest.raises(ValidationError):
        event(payload)


def test_seq_starts_at_one():
    with pytest.raises(ValidationError):
        Event.model_validate({**LINE, "seq": 0, "payload": {"kind": "heartbeat"}})


def test_every_training_decision_has_its_ledger_metric():
    assert {f"ledger/{d}" for d in Decision if d is not Decision.EVALUATION} == {
        m for m in METRICS if m.startswith("ledger/")
    }


def test_contracts_load_neither_django_nor_torch():
    code = (
        "import sys, contracts.recipe, contracts.events, contracts.trajectory, contracts.execution, contracts.metrics;"
        "print([m for m in ('django', 'torch', 'numpy', 'ray', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
