"""Which sandbox nodes a run uses. The only file of the trainer that imports ray, and only inside a Ray cluster."""

import logging
import os
import signal
import sys
import threading
from typing import Any

DEFAULT_SANDBOX = "http://127.0.0.1:8088"
NAMESPACE = "astrolabe"
AGENT_PREFIX = "sandbox-"
ANSWER_S = 10.0
_log = logging.getLogger("trainer.cluster")


def sandbox_urls() -> list[str]:
    """SANDBOX_URLS if it is set; else the node agents of the Ray cluster we run in; else the node of this machine."""
    return _listed_urls() or agent_urls() or [DEFAULT_SANDBOX]


def agent_urls() -> list[str]:
    """Where the cluster's node agents say that their nodes are now; [] when they are not ours to use, or unknown."""
    if _listed_urls() or not _is_in_cluster():
        return []
    import ray  # takes a second, and is not installed everywhere

    try:
        _connect(ray)
        actors = ray.util.list_named_actors(all_namespaces=True)
        names = [a["name"] for a in actors if a["namespace"] == NAMESPACE and a["name"].startswith(AGENT_PREFIX)]
        asked = [answer for name in sorted(names) for answer in _ask_agent(ray, name)]
        answered, _ = ray.wait(asked, num_returns=len(asked), timeout=ANSWER_S) if asked else ([], [])
        return [url for answer in answered for url in _read_url(ray, answer)]
    except (ray.exceptions.RayError, ConnectionError, RuntimeError) as error:
        _log.warning("Ray does not say where the sandbox nodes are: %s", error)
        return []


def _listed_urls() -> list[str]:
    return [url.strip() for url in os.environ.get("SANDBOX_URLS", "").split(",") if url.strip()]


def _ask_agent(ray: Any, name: str) -> list[Any]:
    """Its answer to come, or nothing when it died since it was listed."""
    try:
        return [ray.get_actor(name, namespace=NAMESPACE).url.remote()]
    except ValueError:
        return []


def _read_url(ray: Any, answer: Any) -> list[str]:
    try:
        return [str(ray.get(answer))]
    except ray.exceptions.RayError:
        return []


def _is_in_cluster() -> bool:
    ray = sys.modules.get("ray")
    return bool(os.environ.get("RAY_ADDRESS")) or (ray is not None and ray.is_initialized())


def _connect(ray: Any) -> None:
    if ray.is_initialized():
        return
    handler = signal.getsignal(signal.SIGTERM)
    ray.init(address="auto", namespace=NAMESPACE, log_to_driver=False, logging_level=logging.WARNING)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)  # a stop is ours to handle, not Ray's
