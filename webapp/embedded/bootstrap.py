"""The first team, user and project, and the one demo run: made once, found again later."""

import secrets
from dataclasses import dataclass
from pathlib import Path

import yaml
from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction

from webapp.accounts.models import Membership, Project, Team
from webapp.runs.actions import create_run
from webapp.runs.models import Run

USER_NAME = "demo"
PROJECT_SLUG = "demo"


@dataclass(frozen=True)
class Bootstrapped:
    """`password` is None when the user was there already (it is kept in the password file)."""

    user: User
    project: Project
    password: str | None
    password_file: Path


@transaction.atomic
def ensure_demo_project() -> Bootstrapped:
    """Create the demo team, user and project where they are missing."""
    password_file = Path(settings.ASTROLABE_VAR) / "demo_password"
    team, _ = Team.objects.get_or_create(name="Demo team")
    project, _ = Project.objects.get_or_create(slug=PROJECT_SLUG, defaults={"team": team, "name": "Demo"})
    user = User.objects.filter(username=USER_NAME).first()
    password = None
    if user is None:
        password = secrets.token_urlsafe(12)
        user = User.objects.create_user(USER_NAME, password=password)
        password_file.touch(mode=0o600)
        password_file.write_text(password + "\n")
    Membership.objects.get_or_create(project=project, user=user, defaults={"role": "admin"})
    return Bootstrapped(user, project, password, password_file)


def launch_demo_once(bootstrapped: Bootstrapped, recipe_file: Path) -> Run | None:
    """Queue the demo run unless this project has ever had one of its name."""
    recipe = yaml.safe_load(recipe_file.read_text())
    if Run.objects.filter(project=bootstrapped.project, name=recipe["name"]).exists():
        return None
    return create_run(bootstrapped.project, bootstrapped.user, recipe)
