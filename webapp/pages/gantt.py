"""A `StepTimeline` as rows of bars and areas: what the template draws as SVG. Widths are thousandths of the step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from contracts.events import SpanKind

WIDTH = 1000
HEIGHT = 20
KIND_WORDS = {
    SpanKind.QUEUE: "queue",
    SpanKind.GENERATE: "generate",
    SpanKind.TOOL: "tool call",
    SpanKind.GRADE: "grade",
    SpanKind.SCORE: "entropies",
    SpanKind.LEARN: "learn",
    SpanKind.SYNC: "weight sync",
    SpanKind.EVALUATE: "evaluate",
    SpanKind.SAVE: "checkpoint",
}


@dataclass(frozen=True)
class Bar:
    """One span; `title` is its tooltip."""

    kind: str
    x: float
    width: float
    title: str


@dataclass(frozen=True)
class Lane:
    """A row: bars, or an area below `line` (points of an SVG polygon) that reaches its top at `peak`."""

    name: str
    note: str
    kind: str = ""
    bars: list[Bar] = field(default_factory=list)
    line: str = ""
    url: str = ""


def phases(report: Mapping[str, Any]) -> Lane:
    """The driver's own row: its phases one after the other."""
    bars = _bars(report["phases"], report["seconds"])
    told = sum(span["end_s"] - span["start_s"] for span in report["phases"])
    return Lane("step", f"{report['seconds']:.1f} s, {max(0.0, report['seconds'] - told):.1f} s of it other", bars=bars)


def in_flight(report: Mapping[str, Any]) -> list[Lane]:
    """What rollouts were doing: an area for each kind of work, in requests."""
    found = []
    for kind in SpanKind:
        values = report["in_flight"].get(kind)
        if values:
            note = f"mean {sum(values) / len(values):.1f}, peak {max(values):.3g}"
            found.append(Lane(KIND_WORDS[kind], note, kind.value, line=_area(values, max(values))))
    return found


def engines(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Three areas for each engine, against the largest of all engines, so that they can be compared."""
    lines = report["engines"]
    most = max([max(one["running"] + one["waiting"], default=0) for one in lines], default=0)
    return [
        {
            "name": one["name"],
            "tokens": one["tokens"],
            "per_s": one["tokens"] / max(report["seconds"], 1e-9),
            "preemptions": one["preemptions"],
            "lanes": [
                Lane("KV", _kv_note(one), "kv", line=_area(one["kv_used"], one["kv_capacity"])),
                Lane(
                    "running",
                    f"peak {max(one['running'], default=0):.0f}",
                    "generate",
                    line=_area(one["running"], most),
                ),
                Lane(
                    "waiting", f"peak {max(one['waiting'], default=0):.0f}", "queue", line=_area(one["waiting"], most)
                ),
            ],
        }
        for one in lines
    ]


def _kv_note(one: Mapping[str, Any]) -> str:
    capacity = one["kv_capacity"]
    if not capacity:
        return "no KV capacity told"
    return f"peak {max(one['kv_used'], default=0) / capacity:.0%} of {capacity:,} tokens".replace(",", "\u202f")


def slowest(report: Mapping[str, Any]) -> list[Lane]:
    """The rollouts that ended last, a row each."""
    return [
        Lane(
            f"{one['prompt_id']} · {one['sample']}",
            f"ends at {max(span['end_s'] for span in one['spans']):.1f} s",
            bars=_bars(one["spans"], report["seconds"]),
        )
        for one in report["slowest"]
        if one["spans"]
    ]


def kinds(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The kinds that occur, with their words: the legend."""
    rollouts = [span for one in report["slowest"] for span in one["spans"]]
    found = {span["kind"] for span in [*report["phases"], *rollouts]} | set(report["in_flight"])
    return [(kind.value, KIND_WORDS[kind]) for kind in SpanKind if kind in found]


def _bars(spans: Sequence[Mapping[str, Any]], seconds: float) -> list[Bar]:
    return [
        Bar(
            span["kind"],
            round(WIDTH * span["start_s"] / seconds, 2),
            round(max(1.0, WIDTH * (span["end_s"] - span["start_s"]) / seconds), 2),
            f"{KIND_WORDS[SpanKind(span['kind'])]}, {span['start_s']:.2f} to {span['end_s']:.2f} s",
        )
        for span in spans
    ]


def _area(values: Sequence[float], top: float) -> str:
    """Points of a polygon: steps from the left, closed along the ground."""
    if not values or top <= 0:
        return ""
    width = WIDTH / len(values)
    points = [(0.0, float(HEIGHT))]
    for number, value in enumerate(values):
        y = HEIGHT * (1 - min(value, top) / top)
        points += [(number * width, y), ((number + 1) * width, y)]
    points.append((WIDTH, HEIGHT))
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
