"""What Prometheus reads from a node."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from contracts.execution import Execution, ExecutionStatus
from sandbox.pool import Pool

_BUCKETS_S = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class NodeMetrics:
    """Counters of one node, in a registry of their own so that two nodes fit in one process."""

    def __init__(self, pool: Pool) -> None:
        self._registry = CollectorRegistry()
        answers = Counter("sandbox_executions", "Calls answered", ["status"], registry=self._registry)
        self._answers = {status: answers.labels(status.value) for status in ExecutionStatus}
        self._exec_s = Histogram(
            "sandbox_exec_seconds", "Run time of a program", buckets=_BUCKETS_S, registry=self._registry
        )
        self._queue_s = Histogram(
            "sandbox_queue_seconds", "Wait for a box", buckets=_BUCKETS_S, registry=self._registry
        )
        self._cpu_s = Counter("sandbox_cpu_seconds", "CPU time of programs", registry=self._registry)
        self._registry.register(_PoolCollector(pool))

    def record(self, execution: Execution) -> None:
        """Count one answer."""
        self._answers[execution.status].inc()
        if not execution.status.is_ours:
            self._exec_s.observe(execution.exec_ms / 1000)
            self._queue_s.observe(execution.queue_ms / 1000)
            self._cpu_s.inc(execution.cpu_ms / 1000)

    def render(self) -> bytes:
        """The text format, with the gauges as they are now."""
        return generate_latest(self._registry)


class _PoolCollector:
    """Reads the pool when Prometheus asks, so that calls pay for none of it."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        """Everything the pool counts or is."""
        yield from self._counters()
        yield from self._gauges()

    def _counters(self) -> Iterator[Metric]:
        tally = self._pool.tally
        replaced = CounterMetricFamily("sandbox_boxes_replaced", "Boxes replaced", labels=["reason"])
        for reason, count in tally.replaced.items():
            replaced.add_metric([reason], count)
        yield replaced
        yield CounterMetricFamily("sandbox_abandoned", "Calls whose caller went away", value=tally.abandoned)
        yield CounterMetricFamily("sandbox_crashes", "Parts of the node that crashed", value=tally.crashes)

    def _gauges(self) -> Iterator[Metric]:
        pool = self._pool
        boxes = GaugeMetricFamily("sandbox_boxes", "Boxes by state", labels=["state", "tier"])
        queued = GaugeMetricFamily("sandbox_queued", "Calls waiting for a box", labels=["tier"])
        wait = GaugeMetricFamily("sandbox_wait_seconds", "Estimated wait of a call that came now", labels=["tier"])
        for tier in pool.tiers:
            slots = [slot for slot in pool.slots if slot.tier is tier]
            ready, busy = sum(slot.is_ready for slot in slots), sum(slot.is_busy for slot in slots)
            for state, count in (("ready", ready), ("busy", busy), ("starting", len(slots) - ready - busy)):
                boxes.add_metric([state, tier.value], count)
            queued.add_metric([tier.value], pool.queue.waiting(tier))
            wait.add_metric([tier.value], pool.wait_s(tier))
        yield from (boxes, queued, wait)
        load = sum(slot.is_busy for slot in pool.slots) / max(1, len(pool.slots))
        yield GaugeMetricFamily("sandbox_load_ratio", "Share of the boxes that work", value=load)
        yield GaugeMetricFamily("sandbox_queued_bytes", "Size of the calls that wait", value=pool.queue.size_bytes)
        yield GaugeMetricFamily("sandbox_cores", "Cores the node may use", value=pool.cores)
