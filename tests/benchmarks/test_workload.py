"""The mixed load: the same for the same seed, in the shares it promises, with oracles that tell right from wrong."""

import ast
import re
from collections import Counter

import pytest

from benchmarks.sandbox.workload import BLOCK, BLOCK_CALLS, Expected, Kind, mixed_load, trivial_load
from contracts.execution import Execution, ExecutionStatus


def test_one_seed_one_load():
    assert mixed_load(300, 7) == mixed_load(300, 7)
    assert mixed_load(300, 7)[:100] == mixed_load(100, 7)
    assert [t.call.code for t in mixed_load(50, 7)] != [t.call.code for t in mixed_load(50, 8)]


def test_every_block_has_the_shares_of_the_mix():
    tasks = mixed_load(3 * BLOCK_CALLS, 1)
    for start in range(0, len(tasks), BLOCK_CALLS):
        assert Counter(task.kind for task in tasks[start : start + BLOCK_CALLS]) == BLOCK
    small = BLOCK[Kind.PYTHON] + BLOCK[Kind.PRINTS] + BLOCK[Kind.FILES] + BLOCK[Kind.SUBPROCESS] + BLOCK[Kind.NUMPY]
    assert (BLOCK_CALLS, small, BLOCK[Kind.NUMPY] / small) == (200, 140, pytest.approx(0.3))


def test_programs_differ_and_have_the_promised_length():
    tasks = mixed_load(400, 3)
    sizes = [len(task.call.code.encode()) for task in tasks]
    assert min(sizes) >= 200 and max(sizes) <= 8000 and max(sizes) > 5000
    assert len({task.call.code for task in tasks}) == len(tasks)
    assert len({task.call.id for task in tasks}) == len(tasks)


def test_only_syntax_errors_do_not_parse():
    for task in mixed_load(400, 4):
        if task.kind is Kind.SYNTAX:
            with pytest.raises(SyntaxError):
                ast.parse(task.call.code)
        else:
            ast.parse(task.call.code)


@pytest.mark.parametrize("kind", [Kind.PYTHON, Kind.NUMPY, Kind.FILES, Kind.PRINTS])
def test_oracles_agree_with_python(kind, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for task in [task for task in mixed_load(100, 5) if task.kind is kind]:
        exec(task.call.code, {"__name__": "__main__"})  # noqa: S102 - a program of ours
        text = capsys.readouterr().out
        assert Expected.of(text) == task.expected


def test_an_oracle_refuses_what_is_not_the_answer():
    expected = Expected.of("42\n")
    right = Execution(id="a", status=ExecutionStatus.OK, stdout="42\n", stdout_bytes=3)
    assert expected.fault(right) == ""
    assert "stdout" in expected.fault(right.model_copy(update={"stdout": "43\n"}))
    assert "bytes" in expected.fault(right.model_copy(update={"stdout_bytes": 4}))
    assert "status" in expected.fault(right.model_copy(update={"status": ExecutionStatus.ERROR}))
    assert Expected.over_limit().fault(right.model_copy(update={"status": ExecutionStatus.TIMEOUT})) == ""


def test_of_a_long_output_the_ends_and_the_length_are_compared():
    text = "".join(f"{n}\n" for n in range(50_000))
    shown = text[:30_000] + "\n... [1 bytes omitted] ...\n" + text[-30_000:]
    answer = Execution(id="a", status=ExecutionStatus.OK, stdout=shown, stdout_bytes=len(text), truncated=True)
    assert Expected.of(text).fault(answer) == ""
    assert Expected.of(text + "x").fault(answer) != ""


def test_the_trivial_load_prints_one_number():
    for task in trivial_load(5, 2):
        a, b, c = map(int, re.findall(r"\d+", task.call.code))
        assert task.expected.head == f"{a * b + c}\n"
