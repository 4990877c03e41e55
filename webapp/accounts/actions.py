"""Changes to teams, projects and memberships."""

from django.contrib.auth.models import User
from django.db import transaction

from webapp.accounts.models import Membership, Project, Role, Team


@transaction.atomic
def create_project(*, team_name: str, name: str, slug: str, admin: User) -> Project:
    """The project in its team (made when missing) with its first admin. Calling it again changes nothing."""
    team, _ = Team.objects.get_or_create(name=team_name)
    project, _ = Project.objects.get_or_create(slug=slug, defaults={"team": team, "name": name})
    Membership.objects.get_or_create(project=project, user=admin, defaults={"role": Role.ADMIN})
    return project


@transaction.atomic
def set_role(project: Project, user: User, role: Role) -> Membership:
    membership, _ = Membership.objects.update_or_create(project=project, user=user, defaults={"role": role})
    return membership
