"""Which project a page is about: the one the user chose last, else the first they are a member of."""

from django.http import Http404, HttpRequest

from webapp.accounts.access import projects_of
from webapp.accounts.models import Project

SESSION_KEY = "project"


def current_project(request: HttpRequest) -> Project | None:
    projects = projects_of(request.user)
    chosen = request.session.get(SESSION_KEY)
    return (projects.filter(slug=chosen).first() if chosen else None) or projects.first()


def require_project(request: HttpRequest) -> Project:
    project = current_project(request)
    if project is None:
        raise Http404("you are not a member of any project yet")
    return project
