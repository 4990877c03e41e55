"""The JSON the pages read: works, anonymous, stranger, wrong method; numbers survive bucketing."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from tests.webapp.conftest import RECIPE, Driver
from webapp.accounts.models import Project
from webapp.runs.models import MetricPoint, Run, RunState

pytestmark = pytest.mark.django_db

SignIn = Callable[[User], Client]
READS = ["summary", "series", "logs"]
WRITES = ["stop", "resume"]


@pytest.mark.parametrize("part", READS)
def test_read_quartet(part: str, driver: Driver, victor: User, charlie: User, as_user: SignIn) -> None:
    url = f"/api/v1/runs/{driver.run.pk}/{part}"
    assert as_user(victor).get(url).status_code == 200
    assert Client().get(url).status_code == 401
    assert as_user(charlie).get(url).status_code == 404
    assert as_user(victor).delete(url).status_code == 405


@pytest.mark.parametrize("part", WRITES)
def test_write_refusals(part: str, driver: Driver, victor: User, charlie: User, as_user: SignIn) -> None:
    url = f"/api/v1/runs/{driver.run.pk}/{part}"
    assert Client().post(url).status_code == 401
    assert as_user(charlie).post(url).status_code == 404
    assert as_user(victor).post(url).status_code == 403
    assert as_user(victor).get(url).status_code == 405
    assert Run.objects.get().state == RunState.STARTING


def test_stop_then_resume(driver: Driver, alice: User, as_user: SignIn) -> None:
    client = as_user(alice)
    reply = client.post(f"/api/v1/runs/{driver.run.pk}/stop").json()
    assert (reply["state"], reply["state_reason"]) == ("stopping", "stop asked for by alice")
    assert client.post(f"/api/v1/runs/{driver.run.pk}/resume").status_code == 409
    driver.post(driver.event(kind="run_ended", outcome="cancelled"))
    assert client.post(f"/api/v1/runs/{driver.run.pk}/resume").json()["state"] == "queued"


def test_unsafe_methods_need_the_csrf_token(driver: Driver, alice: User) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(alice)
    assert client.post(f"/api/v1/runs/{driver.run.pk}/stop").status_code == 403


def test_launch(project: Project, alice: User, victor: User, charlie: User, as_user: SignIn) -> None:
    def launch(client: Client, recipe: Any) -> Any:
        return client.post("/api/v1/projects/maths/runs", recipe, content_type="application/json")

    assert launch(Client(), RECIPE).status_code == 401
    assert launch(as_user(charlie), RECIPE).status_code == 404
    assert launch(as_user(victor), RECIPE).status_code == 403
    bad = launch(as_user(alice), {**RECIPE, "seed": -1})
    assert bad.status_code == 422 and "seed" in bad.json()["errors"]
    good = launch(as_user(alice), RECIPE)
    assert good.status_code == 201
    assert Run.objects.get(pk=good.json()["id"]).created_by == alice


def test_list(project: Project, queued: Run, alice: User, charlie: User, as_user: SignIn) -> None:
    client = as_user(alice)
    url = "/api/v1/projects/maths/runs"
    assert client.get(url).json()["total"] == 1
    assert client.get(url, {"state": "failed"}).json()["total"] == 0
    assert client.get(url, {"text": "SMO"}).json()["runs"][0]["name"] == "smoke"
    assert client.get(url, {"sort": "nonsense", "page": 99}).json()["page"] == 1
    assert as_user(charlie).get(url).status_code == 404


def test_list_costs_the_same_for_many(
    project: Project, queued: Run, alice: User, as_user: SignIn, django_assert_max_num_queries: Any
) -> None:
    rows = [Run(project=project, name=f"r{i}", recipe={}, seed=1, created_by=alice) for i in range(120)]
    Run.objects.bulk_create(rows)
    client = as_user(alice)
    with django_assert_max_num_queries(8):
        body = client.get("/api/v1/projects/maths/runs", {"sort": "name"}).json()
    assert (body["total"], body["pages"], len(body["runs"])) == (121, 3, 50)


def test_summary(driver: Driver, victor: User, as_user: SignIn) -> None:
    driver.post(
        driver.started(),
        driver.event(kind="stage_started", stage=2, name="rl", stage_kind="rl", steps=4, first_step=1),
        driver.metrics(2, reward__mean=0.5, entropy__mean="NaN"),
    )
    body = as_user(victor).get(f"/api/v1/runs/{driver.run.pk}/summary").json()
    assert (body["row"]["state"], body["row"]["step"], body["row"]["stage_name"]) == ("running", 2, "rl")
    assert body["tiles"] == {"reward/mean": 0.5, "entropy/mean": "NaN"}
    assert [s["status"] for s in body["stages"]] == ["pending", "pending", "running"]
    assert body["stages"][2]["share"] == 0.5
    assert (body["can_stop"], body["can_resume"]) == (True, False)


def _series(client: Client, run: Run, **query: Any) -> Any:
    reply = client.get(f"/api/v1/runs/{run.pk}/series", query)
    assert reply.status_code == 200
    return json.loads(reply.content, parse_constant=lambda c: pytest.fail(f"{c} is no JSON"))


def test_series_carries_what_is_not_finite(driver: Driver, victor: User, as_user: SignIn) -> None:
    driver.post(driver.metrics(1, policy__loss=0.5), driver.metrics(2, policy__loss="NaN"))
    driver.post(driver.metrics(3, policy__loss="-Infinity"))
    body = _series(as_user(victor), driver.run, names="policy/loss,eval/avg")
    assert body["series"]["policy/loss"]["value"] == [0.5, "NaN", "-Infinity"]
    assert body["series"]["policy/loss"]["step"] == [1, 2, 3]
    assert body["series"]["eval/avg"]["value"] == []


def test_series_since_a_revision_is_only_what_is_new(driver: Driver, victor: User, as_user: SignIn) -> None:
    client = as_user(victor)
    driver.post(driver.metrics(1, policy__loss=0.5))
    first = _series(client, driver.run, names="policy/loss")
    assert (
        _series(client, driver.run, names="policy/loss", since=first["revision"])["series"]["policy/loss"]["step"] == []
    )
    driver.post(driver.metrics(2, policy__loss=0.25))
    second = _series(client, driver.run, names="policy/loss", since=first["revision"])
    assert second["series"]["policy/loss"]["step"] == [2]
    assert second["revision"] > first["revision"]


def test_bucketing_keeps_spikes_ends_and_holes(driver: Driver, victor: User, as_user: SignIn) -> None:
    special = {7_777: 100.0, 12_345: -100.0, 15_000: float("nan"), 19_999: float("inf")}
    MetricPoint.objects.bulk_create(
        MetricPoint(
            run=driver.run,
            name="policy/loss",
            stage=2,
            step=step,
            value=special.get(step, 0.5),
            attempt=1,
            revision=1,
            time=timezone.now(),
        )
        for step in range(1, 20_001)
    )
    got = _series(as_user(victor), driver.run, names="policy/loss", points=400)["series"]["policy/loss"]
    by_step = dict(zip(got["step"], got["value"], strict=True))
    assert got["total"] == 20_000
    assert len(by_step) == len(got["step"]) <= 500
    assert [by_step[s] for s in special] == [100.0, -100.0, "NaN", "Infinity"]
    assert {1, 20_000} <= by_step.keys()
    assert got["step"] == sorted(got["step"])


def test_logs_forward_and_back(driver: Driver, victor: User, as_user: SignIn) -> None:
    levels = ["info", "warning", "info", "error"]
    driver.post(*[driver.event(kind="log", level=level, text=f"line {i}") for i, level in enumerate(levels)])
    client = as_user(victor)

    def texts(**query: Any) -> list[str]:
        body = client.get(f"/api/v1/runs/{driver.run.pk}/logs", query).json()
        return [line["text"] for line in body["lines"]]

    first = client.get(f"/api/v1/runs/{driver.run.pk}/logs").json()["lines"]
    assert texts(limit=2) == ["line 2", "line 3"]
    assert texts(after=first[1]["id"]) == ["line 2", "line 3"]
    assert texts(before=first[2]["id"], limit=1) == ["line 1"]
    assert texts(level="error") == ["line 3"]


def test_docs_are_for_members_and_load_nothing_from_elsewhere(alice: User, as_user: SignIn) -> None:
    assert Client().get("/api/docs").status_code == 302
    page = as_user(alice).get("/api/docs").content.decode()
    assert "cdn" not in page and "http" not in page.replace("http://testserver", "")
    assert Client().get("/api/openapi.json").status_code in (200, 302)
