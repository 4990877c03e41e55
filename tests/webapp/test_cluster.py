"""The red notice about the sandbox, against real HTTP servers that answer as a node would."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from django.contrib.auth.models import User
from django.test import Client

from contracts.execution import NodeHealth

pytestmark = pytest.mark.db
NOTICE = "/cluster/notice/"


def health(isolated: bool) -> dict:
    isolation = "gvisor/ptrace" if isolated else "none"
    counts = {"boxes": 1, "ready": 1, "busy": 0, "queued": 0, "served": 0, "replaced": 0}
    return NodeHealth(node="n", isolated=isolated, isolation=isolation, **counts).model_dump()


@pytest.fixture
def node(request) -> Iterator[str]:
    body = json.dumps(health(request.param)).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Nothing on stderr."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
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
