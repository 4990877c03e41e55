"""Every page: works, sends the anonymous away, hides from strangers, refuses other methods, escapes, has no script."""

import re
from html.parser import HTMLParser

import pytest
from django.urls import reverse

from tests.webapp.pages.conftest import World
from webapp.runs.models import RunState

GENERAL = ("home", "runs", "launch")
OF_RUN = (
    "run",
    "run_data",
    "run_head",
    "run_now",
    "run_steps",
    "run_tokens",
    "run_logs",
    "run_recipe",
    "run_checkpoints",
    "run_events",
)
VERBS = ("run_stop", "run_resume")


class Inspector(HTMLParser):
    """Collects what a strict content policy would refuse."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if tag == "script" and "src" not in named and named.get("type") != "application/json":
            self.faults.append("inline script")
        self.faults += [f"{tag} {name}" for name in named if name.startswith("on") or name.startswith("hx-on")]
        self.faults += [
            f"{tag} {n}={v}" for n, v in attrs if n in ("src", "href") and (v or "").startswith("javascript")
        ]


def faults(html: str) -> list[str]:
    inspector = Inspector()
    inspector.feed(html)
    return inspector.faults


@pytest.mark.parametrize("name", OF_RUN)
def test_page_of_a_run_works_and_escapes(reported: World, name: str) -> None:
    reply = reported.client(reported.viewer).get(reverse(f"pages:{name}", args=[reported.run.pk]))
    assert reply.status_code == 200
    body = reply.content.decode()
    if name != "run_data":
        assert "<script>alert" not in body and "<img" not in body and "\x1b" not in body
        assert faults(body) == []


@pytest.mark.parametrize("name", GENERAL)
def test_general_page_works_and_escapes(reported: World, name: str) -> None:
    reply = reported.client(reported.operator).get(reverse(f"pages:{name}"))
    assert reply.status_code == 200
    assert "<script>alert" not in reply.content.decode()
    assert faults(reply.content.decode()) == []


@pytest.mark.parametrize("name", OF_RUN + VERBS)
def test_stranger_finds_no_run(world: World, name: str) -> None:
    client = world.client(world.stranger)
    url = reverse(f"pages:{name}", args=[world.run.pk])
    assert (client.post(url) if name in VERBS else client.get(url)).status_code == 404


@pytest.mark.parametrize("name", OF_RUN + VERBS)
def test_anonymous_is_sent_to_sign_in(world: World, name: str) -> None:
    reply = world.client(None).get(reverse(f"pages:{name}", args=[world.run.pk]))
    assert reply.status_code == 302 and reply["Location"].startswith("/login/")


@pytest.mark.parametrize("name", GENERAL)
def test_anonymous_is_sent_away_from_general_pages(world: World, name: str) -> None:
    assert world.client(None).get(reverse(f"pages:{name}")).status_code == 302


@pytest.mark.parametrize("name", OF_RUN + VERBS)
def test_wrong_method_is_refused(world: World, name: str) -> None:
    client = world.client(world.operator)
    url = reverse(f"pages:{name}", args=[world.run.pk])
    assert (client.get(url) if name in VERBS else client.post(url)).status_code == 405


@pytest.mark.parametrize("name", VERBS)
def test_viewer_may_not_change_a_run(world: World, name: str) -> None:
    assert world.client(world.viewer).post(reverse(f"pages:{name}", args=[world.run.pk])).status_code == 403


def test_viewer_sees_no_verbs(world: World) -> None:
    body = world.client(world.viewer).get(reverse("pages:run", args=[world.run.pk])).content.decode()
    assert reverse("pages:run_stop", args=[world.run.pk]) not in body


def test_operator_stops_a_run(world: World) -> None:
    reply = world.client(world.operator).post(reverse("pages:run_stop", args=[world.run.pk]), follow=True)
    world.run.refresh_from_db()
    assert world.run.state == RunState.STOPPING
    assert "Stop requested" in reply.content.decode()


def test_resuming_a_running_run_is_refused_with_the_reason(world: World) -> None:
    reply = world.client(world.operator).post(reverse("pages:run_resume", args=[world.run.pk]), follow=True)
    assert "cannot be resumed" in reply.content.decode()


def test_data_is_what_came_after_a_revision(reported: World) -> None:
    client = reported.client(reported.viewer)
    url = reverse("pages:run_data", args=[reported.run.pk])
    assert client.get(url).json()["points"]["reward/mean"] == [[2, 1, 0.5], [2, 2, 0.5]]
    newer = client.get(url, {"since": "6"}).json()
    assert newer["points"]["reward/mean"] == [[2, 2, 0.5]]
    assert newer["points"]["entropy/mean"] == [[2, 2, "NaN"]]
    assert newer["revision"] == 7
    assert client.get(url, {"since": "junk"}).status_code == 200


def test_log_tail_brings_only_newer_lines(reported: World) -> None:
    url = reverse("pages:run_logs", args=[reported.run.pk])
    client = reported.client(reported.viewer)
    last = re.search(r'data-id="(\d+)"', client.get(url).content.decode())
    assert last is not None
    assert client.get(url, {"after": last[1]}).content.decode().strip() == ""
    assert "No line matches" in client.get(url, {"q": "nowhere\0", "level": "error"}).content.decode()


def test_empty_project_offers_the_demo(world: World) -> None:
    world.run.delete()
    body = world.client(world.operator).get("/").content.decode()
    assert "Launch the demo" in body and "?preset=demo" in body


def test_somebody_without_a_project_is_told_so(world: World) -> None:
    assert "not a member of a project" in world.client(world.stranger).get("/").content.decode()


def test_runs_are_filtered_by_text_and_state(world: World) -> None:
    client = world.client(world.viewer)
    assert "smoke one" in client.get("/runs/", {"q": "SMOKE", "state": "running", "sort": "name"}).content.decode()
    assert "No run matches" in client.get("/runs/", {"q": "other", "page": "junk"}).content.decode()


def test_project_is_chosen_among_ones_own(world: World) -> None:
    url = reverse("pages:choose_project")
    assert world.client(world.viewer).post(url, {"project": "olympiad"}).status_code == 302
    assert world.client(world.stranger).post(url, {"project": "olympiad"}).status_code == 404
