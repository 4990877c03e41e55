"""What Prometheus reads from a node."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from contracts.execution import Execution, NodeHealth

_BUCKETS_S = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5, 5.0, 10.0, 30.0)


class NodeMetrics:
    """Counters of one node, in a registry of their own so that two nodes fit in one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._answers = Counter("sandbox_executions", "Calls answered", ["status"], registry=self._registry)
        self._exec_s = Histogram(
            "sandbox_exec_seconds", "Run time of a program", buckets=_BUCKETS_S, registry=self._registry
        )
        self._queue_s = Histogram(
            "sandbox_queue_seconds", "Wait for a box", buckets=_BUCKETS_S, registry=self._registry
        )
        self._boxes = Gauge("sandbox_boxes", "Boxes by state", ["state"], registry=self._registry)
        self._queued = Gauge("sandbox_queued", "Calls waiting for a box", registry=self._registry)
        self._replaced = Gauge("sandbox_boxes_replaced", "Boxes replaced since start", registry=self._registry)

    def record(self, execution: Execution) -> None:
        """Count one answer."""
        self._answers.labels(execution.status.value).inc()
        if not execution.status.is_ours:
            self._exec_s.observe(execution.exec_ms / 1000)
            self._queue_s.observe(execution.queue_ms / 1000)

    def render(self, health: NodeHealth) -> bytes:
        """The text format, with the gauges as they are now."""
        self._boxes.labels("ready").set(health.ready)
        self._boxes.labels("busy").set(health.busy)
        self._boxes.labels("starting").set(health.boxes - health.ready - health.busy)
        self._queued.set(health.queued)
        self._replaced.set(health.replaced)
        return generate_latest(self._registry)
