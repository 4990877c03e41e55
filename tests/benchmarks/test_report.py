"""Numbers worked by hand through the tables, the bars and the counting of answers."""

import math

import pytest

from benchmarks.sandbox import bars, report
from benchmarks.sandbox.costs import measured_costs
from benchmarks.sandbox.load import Measured, Recorder, Sample, burst, closed_loop, endless, open_loop, quantile
from benchmarks.sandbox.machine import MachineFacts, Usage
from benchmarks.sandbox.workload import Kind, trivial_load
from contracts.execution import Execution, ExecutionCall, ExecutionStatus


def sample(latency_ms: float, kind: Kind = Kind.PYTHON, **fields) -> Sample:
    values = {"queue_ms": 1.0, "exec_ms": latency_ms, "cpu_ms": 5.0, "attempts": 1, "status": "ok", "ended_at": 0.0}
    return Sample(kind=kind, latency_ms=latency_ms, **{**values, **fields})


def measured(name: str = "ours", *, calls: int = 100, window_s: float = 10.0, cpu_s: float = 5.0, **fields):
    samples = fields.pop("samples", [sample(10.0)] * calls)
    usage = Usage(cpu_s, cpu_s / 10)
    return Measured(name, window_s, usage, samples, finished=calls, sent=calls, **fields)


@pytest.mark.parametrize(("q", "value"), [(0.5, 2), (0.51, 3), (0.99, 4), (0.0, 1), (1.0, 4)])
def test_quantile_is_the_smallest_value_that_covers_the_share(q, value):
    assert quantile([1, 2, 3, 4], q) == value


def test_quantile_of_nothing_is_not_a_number():
    assert math.isnan(quantile([], 0.5))


def test_rates_are_calls_by_window_and_by_cpu():
    one = measured(calls=100, window_s=10, cpu_s=5)
    assert (one.calls_per_s, one.calls_per_core_s, one.cpu_ms_per_call, one.front_ms_per_call) == (10, 20, 50, 5)
    one.add(measured(calls=50, window_s=10, cpu_s=5))
    assert (one.calls_per_s, one.cpu_ms_per_call, len(one.samples)) == (7.5, pytest.approx(66.67, abs=0.01), 150)


def test_latency_with_and_without_the_programs_that_never_end():
    one = measured(samples=[sample(10), sample(30), sample(2100, Kind.SPIN), sample(2000, Kind.SLEEP)])
    assert one.latencies() == [10, 30, 2000, 2100]
    assert one.latencies(with_over_limit=False) == [10, 30]
    assert one.overruns(2.0) == [0, 100]


def test_the_row_fits_the_header():
    row = report.row(measured(samples=[sample(10, fault="wrong")]))
    assert len(row) == len(report.HEADER)
    cells = dict(zip(report.HEADER, row, strict=True))
    assert (cells["contestant"], cells["wrong"], cells["p50"], cells["mean no t/o"]) == ("ours", 1, 10, 10)


def test_a_table_rounds_floats_to_three_digits():
    text = report.table(("a", "b"), [["x", 12.3456], ["y", float("nan")], ["z", 1234.5]])
    assert text.splitlines() == ["| a | b |", "|---|---|", "| x | 12.3 |", "| y | - |", "| z | 1234 |"]


def test_bars_met_missed_and_not_run():
    found = bars.check(
        saturated=[measured(calls=130), measured("plain", calls=200), measured("code-judge model", calls=60)],
        opened={0.5: measured(samples=[sample(100), sample(600)])},
        burst=measured(lost=1),
        replacements=[0.2, 0.5, 0.9],
        overruns=[20.0, 310.0],
    )
    verdicts = {bar.name: bar.is_met for bar in found}
    assert verdicts == {
        "throughput, of plain": True,  # 13 of 20 a second
        "throughput, of code-judge": None,
        "throughput, of its model": False,  # 13 of 6: 2.17 times
        "mean at half of saturation, timeouts included": False,  # 350 ms
        "p50 at a fifth": None,
        "replacement": True,  # the median
        "overrun past a limit, the longest": False,
        "burst": False,
        "answers of ours against the oracle": False,  # the lost one
    }


class Echo:
    """Answers at once, or as it is told to misbehave."""

    name = "ours"

    def __init__(self, *, wrong_id: str = ""):
        self._wrong_id = wrong_id

    async def run(self, call: ExecutionCall) -> Execution:
        a, b, c = (int(word) for word in call.code.replace("*", "+").strip("print()\n").split("+"))
        text = f"{a * b + c}\n"
        return Execution(id=self._wrong_id or call.id, status=ExecutionStatus.OK, stdout=text, stdout_bytes=len(text))

    def usage(self) -> Usage:
        return Usage(0.0, 0.0)

    async def replaced(self) -> int:
        return 0


async def test_a_burst_answers_every_call_once():
    one = await burst(Echo(), trivial_load(100, 1), senders=7)
    assert (one.sent, len(one.samples), one.lost, one.duplicates, one.faults) == (100, 100, 0, 0, [])


async def test_an_answer_to_another_call_is_wrong():
    one = await burst(Echo(wrong_id="other"), trivial_load(10, 1), senders=2)
    assert len(one.faults) == 10


def test_lost_and_second_answers_are_counted_by_id():
    recorder = Recorder("ours")
    task = trivial_load(1, 1)[0]
    answer = Execution(id=task.call.id, status=ExecutionStatus.OK)
    for _ in range(3):
        recorder.sent()
    recorder.answered(task, 0.0, answer)
    recorder.answered(task, 0.0, answer)
    one = recorder.close(cut_off=1)
    assert (one.duplicates, one.lost) == (1, 1)


async def test_loops_end_and_count_what_they_sent():
    tasks = endless(trivial_load(5, 1))
    closed = await closed_loop(Echo(), tasks, callers=2, seconds=0.02)
    opened = await open_loop(Echo(), tasks, calls_per_s=2000, seconds=0.02, seed=1)
    assert closed.sent == len(closed.samples) and opened.sent == len(opened.samples)
    assert not closed.lost + opened.lost + closed.duplicates + opened.duplicates


def test_endless_tasks_have_new_ids():
    tasks = endless(trivial_load(2, 1))
    assert len({next(tasks).call.id for _ in range(7)}) == 7


def test_what_a_box_costs_beyond_execution_is_the_remainder():
    machine = MachineFacts(2, "cpu", "6", "3.11", "none", 0, 1.0, 1.0, 0.0)
    quiet = measured(samples=[sample(20.0), sample(40.0), sample(2000.0, Kind.SLEEP)])
    costs = measured_costs(quiet, measured(calls=10, cpu_s=1), machine)
    assert costs["front_ms"] == 10  # a tenth of 100 ms
    # python is 85 of the 87 programs in 200 of these kinds, 30 ms in the mean; a sleeper uses no CPU
    assert costs["after_ms"] == round(100 - 10 - 30 * 85 / 87, 1)
    assert set(costs["kinds"]) == {"python", "sleep"} and costs["kinds"]["python"]["exec_ms"][0] == 20
