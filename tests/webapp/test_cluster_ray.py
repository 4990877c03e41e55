"""The cluster page over a real Ray cluster with a real sandbox node that only Ray knows of."""

import json
import os
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from tests.sandbox.ray_cluster import running_cluster
from webapp.cluster.queries import NodeState, sandbox_nodes
from webapp.cluster.ray_state import look_at_ray

pytestmark = [pytest.mark.db, pytest.mark.runsc, pytest.mark.integration]
# In a process of its own: Ray reads its token once in the life of a process.
LOOK = (
    "import json, sys, django; django.setup();"
    "from webapp.cluster.ray_state import ACTORS, MACHINES; from webapp.runs.launcher import RayLauncher;"
    "ray = RayLauncher(sys.argv[1]); print(json.dumps({end: ray.look(end) for end in (ACTORS, MACHINES)}))"
)


class Answers:
    """What the real dashboard said."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers

    def look(self, endpoint: str) -> dict[str, Any]:
        return self.answers[endpoint]


def test_a_node_that_only_ray_knows_is_on_the_cluster_page_with_its_state_and_machine(
    db: None, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_cluster(with_dashboard=True) as cluster:
        (url,) = cluster.start_agents()
        said = cluster.run("-c", LOOK, cluster.dashboard, DJANGO_SETTINGS_MODULE=os.environ["DJANGO_SETTINGS_MODULE"])
        answers = Answers(json.loads(said.splitlines()[-1]))
        monkeypatch.setattr("webapp.cluster.ray_state.get_launcher", lambda: answers)
        settings.SANDBOX_URLS, settings.SANDBOX_URLS_OF_RUNS = ["http://127.0.0.1:9"], ""

        ray = look_at_ray()
        (node,) = sandbox_nodes(ray)  # and not the one of this machine, which no run would use
        assert (node.url, node.is_used, node.agent.state) == (url, True, "ALIVE")
        assert node.state is NodeState.READY and node.health.boxes == 2 and node.health.isolated
        (machine,) = ray.machines
        assert machine.is_alive and machine.is_head and machine.has_sandbox and machine.memory_total > 0
        assert machine.address == node.agent.machine and machine.heard_at is not None

        client = Client()
        client.force_login(User.objects.create_user("reader"))
        page = client.get("/cluster/").content.decode()
        assert url in page and f"Ray agent on {machine.address}" in page and "0 of 2 boxes" in page
