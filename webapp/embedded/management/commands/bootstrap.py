"""`manage.py bootstrap`: the demo team, user and project; with --launch the demo run, once."""

from argparse import ArgumentParser
from pathlib import Path

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand

from webapp.embedded.bootstrap import ensure_demo_project, launch_demo_once


class Command(BaseCommand):
    help = "Make the demo team, user and project where they are missing."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--migrate", action="store_true", help="bring the database up to date first")
        parser.add_argument("--launch", default="", metavar="RECIPE", help="launch this recipe if it never was")

    def handle(self, *, migrate: bool, launch: str, **_: object) -> None:
        if migrate:
            call_command("migrate", verbosity=0)
        made = ensure_demo_project()
        if made.password:
            self.stdout.write(f"==> user 'demo', password '{made.password}' (kept in {made.password_file})")
        if launch:
            run = launch_demo_once(made, Path(settings.BASE_DIR) / launch)
            self.stdout.write(f"==> demo run launched: {run.pk}" if run else "==> the demo run is there already")
