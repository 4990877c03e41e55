"""The cluster page and the red notice, against real HTTP servers that answer as a node would, and a scripted Ray."""

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from contracts.execution import NodeHealth
from tests.webapp.pages.test_pages import faults
from webapp.cluster.queries import NodeState, sandbox_nodes
from webapp.cluster.ray_state import ACTORS, MACHINES, look_at_ray
from webapp.runs.launcher import LauncherUnavailable
from webapp.runs.models import RunState, TimelineRow

pytestmark = pytest.mark.db
NOTICE, PAGE = "/cluster/notice/", "/cluster/"
NOBODY = "http://127.0.0.1:9"


def health(isolated: bool, **counts: int) -> dict:
    isolation = "gvisor/ptrace" if isolated else "none"
    counts = {"boxes": 4, "ready": 3, "busy": 1, "queued": 7, "served": 1234, "replaced": 0} | counts
    return NodeHealth(node="n", isolated=isolated, isolation=isolation, **counts).model_dump()


def actor(number: int, url: str, state: str = "ALIVE", **more: Any) -> dict:
    """As Ray 2.60 answers /api/v0/actors."""
    name = f"sandbox-node{number}"
    return {"name": name, "repr_name": url, "state": state, "node_id": f"node{number}", "num_restarts": "0"} | more


def machine(number: int, **raylet: Any) -> dict:
    """As Ray 2.60 answers /nodes?view=summary."""
    about = {"nodeId": f"node{number}", "state": "ALIVE", "isHeadNode": number == 0, "resourcesTotal": {"sandbox": 1.0}}
    memory = [8_000_000_000, 6_000_000_000, 25.0, 2_000_000_000]
    numbers = {"cpu": 37.5, "cpus": [2, 2], "mem": memory, "now": timezone.now().timestamp()}
    return {"ip": f"10.0.0.{number}", "hostname": f"host{number}", "raylet": about | raylet} | numbers


class FakeRay:
    """What Ray's dashboard would say."""

    def __init__(self, actors: list[dict] | None = None, machines: list[dict] | None = None, error: str = "") -> None:
        self.answers = {ACTORS: {"result": {"result": actors or []}}, MACHINES: {"summary": machines or []}}
        self.error = error

    def look(self, endpoint: str) -> dict[str, Any]:
        if self.error:
            raise LauncherUnavailable(self.error)
        return self.answers[endpoint]


@pytest.fixture(autouse=True)
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    """Empty until a test says otherwise."""
    fake = FakeRay()
    monkeypatch.setattr("webapp.cluster.ray_state.get_launcher", lambda: fake)
    return fake


def answers_with(value: dict) -> type[BaseHTTPRequestHandler]:
    body = json.dumps(value).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Nothing on stderr."""

    return Handler


@pytest.fixture
def node(request) -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), answers_with(health(request.param))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def reader(db) -> Client:
    client = Client()
    client.force_login(User.objects.create_user("reader"))
    return client


@pytest.mark.parametrize("node", [True], indirect=True)
def test_an_isolated_node_is_no_news(reader, node, settings):
    settings.SANDBOX_URLS = [node]
    assert reader.get(NOTICE).content.strip() == b""


@pytest.mark.parametrize("node", [False], indirect=True)
def test_an_unisolated_node_is_shown_in_red(reader, node, settings):
    settings.SANDBOX_URLS = [node]
    page = reader.get(NOTICE).content.decode()
    assert "Code runs without isolation" in page
    assert 'class="notice bad"' in page


def test_a_silent_node_is_named(reader, settings):
    settings.SANDBOX_URLS = ["http://127.0.0.1:9"]
    assert "No answer from the sandbox" in reader.get(NOTICE).content.decode()


def test_strangers_learn_nothing(db, client):
    assert client.get(NOTICE).status_code == 302


def test_it_only_reads(reader):
    assert reader.post(NOTICE).status_code == 405


@pytest.mark.parametrize("node", [True], indirect=True)
def test_nodes_that_ray_has_are_shown_beside_named_ones_and_said_to_be_unused(reader, node, settings, ray):
    settings.SANDBOX_URLS, settings.SANDBOX_URLS_OF_RUNS = [node], node
    ray.__init__([actor(1, NOBODY)], [machine(1)])
    named, of_ray = sandbox_nodes(look_at_ray())
    assert (named.url, named.is_used, named.state, named.agent) == (node, True, NodeState.READY, None)
    assert (of_ray.url, of_ray.is_used, of_ray.state, of_ray.heard_at) == (NOBODY, False, NodeState.SILENT, None)
    page = reader.get(PAGE).content.decode()
    assert "1 of 4 boxes" in page and "1,234" in page  # its load and its calls
    assert "Ray agent on 10.0.0.1" in page and "runs do not use it" in page
    assert NOBODY not in reader.get(NOTICE).content.decode()  # no run would miss it


@pytest.mark.parametrize("node", [True], indirect=True)
def test_without_named_nodes_those_of_ray_are_used_and_this_machine_s_is_not_missed(reader, node, settings, ray):
    settings.SANDBOX_URLS, settings.SANDBOX_URLS_OF_RUNS = [NOBODY], ""
    ray.__init__([actor(1, node), actor(2, "", "PENDING_CREATION")], [machine(1), machine(2)])
    found = sandbox_nodes(look_at_ray())
    assert [(n.url, n.state, n.is_used) for n in found] == [
        (node, NodeState.READY, True),
        ("", NodeState.STARTING, True),
    ]
    assert reader.get(NOTICE).content.strip() == b""


def test_of_two_actors_of_one_name_the_living_one_counts_and_a_dead_one_is_named(settings, ray):
    settings.SANDBOX_URLS, settings.SANDBOX_URLS_OF_RUNS = [NOBODY], ""
    death = {"actor_died_error_context": {"error_message": "the machine was lost"}}
    dead = actor(2, "http://127.0.0.1:2", "DEAD", death_cause=death)
    ray.__init__([actor(1, "http://127.0.0.1:3", "DEAD"), actor(1, "http://127.0.0.1:4"), dead])
    found = {n.url: n for n in sandbox_nodes(look_at_ray())}
    assert list(found) == ["http://127.0.0.1:4", "http://127.0.0.1:2"]
    assert found["http://127.0.0.1:2"].state is NodeState.DEAD and not found["http://127.0.0.1:2"].is_used
    assert found["http://127.0.0.1:2"].agent.death == "the machine was lost"


def test_a_node_that_fell_silent_says_when_it_last_answered(settings):
    server = HTTPServer(("127.0.0.1", 0), answers_with(health(True)))
    settings.SANDBOX_URLS = [f"http://127.0.0.1:{server.server_port}"]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (heard,) = sandbox_nodes(look_at_ray())
    server.shutdown()
    server.server_close()
    (silent,) = sandbox_nodes(look_at_ray())
    assert heard.heard_at is not None and silent.health is None and silent.heard_at == heard.heard_at


@pytest.mark.parametrize(
    ("counts", "state"),
    [
        ({"ready": 4, "busy": 0}, NodeState.READY),
        ({"ready": 0, "busy": 4}, NodeState.BUSY),
        ({"ready": 0, "busy": 0}, NodeState.STARTING),
    ],
)
def test_the_state_of_a_node_is_that_of_its_boxes(settings, counts, state):
    with HTTPServer(("127.0.0.1", 0), answers_with(health(True, **counts))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        settings.SANDBOX_URLS = [f"http://127.0.0.1:{server.server_port}"]
        assert sandbox_nodes(look_at_ray())[0].state is state
        server.shutdown()


def test_the_machines_of_the_cluster_are_shown_with_their_load(reader, settings, ray):
    settings.SANDBOX_URLS = [NOBODY]
    gpu = {"name": "MI300X", "utilizationGpu": 91, "memoryUsed": 1000, "memoryTotal": 196_608}
    ray.__init__(machines=[machine(0) | {"gpus": [gpu]}, machine(1, state="DEAD", stateMessage="it <b>fell</b>")])
    page = reader.get(PAGE).content.decode()
    assert "38 % busy" in page and "2.0 GB of 8.0 GB" in page and "MI300X: 91 % busy, 1,000 of 196,608 MB" in page
    assert "it &lt;b&gt;fell&lt;/b&gt;" in page and faults(page) == []


def test_a_ray_that_does_not_answer_is_said_with_what_to_do(reader, settings, ray):
    settings.SANDBOX_URLS, settings.RAY_DASHBOARD_URL = [NOBODY], "http://head:8265"
    ray.error = "Ray does not answer at http://head:8265: refused"
    page = reader.get(PAGE).content.decode()
    assert "refused" in page and "RAY_DASHBOARD_URL" in page and "RAY_AUTH_TOKEN" in page
    assert NOBODY in page  # the rest is there all the same


def test_strange_answers_of_ray_break_no_page(reader, settings, ray):
    settings.SANDBOX_URLS = [NOBODY]
    ray.answers = {ACTORS: {"result": None}, MACHINES: {"summary": [{}, "no machine", {"raylet": None, "gpus": 3}]}}
    assert reader.get(PAGE).status_code == 200


def test_without_any_node_it_says_how_to_start_one(reader, settings):
    settings.SANDBOX_URLS = []
    assert "No sandbox node is known" in reader.get(PAGE).content.decode()


def test_engines_are_those_of_the_reader_s_own_active_runs(as_user, alice, charlie, queued, settings):
    settings.SANDBOX_URLS = [NOBODY]
    queued.state, queued.last_heartbeat_at = RunState.RUNNING, timezone.now()
    queued.save()
    line = {"name": "engine 0", "kv_capacity": 1000, "kv_used": [100.0, 300.0], "running": [4.0, 8.0], "waiting": [1.0]}
    report = {"seconds": 10.0, "engines": [line | {"preemptions": 3, "tokens": 420}]}
    for step in (1, 2):
        TimelineRow.objects.create(run=queued, attempt=1, stage=2, step=step, report=report)
    page = re.sub(r"\s+", " ", as_user(alice).get(PAGE).content.decode())
    assert "200 of 1,000 tokens" in page and ">6.0<" in page and ">42<" in page and 'data-label="step">2<' in page
    stranger = as_user(charlie).get(PAGE).content.decode()
    assert queued.name not in stranger and "No run of yours is active" in stranger


def test_the_page_is_for_those_who_signed_in_and_only_reads(reader, client, settings):
    settings.SANDBOX_URLS = [NOBODY]
    assert client.get(PAGE).status_code == 302
    assert reader.post(PAGE).status_code == 405
    assert "<html" not in reader.get(PAGE, headers={"HX-Request": "true"}).content.decode()
