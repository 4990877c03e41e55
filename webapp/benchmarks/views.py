from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from webapp.accounts.access import has_role, require_role
from webapp.accounts.models import Role
from webapp.benchmarks import actions, queries
from webapp.benchmarks.forms import ShareForm
from webapp.datasets.queries import benchmark_name, benchmark_names
from webapp.pages.current import current_project


@login_required
@require_safe
def index(request: HttpRequest) -> HttpResponse:
    project = current_project(request)
    boards = queries.boards_of(project) if project else []
    context = {"project": project, "place": "leaderboards", "boards": boards}
    return render(request, "benchmarks/list.html", context)


@login_required
@require_safe
def board(request: HttpRequest, project: str, slug: str) -> HttpResponse:
    found = queries.get_board(request.user, project, slug)
    context = {
        "project": found.project,
        "place": "leaderboards",
        "board": found,
        "sections": queries.sections_of(found),
        "can_share": has_role(request.user, found.project, Role.OPERATOR),
    }
    return render(request, "benchmarks/board.html", context)


@login_required
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def shares(request: HttpRequest, project: str, slug: str) -> HttpResponse:
    """The links of a board. A new one is in the reply to the form that made it, and nowhere else."""
    found = queries.get_board(request.user, project, slug)
    form, link = ShareForm(request.POST if request.method == "POST" else None), ""
    if request.method == "POST":
        require_role(request.user, found.project, Role.OPERATOR)
        if form.is_valid():
            token = actions.create_share(
                found, by=request.user, note=form.cleaned_data["note"], days=form.cleaned_data["days"] or None
            )
            link = request.build_absolute_uri(reverse("benchmarks:shared", args=[token]))
            form = ShareForm()
    context = {
        "project": found.project,
        "place": "leaderboards",
        "board": found,
        "shares": queries.shares_of(found),
        "form": form,
        "link": link,
        "can_share": has_role(request.user, found.project, Role.OPERATOR),
    }
    return render(request, "benchmarks/shares.html", context, status=422 if form.errors else 200)


@login_required
@require_POST
def revoke(request: HttpRequest, pk: int) -> HttpResponse:
    share = queries.get_share(request.user, pk)
    actions.revoke_share(share)
    messages.success(request, "Revoked: the link opens nothing any more.")
    return redirect("benchmarks:shares", share.leaderboard.project.slug, share.leaderboard.slug)


@login_required
@require_safe
def evaluation(request: HttpRequest, pk: int) -> HttpResponse:
    found = queries.get_evaluation(request.user, pk)
    project = found.run.project
    context = {
        "project": project,
        "place": "leaderboards",
        "e": found,
        "benchmark": benchmark_name(benchmark_names(project), found.benchmark),
        "cells": queries.cells_of(found),
        "bounds": queries.bounds_of(found),
        "key": queries.key_of(found),
    }
    return render(request, "benchmarks/evaluation.html", context)


@never_cache
@require_safe
def shared(request: HttpRequest, token: str) -> HttpResponse:
    """A board for anyone who has the link: read-only, nothing of the project beside it."""
    found = queries.board_of_token(token)
    if found is None:
        response = render(request, "benchmarks/shared_gone.html", status=404)
    else:
        context = {"board": found, "sections": queries.sections_of(found), "is_shared": True}
        response = render(request, "benchmarks/shared.html", context)
    response["X-Robots-Tag"] = "noindex, nofollow"
    response["Referrer-Policy"] = "no-referrer"
    return response
