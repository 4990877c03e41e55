"""The timeline of a step: areas and bars in the right places, and a page that survives what it is given."""

import pytest
from django.urls import reverse

from contracts.events import EngineLine, RolloutSpans, Span, SpanKind, StepTimeline
from tests.webapp.pages.conftest import HOSTILE, World
from webapp.pages import gantt
from webapp.runs.models import TimelineRow


def report(step: int = 3, name: str = "p1") -> StepTimeline:
    return StepTimeline(
        stage=2,
        step=step,
        seconds=10.0,
        bins=2,
        phases=[
            Span(kind=SpanKind.GENERATE, start_s=0, end_s=6),
            Span(kind=SpanKind.LEARN, start_s=6, end_s=9),
        ],
        in_flight={SpanKind.GENERATE: [8.0, 4.0], SpanKind.TOOL: [0.0, 2.0]},
        engines=[
            EngineLine(
                name="engine 0", kv_capacity=1000, kv_used=[500, 250], running=[8, 4], waiting=[0, 0],
                preemptions=1, tokens=640,
            ),
            EngineLine(
                name="engine 1", kv_capacity=0, kv_used=[0, 0], running=[2, 0], waiting=[0, 0], preemptions=0, tokens=0
            ),
        ],
        slowest=[
            RolloutSpans(
                prompt_id=name,
                sample=5,
                spans=[Span(kind=SpanKind.GENERATE, start_s=0, end_s=4), Span(kind=SpanKind.TOOL, start_s=4, end_s=5)],
            )
        ],
    )  # fmt: skip


STORED = report().model_dump(mode="json")


def test_phases_are_bars_in_thousandths_and_the_rest_is_told() -> None:
    lane = gantt.phases(STORED)
    assert [(bar.kind, bar.x, bar.width) for bar in lane.bars] == [("generate", 0, 600), ("learn", 600, 300)]
    assert lane.note == "10.0 s, 1.0 s of it other"


def test_areas_are_steps_to_their_own_peak() -> None:
    generate, tool = gantt.in_flight(STORED)
    assert (generate.note, tool.note) == ("mean 6.0, peak 8", "mean 1.0, peak 2")
    assert generate.line == "0.0,20.0 0.0,0.0 500.0,0.0 500.0,10.0 1000.0,10.0 1000.0,20.0"


def test_engines_are_drawn_to_one_scale() -> None:
    first, second = gantt.engines(STORED)
    assert first["per_s"] == 64.0
    kv, running, _ = first["lanes"]
    assert kv.note == "peak 50% of 1\u202f000 tokens"
    assert "500.0,10.0" in kv.line  # half of its capacity
    assert second["lanes"][0].line == "" and second["lanes"][0].note == "no KV capacity told"
    assert second["lanes"][1].line.startswith("0.0,20.0 0.0,15.0 500.0,15.0")  # 2 of 8


def test_the_slowest_rollouts_are_rows() -> None:
    (lane,) = gantt.slowest(STORED)
    assert (lane.name, lane.note) == ("p1 · 5", "ends at 5.0 s")
    assert [(bar.kind, bar.x, bar.width) for bar in lane.bars] == [("generate", 0, 400), ("tool", 400, 100)]


def test_only_kinds_that_occur_are_in_the_legend() -> None:
    assert [kind for kind, _ in gantt.kinds(STORED)] == ["generate", "tool", "learn"]


@pytest.mark.db
def test_the_page_shows_the_newest_step_and_leads_to_others(world: World) -> None:
    for step in (3, 4):
        TimelineRow.objects.create(
            run=world.run, attempt=1, stage=2, step=step, report=report(step).model_dump(mode="json")
        )
    url = reverse("pages:run_timeline", args=[world.run.pk])
    html = world.client(world.viewer).get(url).content.decode()
    assert "<h2>Step 4</h2>" in html and 'href="?step=3"' in html
    assert 'x="600' in html and "1 preemption<" in html
    assert "<h2>Step 3</h2>" in world.client(world.viewer).get(f"{url}?step=3").content.decode()


@pytest.mark.db
def test_names_are_hostile(world: World) -> None:
    stored = report(name=HOSTILE).model_dump(mode="json")
    TimelineRow.objects.create(run=world.run, attempt=1, stage=2, step=3, report=stored)
    html = world.client(world.viewer).get(reverse("pages:run_timeline", args=[world.run.pk])).content.decode()
    assert HOSTILE not in html


@pytest.mark.db
def test_a_run_without_steps_says_what_will_come(world: World) -> None:
    html = world.client(world.viewer).get(reverse("pages:run_timeline", args=[world.run.pk])).content.decode()
    assert "No timeline yet" in html


@pytest.mark.db
def test_a_stranger_sees_nothing(world: World) -> None:
    assert world.client(world.stranger).get(reverse("pages:run_timeline", args=[world.run.pk])).status_code == 404
