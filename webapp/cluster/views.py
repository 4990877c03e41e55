from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from webapp.cluster.queries import sandbox_nodes


@login_required
@require_safe
def notice(request: HttpRequest) -> HttpResponse:
    """What is wrong with the sandbox, in red on every page; nothing when nothing is."""
    nodes = sandbox_nodes()
    return render(
        request,
        "cluster/_notice.html",
        {
            "silent": [n for n in nodes if n.health is None],
            "unisolated": [n for n in nodes if n.health is not None and not n.health.isolated],
        },
    )
