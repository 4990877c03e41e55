"""The report of `python -m trainer analyse SHARD`: one step's (or evaluation's) trajectories as plain text tables."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from contracts.events import TokenCount, TokenReport, TokenWindow
from contracts.scoring import Graded
from contracts.trajectory import EntropyKind, TokenClass, TrajectoryRow
from trainer.analysis.report import token_report
from trainer.analysis.tokens import MarkSettings, TokenAnalysis, analysis_of_row
from trainer.store import ShardError, iter_rows
from trainer.tables import format_table, percent

_PLACES = {
    TokenWindow.BEFORE_OK: "before a call that succeeded",
    TokenWindow.AFTER_OK: "after its response",
    TokenWindow.BEFORE_ERROR: "before a call that failed",
    TokenWindow.AFTER_ERROR: "after its response, an error",
}
_KINDS = {EntropyKind.FULL: "full vocabulary", EntropyKind.TOPK_BOUND: "lower bound from the top k"}
_SHOWN = 10  # tokens of a top list


@dataclass(slots=True)
class Outcomes:
    """Trajectories of one grade and what they did with the tool."""

    trajectories: int = 0
    calls: int = 0
    errors: int = 0
    turns: int = 0
    tokens: int = 0

    def add(self, row: TrajectoryRow) -> None:
        self.trajectories += 1
        self.calls += row.index.tool_calls
        self.errors += row.index.tool_errors
        self.turns += row.index.turns
        self.tokens += row.index.response_tokens


@dataclass(slots=True)
class ShardReport:
    """`tokens`: one report for each kind of entropy, for the two have no common mean. `by_grade` is in the order
    right, wrong, ungraded."""

    path: Path
    rows: int = 0
    size_bytes: int = 0
    steps: set[int] = field(default_factory=set)
    decisions: Counter[str] = field(default_factory=Counter)
    by_grade: dict[str, Outcomes] = field(
        default_factory=lambda: {g: Outcomes() for g in ("right", "wrong", "ungraded")}
    )
    tokens: list[TokenReport] = field(default_factory=list)

    @property
    def response_tokens(self) -> int:
        return sum(o.tokens for o in self.by_grade.values())

    @property
    def bytes_per_token(self) -> float:
        """Bytes of the file a response token; prompts, texts and index rows are in it."""
        return self.size_bytes / max(1, self.response_tokens)


def read_report(path: Path, reflection_window: int) -> ShardReport:
    """Classes and marks as they were stored; the windows beside tool responses of this size.

    ShardError for a file that is no shard, is damaged, or has no trajectory.
    """
    report = ShardReport(path)
    by_kind: dict[EntropyKind, list[TokenAnalysis]] = {}
    for row in iter_rows(path):
        report.rows += 1
        report.steps.add(row.index.step)
        report.decisions[row.index.decision.value] += 1
        report.by_grade[_grade_of(row)].add(row)
        by_kind.setdefault(row.entropy_kind, []).append(analysis_of_row(row, reflection_window))
    if not report.rows:
        raise ShardError(f"{path}: the shard has no trajectory")
    report.size_bytes = path.stat().st_size
    for analyses in by_kind.values():
        marked = sum(a.forking_tokens + a.reflection_tokens for a in analyses)
        share = marked / max(1, sum(sum(a.mask) for a in analyses))
        settings = MarkSettings(share, reflection_window)
        report.tokens.append(token_report(analyses, settings, stage=row.index.stage, step=row.index.step))
    return report


def _grade_of(row: TrajectoryRow) -> str:
    grade = row.index.grade
    return ("right" if grade.reward > 0 else "wrong") if isinstance(grade, Graded) else "ungraded"


def format_report(report: ShardReport) -> str:
    """Plain text, a table after the other."""
    steps = sorted(report.steps)
    where = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    head = (
        f"{report.path}: {report.rows} trajectories of {where}, {report.response_tokens:,} response tokens, "
        f"{report.size_bytes:,} bytes ({report.bytes_per_token:.1f} a response token)\n"
    )
    tables = [_decisions(report), _outcomes(report)]
    for tokens in report.tokens:
        tables += _token_tables(tokens)
    return "\n".join([head, *filter(None, tables)])


def _decisions(report: ShardReport) -> str:
    rows = [[name, str(n), percent(n, report.rows)] for name, n in report.decisions.most_common()]
    rows.append(["generated", str(report.rows), ""])
    return format_table("Decisions of the ledger", ["decision", "rollouts", "share"], rows)


def _outcomes(report: ShardReport) -> str:
    rows = [
        [grade, str(o.trajectories), f"{o.turns / o.trajectories:.2f}", f"{o.tokens / o.trajectories:.1f}"]
        + [str(o.calls), str(o.errors), percent(o.errors, o.calls)]
        for grade, o in report.by_grade.items()
        if o.trajectories
    ]
    headers = ["grade", "trajectories", "turns", "tokens", "tool calls", "errors", "error ratio"]
    return format_table("Tool use by grade (turns and tokens: means)", headers, rows)


def _token_tables(report: TokenReport) -> list[str]:
    n, kind = report.policy_tokens, _KINDS[report.entropy_kind]
    shares = [
        ["forking", str(report.forking_tokens), percent(report.forking_tokens, n)],
        ["reflection", str(report.reflection_tokens), percent(report.reflection_tokens, n)],
        ["policy tokens", str(n), ""],
    ]
    return [
        format_table(f"Marks (entropy: {kind})", ["mark", "tokens", "share"], shares),
        _class_table(report),
        _window_table(report),
        _top_table("Forking tokens", report.top_forking, report.top_forking_by_entropy),
        _top_table("Reflection tokens", report.top_reflection, report.top_reflection_by_entropy),
        *(_top_table(f"Marked tokens {_PLACES[p]}", w.top, w.top_by_entropy) for p, w in report.windows.items()),
    ]


def _class_table(report: TokenReport) -> str:
    total = sum(report.tokens_by_class.values())
    rows = []
    for kind in TokenClass:
        if count := report.tokens_by_class.get(kind, 0):
            entropy = report.mean_entropy_by_class.get(kind)
            rows.append([kind.value, str(count), percent(count, total), "-" if entropy is None else f"{entropy:.3f}"])
    return format_table("Response tokens by class", ["class", "tokens", "share", "mean entropy, nats"], rows)


def _window_table(report: TokenReport) -> str:
    rows = [
        [_PLACES[place], str(w.responses), str(w.tokens), f"{w.mean_entropy:.3f}"]
        + [percent(w.forking_tokens, w.tokens), percent(w.reflection_tokens, w.tokens)]
        for place, w in report.windows.items()
    ]
    headers = ["window", "responses", "tokens", "mean entropy, nats", "forking", "reflection"]
    return format_table(f"Beside tool responses, {report.reflection_window} policy tokens at most", headers, rows)


def _top_table(title: str, by_count: Sequence[TokenCount], by_entropy: Sequence[TokenCount]) -> str:
    left, right = by_count[:_SHOWN], by_entropy[:_SHOWN]
    rows = [
        [str(i + 1), *_token_cells(left[i : i + 1]), *_token_cells(right[i : i + 1])]
        for i in range(max(len(left), len(right)))
    ]
    headers = ["", "by count", "n", "nats", "by entropy", "n", "nats"]
    return format_table(title, headers, rows)


def _token_cells(one: Iterable[TokenCount]) -> list[str]:
    return next(([repr(t.text), str(t.count), f"{t.mean_entropy:.3f}"] for t in one), ["", "", ""])
