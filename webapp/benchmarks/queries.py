"""Reads of evaluations, boards and shares. Rows are compared only within one section: the same problems of one
benchmark. Ranks are intervals: two rows are told apart only if their 95 % intervals do not overlap."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Count, Q
from django.http import Http404
from django.utils import timezone

from webapp.accounts.access import AnyUser, get_project, projects_of, require_role
from webapp.accounts.models import Project, Role
from webapp.benchmarks.actions import hash_token
from webapp.benchmarks.models import Evaluation, Leaderboard, Share
from webapp.datasets.queries import benchmark_name, benchmark_names
from webapp.trajectories.queries import StepKey

MAX_BOARDS = 100
MAX_ROWS = 100
MAX_PROBLEMS = 1000
RULE_OF_THREE = 3.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """The 95 % interval of avg@k, clipped to [0, 1]."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Row:
    evaluation: Evaluation
    bounds: Bounds | None
    rank_low: int | None
    rank_high: int | None

    @property
    def rank(self) -> str:
        if self.rank_low is None:
            return "–"
        return str(self.rank_low) if self.rank_low == self.rank_high else f"{self.rank_low}–{self.rank_high}"

    @property
    def url(self) -> str:
        return key_of(self.evaluation).url

    @property
    def marks(self) -> dict[str, str] | None:
        """Positions of the interval drawing, in its 160 units."""
        if self.bounds is None or self.evaluation.avg is None:
            return None
        spots = {"low": self.bounds.low, "high": self.bounds.high, "at": self.evaluation.avg}
        return {name: f"{5 + 150 * value:.1f}" for name, value in spots.items()}


@dataclass(frozen=True, slots=True)
class Cell:
    correct: int | None
    k: int
    url: str

    @property
    def level(self) -> int:
        """0 for none, 4 for all, 1 to 3 between."""
        if not self.correct:
            return 0
        share = self.correct / self.k
        return 4 if share >= 1 else 1 + min(2, int(share * 3))


@dataclass(frozen=True, slots=True)
class Section:
    """The rows that answer the same problems of one benchmark."""

    benchmark: str
    problems: int
    rows: list[Row]
    problem_ids: list[str]
    grid: list[tuple[Row, list[Cell]]]

    @property
    def has_one_protocol(self) -> bool:
        return len({protocol_of(r.evaluation) for r in self.rows}) <= 1


def protocol_of(e: Evaluation) -> tuple[int, float, int, int]:
    return e.k, e.temperature, e.max_response_tokens, e.max_turns


def key_of(e: Evaluation) -> StepKey:
    return StepKey(e.run, e.stage, e.step, True)


def boards_of(project: Project) -> list[Leaderboard]:
    rows = Leaderboard.objects.filter(project=project).annotate(
        count=Count("evaluations", distinct=True),
        links=Count("shares", filter=Q(shares__revoked_at__isnull=True), distinct=True),
    )
    return list(rows.order_by("name")[:MAX_BOARDS])


def get_board(user: AnyUser, project_slug: str, slug: str, role: Role = Role.VIEWER) -> Leaderboard:
    project = get_project(user, project_slug, role)
    found = Leaderboard.objects.filter(project=project, slug=slug).select_related("project").first()
    if found is None:
        raise Http404("no such leaderboard")
    return found


def get_evaluation(user: AnyUser, pk: int) -> Evaluation:
    found = (
        Evaluation.objects.filter(pk=pk, run__project__in=projects_of(user))
        .select_related("run__project", "leaderboard")
        .first()
    )
    if found is None:
        raise Http404("no such evaluation")
    return found


def evaluations_of_run(run_id: object) -> list[Evaluation]:
    return list(Evaluation.objects.filter(run_id=run_id).order_by("stage", "step")[:MAX_ROWS])


def shares_of(board: Leaderboard) -> list[Share]:
    return list(board.shares.select_related("created_by").order_by("-created_at")[:MAX_ROWS])


def get_share(user: AnyUser, pk: int) -> Share:
    found = (
        Share.objects.filter(pk=pk, leaderboard__project__in=projects_of(user))
        .select_related("leaderboard__project")
        .first()
    )
    if found is None:
        raise Http404("no such link")
    require_role(user, found.leaderboard.project, Role.OPERATOR)
    return found


def board_of_token(token: str) -> Leaderboard | None:
    """The board a link shows; None for a wrong, revoked or expired one. One lookup by hash."""
    share = (
        Share.objects.filter(token_hash=hash_token(token), revoked_at__isnull=True)
        .exclude(expires_at__lte=timezone.now())
        .select_related("leaderboard__project")
        .first()
    )
    return share.leaderboard if share else None


def bounds_of(e: Evaluation) -> Bounds | None:
    """None where there is no interval: nothing graded, or a single problem.

    All wrong or all right has no spread to estimate from; then the free side is the rule of three, 3 / n.
    """
    if e.avg is None or e.half_width is None or e.problems < 2:
        return None
    if e.half_width == 0 and e.avg <= 0:
        return Bounds(0.0, min(1.0, RULE_OF_THREE / e.problems))
    if e.half_width == 0 and e.avg >= 1:
        return Bounds(max(0.0, 1 - RULE_OF_THREE / e.problems), 1.0)
    return Bounds(max(0.0, e.avg - e.half_width), min(1.0, e.avg + e.half_width))


def rank(evaluations: Sequence[Evaluation]) -> list[Row]:
    """Best first. Rank from 1 + the rows surely better to the rows not surely worse."""
    ordered = sorted(evaluations, key=lambda e: (-(e.avg if e.avg is not None else -1), e.created_at, e.pk))
    bounds = [bounds_of(e) for e in ordered]
    rows = []
    for evaluation, own in zip(ordered, bounds, strict=True):
        if own is None:
            rows.append(Row(evaluation, None, None, None))
            continue
        better = sum(b is not None and b.low > own.high for b in bounds)
        worse = sum(b is not None and b.high < own.low for b in bounds)
        ranked = sum(b is not None for b in bounds)
        rows.append(Row(evaluation, own, 1 + better, ranked - worse))
    return rows


def sections_of(board: Leaderboard) -> list[Section]:
    """The newest `MAX_ROWS` evaluations of the board, by benchmark and problem set."""
    rows = board.evaluations.select_related("run").order_by("-created_at", "-pk")[:MAX_ROWS]
    names = benchmark_names(board.project)
    by_problems: dict[tuple[str, frozenset[str]], list[Evaluation]] = defaultdict(list)
    for evaluation in rows:
        by_problems[evaluation.benchmark, frozenset(evaluation.correct_by_problem)].append(evaluation)
    return [_section(benchmark_name(names, benchmark), found) for (benchmark, _), found in sorted_sections(by_problems)]


def sorted_sections(
    by_problems: dict[tuple[str, frozenset[str]], list[Evaluation]],
) -> list[tuple[tuple[str, frozenset[str]], list[Evaluation]]]:
    return sorted(by_problems.items(), key=lambda item: (item[0][0], -len(item[1]), min(e.pk for e in item[1])))


def _section(benchmark: str, evaluations: list[Evaluation]) -> Section:
    rows = rank(evaluations)
    ids = list(evaluations[0].correct_by_problem)[:MAX_PROBLEMS]
    totals = {i: sum(e.correct_by_problem.get(i, 0) / e.k for e in evaluations) for i in ids}
    hardest_last = sorted(ids, key=lambda i: (-totals[i], i))
    return Section(benchmark, len(evaluations[0].correct_by_problem), rows, hardest_last, _grid(rows, hardest_last))


def _grid(rows: list[Row], ids: list[str]) -> list[tuple[Row, list[Cell]]]:
    grid = []
    for row in rows:
        key, e = key_of(row.evaluation), row.evaluation
        grid.append((row, [Cell(e.correct_by_problem.get(i), e.k, key.group_url(i)) for i in ids]))
    return grid


def cells_of(e: Evaluation) -> list[tuple[str, Cell]]:
    key = key_of(e)
    ids = sorted(e.correct_by_problem, key=lambda i: (-e.correct_by_problem[i], i))[:MAX_PROBLEMS]
    return [(i, Cell(e.correct_by_problem[i], e.k, key.group_url(i))) for i in ids]
