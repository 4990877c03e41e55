from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from webapp.accounts.access import get_project
from webapp.pages.current import SESSION_KEY, current_project


@login_required
@require_GET
def home(request: HttpRequest) -> HttpResponse:
    return render(request, "pages/home.html", {"project": current_project(request), "place": "home"})


@login_required
@require_GET
def runs(request: HttpRequest) -> HttpResponse:
    return render(request, "pages/home.html", {"project": current_project(request), "place": "runs"})


@login_required
@require_GET
def launch(request: HttpRequest) -> HttpResponse:
    return render(request, "pages/home.html", {"project": current_project(request), "place": "launch"})


@login_required
@require_POST
def choose_project(request: HttpRequest) -> HttpResponse:
    request.session[SESSION_KEY] = get_project(request.user, request.POST.get("project", "")).slug
    return redirect("pages:home")
