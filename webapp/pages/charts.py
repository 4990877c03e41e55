"""The charts of a run and where plotly.js is: the only file that knows of plotly.

A chart is data: `charts.js` draws it with the colours of the CSS tokens, so light and dark are one description.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from contracts.metrics import METRICS

PLOTLY_URL = "plotly/plotly.min.js"


def plotly_static() -> list[tuple[str, str]]:
    """An entry of STATICFILES_DIRS: plotly.js as the wheel ships it, so that its 5 MB are never committed."""
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        return []
    return [("plotly", str(Path(spec.origin).parent / "package_data"))]


@dataclass(frozen=True)
class Series:
    """One line. `color` is a CSS token; `low` and `high` make it a band, `error` gives half-widths."""

    metric: str
    label: str
    color: str = "accent"
    low: str = ""
    high: str = ""
    error: str = ""
    dash: str = ""


@dataclass(frozen=True)
class Chart:
    key: str
    title: str
    question: str
    series: tuple[Series, ...]
    unit: str = ""
    stacked: bool = False
    share: bool = False
    x: str = "step"
    needs: str = ""  # a field that a stage must have set
    tabs: tuple[str, ...] = ("overview",)

    @property
    def metrics(self) -> list[str]:
        names = [n for s in self.series for n in (s.metric, s.low, s.high, s.error) if n]
        assert all(n in METRICS for n in names)  # noqa: S101  a name that is not a metric is a typing error here
        return names

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


CHARTS = (
    Chart(
        "reward",
        "Reward",
        "Is it learning? mean reward a rollout, 0 to 1",
        (
            Series("reward/mean", "all generated"),
            Series("reward/kept_mean", "kept", "violet", dash="dot"),
        ),
    ),
    Chart(
        "eval",
        "Held-out avg@k",
        "Does it carry over? bars: 95 % interval, clustered by problem",
        (Series("eval/avg", "avg@k", error="eval/half_width"),),
    ),
    Chart(
        "ledger",
        "Where rollouts go",
        "How many give a gradient? rollouts a step, by decision",
        (
            Series("ledger/kept_right", "kept right", "ok"),
            Series("ledger/kept_wrong", "kept wrong", "violet"),
            Series("ledger/kept_truncated", "kept truncated", "warn"),
            Series("ledger/not_selected", "not drawn", "faint"),
            Series("ledger/equal_reward", "equal-reward group", "fainter"),
            Series("ledger/too_few", "too few graded", "muted"),
            Series("ledger/ungraded", "ungraded", "bad"),
        ),
        unit="rollouts",
        stacked=True,
    ),
    Chart(
        "tools",
        "Tool errors",
        "Is tool use getting cleaner? errored calls of all, by grade, %",
        (
            Series("tools/error_ratio_right", "right rollouts", "ok"),
            Series("tools/error_ratio_wrong", "wrong rollouts", "violet"),
            Series("tools/error_ratio", "all rollouts", "faint", dash="dot"),
        ),
        share=True,
    ),
    Chart(
        "length",
        "Response length",
        "Is it exploding? band: p10 to p90, line: p50, tokens",
        (Series("response/tokens_p50", "p50", low="response/tokens_p10", high="response/tokens_p90"),),
        unit="tokens",
    ),
    Chart(
        "entropy",
        "Entropy",
        "Is it collapsing? mean over policy tokens, nats, full vocabulary",
        (Series("entropy/mean", "all policy tokens", "warn"),),
        unit="nats",
    ),
    Chart(
        "classes",
        "Entropy by class",
        "Where is the policy unsure? mean over policy tokens, nats",
        (
            Series("entropy/reasoning", "reasoning"),
            Series("entropy/code", "code", "ok"),
            Series("entropy/comment", "comment", "ok", dash="dot"),
            Series("entropy/answer", "answer", "warn"),
            Series("entropy/format", "format", "faint", dash="dot"),
        ),
        unit="nats",
        tabs=("overview", "tokens"),
    ),
    Chart(
        "beside",
        "Before and after tool responses",
        "Does a response make it think? mean entropy beside it, nats",
        (
            Series("entropy/before_ok", "before success", "ok", dash="dot"),
            Series("entropy/after_ok", "after success", "ok"),
            Series("entropy/before_error", "before failure", "bad", dash="dot"),
            Series("entropy/after_error", "after failure", "bad"),
        ),
        unit="nats",
        tabs=("overview", "tokens"),
    ),
    Chart(
        "marks",
        "Forking and reflection tokens",
        "Where does reasoning branch? share of policy tokens, %",
        (
            Series("tokens/forking_share", "forking", "bad"),
            Series("tokens/reflection_share", "reflection"),
        ),
        share=True,
        tabs=("overview", "tokens"),
    ),
    Chart(
        "groups",
        "Groups kept and dropped",
        "How many prompts still teach? groups a step",
        (
            Series("groups/kept", "kept", "accent"),
            Series("groups/equal_right", "all right", "ok"),
            Series("groups/equal_wrong", "all wrong", "violet"),
            Series("groups/too_few", "too few graded", "muted"),
        ),
        unit="groups",
        stacked=True,
    ),
    Chart(
        "clipping",
        "Clipping",
        "How far do updates go? share of policy tokens where a clip was active, %",
        (
            Series("policy/clipped_share", "clipped"),
            Series("policy/dual_clipped_share", "by the dual clip", "violet", dash="dot"),
        ),
        share=True,
    ),
    Chart(
        "mismatch",
        "Engine, trainer, reference",
        "Do they agree on the same tokens? nats, before the first update",
        (
            Series("policy/logprob_gap_mean", "mean gap, engine to trainer"),
            Series("policy/logprob_kl", "KL, engine to trainer", "violet"),
            Series("policy/kl_reference", "KL to the stage's first policy", "warn", dash="dot"),
        ),
        unit="nats",
    ),
    Chart(
        "staleness",
        "Staleness",
        "How old is what a step learns from? policy versions, over policy tokens",
        (
            Series("policy/staleness_mean", "mean"),
            Series("policy/staleness_max", "oldest token", "violet", dash="dot"),
            Series("policy/older_share", "share of older tokens", "warn", dash="dot"),
        ),
        unit="versions",
        needs="staleness",
    ),
    Chart(
        "sft",
        "SFT loss",
        "Does it take the form? cross-entropy of trained tokens, nats",
        (Series("sft/loss", "loss", "violet"),),
        unit="nats",
        x="SFT step",
    ),
    Chart(
        "time",
        "Time a step",
        "Who is slow? seconds of wall time",
        (
            Series("time/generate_s", "generate and tool calls"),
            Series("time/learn_s", "learn", "violet"),
            Series("time/sync_s", "weight sync", "ink"),
        ),
        unit="s",
        stacked=True,
        tabs=("overview", "timeline"),
    ),
    Chart(
        "speed",
        "Generation speed",
        "Are the engines busy? policy tokens per second of generation",
        (Series("time/tokens_per_s", "tokens/s"),),
        unit="tokens/s",
        tabs=("timeline",),
    ),
    Chart(
        "within",
        "Within generation",
        "Do tools or grades hold it up? seconds with at least one in flight",
        (
            Series("time/generate_s", "generation"),
            Series("time/tool_s", "a tool call", "warn"),
            Series("time/grade_s", "a grade", "ok"),
        ),
        unit="s",
        tabs=("timeline",),
    ),
    Chart(
        "kv",
        "KV cache",
        "Is it full? used of all KV tokens, %",
        (
            Series("engine/kv_use_mean", "mean"),
            Series("engine/kv_use_max", "fullest engine", "warn", dash="dot"),
        ),
        share=True,
        tabs=("timeline",),
    ),
    Chart(
        "requests",
        "Requests in the engines",
        "Is work spread? requests at once, means over the generation",
        (
            Series("engine/running_mean", "running, an engine"),
            Series("engine/waiting_mean", "waiting, in all", "bad"),
        ),
        unit="requests",
        tabs=("timeline",),
    ),
    Chart(
        "preemptions",
        "Preemptions",
        "Is KV promised twice? requests computed again, a step",
        (Series("engine/preemptions", "preempted", "bad"),),
        unit="requests",
        tabs=("timeline",),
    ),
)

CHART_METRICS = sorted({name for chart in CHARTS for name in chart.metrics})


def charts_of(stages: Sequence[Mapping[str, Any]], tab: str = "overview") -> list[Chart]:
    """The charts of a tab that a run with these stages of a recipe can ever fill."""
    kind_of = {"step": "rl", "SFT step": "sft"}
    return [
        c
        for c in CHARTS
        if tab in c.tabs
        and any(s["kind"] == kind_of.get(c.x, "rl") and (not c.needs or s.get(c.needs)) for s in stages)
    ]


def ledger_series() -> list[Series]:
    """Label and colour of each decision, kept ones first; a decision the chart does not name yet comes last."""
    named = next(chart for chart in CHARTS if chart.key == "ledger").series
    known = {s.metric for s in named}
    others = [n for n in METRICS if n.startswith("ledger/") and n not in known]
    return [*named, *(Series(n, n.removeprefix("ledger/").replace("_", " "), "muted") for n in others)]
