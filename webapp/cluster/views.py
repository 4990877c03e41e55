from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from webapp.cluster.queries import NodeState, engines_of_runs, sandbox_nodes
from webapp.cluster.ray_state import look_at_ray

STATE_LOOKS = {  # shape, and the run state whose colour it has
    NodeState.READY: ("✓", "finished"),
    NodeState.BUSY: ("▶", "running"),
    NodeState.STARTING: ("◔", "starting"),
    NodeState.SILENT: ("⚡", "lost"),
    NodeState.DEAD: ("✕", "failed"),
}


@login_required
@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """Sandbox nodes, machines of the Ray cluster, engines of the user's active runs; asked anew every few seconds."""
    ray = look_at_ray()
    nodes = sandbox_nodes(ray)
    context = {
        "place": "cluster",
        "ray": ray,
        "ray_url": settings.RAY_DASHBOARD_URL,
        "nodes": [(node, *STATE_LOOKS[node.state]) for node in nodes],
        "answering": sum(node.health is not None for node in nodes),
        "boxes": sum(node.health.boxes for node in nodes if node.health),
        "busy": sum(node.health.busy for node in nodes if node.health),
        "are_named": bool(settings.SANDBOX_URLS_OF_RUNS),
        "engines": engines_of_runs(request.user),
    }
    return render(request, "cluster/_body.html" if request.htmx else "cluster/page.html", context)


@login_required
@require_safe
def notice(request: HttpRequest) -> HttpResponse:
    """What is wrong with the sandbox, in red on every page; nothing when nothing is."""
    nodes = [node for node in sandbox_nodes(look_at_ray(with_machines=False)) if node.is_used]
    return render(
        request,
        "cluster/_notice.html",
        {
            "silent": [n for n in nodes if n.state is NodeState.SILENT],
            "unisolated": [n for n in nodes if n.health is not None and not n.health.isolated],
        },
    )
