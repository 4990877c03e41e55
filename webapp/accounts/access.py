"""Who may see and do what: one function per resource, used by every view, endpoint and consumer.

Not a member: `Http404`, so that a stranger cannot learn that the thing exists.
A member without the role: `PermissionDenied`.
"""

from typing import TypeAlias

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404

from webapp.accounts.models import Membership, Project, Role

AnyUser: TypeAlias = AbstractBaseUser | AnonymousUser


def projects_of(user: AnyUser) -> QuerySet[Project]:
    """The projects the user is a member of, by name."""
    if not user.is_authenticated:
        return Project.objects.none()
    return Project.objects.filter(memberships__user=user).order_by("name")


def get_project(user: AnyUser, slug: str, role: Role = Role.VIEWER) -> Project:
    project = projects_of(user).filter(slug=slug).select_related("team").first()
    if project is None:
        raise Http404("no such project")
    require_role(user, project, role)
    return project


def role_in(user: AnyUser, project: Project) -> Role | None:
    if not user.is_authenticated:
        return None
    value = Membership.objects.filter(project=project, user=user).values_list("role", flat=True).first()
    return Role(value) if value else None


def has_role(user: AnyUser, project: Project, role: Role) -> bool:
    held = role_in(user, project)
    return held is not None and held.rank >= role.rank


def require_role(user: AnyUser, project: Project, role: Role) -> None:
    held = role_in(user, project)
    if held is None:
        raise Http404("no such project")
    if held.rank < role.rank:
        raise PermissionDenied(f"this needs the role {role.value} in {project.name}; yours is {held.value}")
