"""Ports of the embedded services beside other programs, another Ray among them."""

import socket

import pytest

from webapp.embedded import services


def listen() -> socket.socket:
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    return taken


@pytest.mark.parametrize(
    ("usual", "field"),
    [("RAY_AGENT_PORT", "ray_agent"), ("RAY_DASHBOARD_PORT", "ray_dashboard"), ("SANDBOX_PORT", "sandbox")],
)
def test_a_port_that_is_taken_is_left_alone(monkeypatch: pytest.MonkeyPatch, usual: str, field: str) -> None:
    with listen() as taken, listen() as web:
        port = taken.getsockname()[1]
        monkeypatch.setattr(services, usual, port)
        free = web.getsockname()[1]
        web.close()
        assert port < getattr(services.choose_ports(free, "127.0.0.1"), field) < port + 200


def test_the_web_port_is_never_changed_silently() -> None:
    with listen() as taken, pytest.raises(services.PortTaken, match="taken by another program"):
        services.choose_ports(taken.getsockname()[1], "127.0.0.1")


def test_ray_is_told_its_agents_port(tmp_path) -> None:
    ports = services.Ports(web=1, sandbox=2, ray_dashboard=3, ray_agent=4)
    made = services.embedded_services(tmp_path, ports, host="127.0.0.1", ray_temp=tmp_path)
    command = next(service.command for service in made if service.name == "ray")
    assert command[command.index("--dashboard-agent-listen-port") + 1] == "4"
