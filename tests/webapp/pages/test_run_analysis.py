"""Ledger totals, error ratios and token analysis of a run: what the pages say of known numbers, and of none."""

import json
import re

import pytest
from django.urls import reverse
from django.utils import timezone

from contracts.events import TokenCount, TokenReport, TokenWindow, WindowReport
from contracts.metrics import METRICS
from contracts.trajectory import EntropyKind, TokenClass
from tests.webapp.pages.conftest import HOSTILE, World
from webapp.pages.charts import CHART_METRICS, charts_of, ledger_series
from webapp.pages.queries import ledger
from webapp.runs.models import MetricPoint, RunState, TokenReportRow

pytestmark = pytest.mark.db

STEPS = (
    {"kept_right": 6, "kept_wrong": 2, "not_selected": 8, "equal_reward": 16, "ungraded": 0},
    {"kept_right": 5, "kept_wrong": 3, "not_selected": 7, "equal_reward": 8, "ungraded": 9},
)


def report_steps(world: World) -> None:
    for step, counts in enumerate(STEPS, start=1):
        for name, value in counts.items():
            MetricPoint.objects.create(
                run=world.run,
                name=f"ledger/{name}",
                stage=2,
                step=step,
                value=value,
                attempt=1,
                revision=8,
                time=timezone.now(),
            )


def page(world: World, name: str) -> str:
    return world.client(world.viewer).get(reverse(f"pages:{name}", args=[world.run.pk])).content.decode()


def words(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def test_the_ledger_adds_up_over_the_steps(world: World) -> None:
    report_steps(world)
    found = ledger(world.run)
    assert found is not None
    assert (found.generated, found.selected, found.dropped, found.ungraded) == (64, 16, 48, 9)
    assert found.selected + found.dropped == found.generated
    assert [(p.label, p.rollouts) for p in found.kept_parts] == [("kept right", 11), ("kept wrong", 5)]
    assert [(p.rollouts, p.share) for p in found.dropped_parts] == [(15, 15 / 64), (24, 24 / 64), (9, 9 / 64)]
    assert found.stored is None  # it still runs


def test_the_overview_shows_the_totals(world: World) -> None:
    report_steps(world)
    shown = words(page(world, "run"))
    assert "64 generated = 16 selected" in shown
    assert "+ 48 dropped" in shown and "not drawn 15 23.4 %" in shown


def test_a_run_that_ended_says_whether_as_many_rollouts_are_stored(world: World) -> None:
    report_steps(world)
    world.run.state = RunState.FINISHED
    world.run.save()
    assert "0 rollouts are stored" in words(page(world, "run"))


def test_without_a_step_there_are_no_totals(world: World) -> None:
    assert ledger(world.run) is None
    assert "ledger-totals" not in page(world, "run")


def test_every_decision_of_the_ledger_has_a_part() -> None:
    assert {s.metric for s in ledger_series()} == {n for n in METRICS if n.startswith("ledger/")}


def test_charts_of_the_tokens_tab() -> None:
    assert [c.key for c in charts_of([{"kind": "rl"}], "tokens")] == ["classes", "beside", "marks"]
    assert charts_of([{"kind": "evaluate"}], "tokens") == []


def test_staleness_has_a_chart_where_rollouts_begin_early() -> None:
    keys = [[c.key for c in charts_of([{"kind": "rl"} | more])] for more in ({}, {"staleness": 0}, {"staleness": 1})]
    assert ["staleness" in found for found in keys] == [False, False, True]
    assert {"tools/error_ratio_right", "tools/error_ratio_wrong", "entropy/answer"} <= set(CHART_METRICS)


def report() -> TokenReport:
    top = [TokenCount(text=HOSTILE, count=4, mean_entropy=1.25), TokenCount(text=" so", count=2, mean_entropy=0.5)]
    window = WindowReport(
        responses=3, tokens=40, mean_entropy=0.875, forking_tokens=2, reflection_tokens=10, top=top, top_by_entropy=top
    )
    return TokenReport(
        stage=2,
        step=2,
        forking_share=0.2,
        reflection_window=24,
        policy_tokens=200,
        forking_tokens=30,
        reflection_tokens=10,
        mean_entropy_by_class={TokenClass.REASONING: 0.5, TokenClass.COMMENT: 0.125},
        tokens_by_class={TokenClass.REASONING: 150, TokenClass.COMMENT: 50},
        top_forking=top,
        top_reflection=[],
        top_forking_by_entropy=top[::-1],
        top_reflection_by_entropy=[],
        windows={TokenWindow.AFTER_ERROR: window},
    )


def store(world: World, found: TokenReport) -> None:
    TokenReportRow.objects.create(run=world.run, attempt=1, stage=2, step=2, report=json.loads(found.model_dump_json()))


def test_the_tokens_tab_shows_shares_windows_and_both_rankings(world: World) -> None:
    store(world, report())
    html = page(world, "run_tokens")
    shown = words(html)
    assert "200 policy tokens: 30 forking (15.0 %), 10 reflection (5.0 %)" in shown
    assert "by count" in shown and "by entropy" in shown
    assert "0.875 5.0 % 25.0 %" in shown  # the window after an error
    assert "lower bound" not in shown
    assert "<script>alert" not in html and 'data-chart="beside"' in html and 'id="chart-data"' in html


def test_a_bound_is_labelled(world: World) -> None:
    store(world, report().model_copy(update={"entropy_kind": EntropyKind.TOPK_BOUND}))
    assert "entropy: lower bound from the top k" in words(page(world, "run_tokens"))


def test_a_report_of_an_earlier_version_is_shown(reported: World) -> None:
    shown = words(page(reported, "run_tokens"))
    assert "Top forking tokens" in shown and "Beside tool responses" not in shown and "policy tokens:" not in shown


def test_without_a_report_the_tab_says_when_there_is_one(world: World) -> None:
    html = page(world, "run_tokens")
    assert "No token report yet" in html and "chart-data" not in html
