"""Home, the table of runs, and the choice of a project."""

from urllib.parse import urlencode

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from webapp.accounts.access import get_project, has_role
from webapp.accounts.models import Role
from webapp.pages import queries
from webapp.pages.current import SESSION_KEY, current_project
from webapp.runs.models import RunState
from webapp.runs.queries import attention_runs, newest_results, running_runs, runs_page

COLUMNS = (("name", "run"), ("state", "state"), ("created", "launched"), ("step", "step"))


@login_required
@require_GET
def home(request: HttpRequest) -> HttpResponse:
    project = current_project(request)
    if project is None:
        return render(request, "pages/no_project.html", {"place": "home"})
    context = {
        "project": project,
        "place": "home",
        "running": queries.cards(running_runs(project)),
        "attention": attention_runs(project),
        "finished": queries.cards(newest_results(project), sparks=False),
        "may_launch": has_role(request.user, project, Role.OPERATOR),
    }
    return render(request, "pages/_home_body.html" if request.htmx else "pages/home.html", context)


@login_required
@require_GET
def runs(request: HttpRequest) -> HttpResponse:
    project = current_project(request)
    if project is None:
        return render(request, "pages/no_project.html", {"place": "runs"})
    state = request.GET.get("state", "")
    text = request.GET.get("q", "")[:100].replace("\x00", "")
    sort = request.GET.get("sort", "-created")
    number = request.GET.get("page", "1")
    page = runs_page(
        project,
        state=state,
        text=text,
        sort=sort,
        page=min(max(int(number), 1), 10_000) if number.isdigit() and len(number) < 6 else 1,
    )
    kept = {k: v for k, v in (("q", text), ("state", state)) if v}
    context = {
        "project": project,
        "place": "runs",
        "page": page,
        "state": state,
        "text": text,
        "sort": sort,
        "states": RunState.values,
        "columns": [_column(key, label, sort, kept) for key, label in COLUMNS],
        "here": urlencode(kept | {"sort": sort, "page": page.page}),
        "query": urlencode(kept | {"sort": sort}),
    }
    return render(request, "pages/_runs_table.html" if request.htmx else "pages/runs.html", context)


def _column(key: str, label: str, sort: str, kept: dict[str, str]) -> dict[str, str]:
    down = sort == f"-{key}"
    order = {key: "ascending", f"-{key}": "descending"}.get(sort, "")
    return {"label": label, "order": order, "query": urlencode(kept | {"sort": key if down else f"-{key}"})}


@login_required
@require_POST
def choose_project(request: HttpRequest) -> HttpResponse:
    request.session[SESSION_KEY] = get_project(request.user, request.POST.get("project", "")).slug
    return redirect("pages:home")
