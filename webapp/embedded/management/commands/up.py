"""`manage.py up`: the whole of Astrolabe on one machine, under one supervisor."""

import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from webapp.embedded import postgres, services
from webapp.embedded.postgres import PostgresServer
from webapp.embedded.redis import RedisMissing
from webapp.embedded.supervisor import StartFailed, Supervisor


class Command(BaseCommand):
    help = "Start PostgreSQL, Redis, the sandbox node, Ray, the worker and the web app; Ctrl-C stops them all."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default=os.environ.get("ASTROLABE_HOST", "127.0.0.1"))
        parser.add_argument("--port", type=int, default=int(os.environ.get("ASTROLABE_PORT", services.WEB_PORT)))
        parser.add_argument("--recipe", default="recipes/demo.yaml", help="what the first start launches")
        parser.add_argument("--no-demo", action="store_true", help="launch nothing")

    def handle(self, *, host: str, port: int, recipe: str, no_demo: bool, **_: object) -> None:
        began = time.monotonic()
        var = Path(settings.ASTROLABE_VAR)
        var.mkdir(parents=True, exist_ok=True)
        with _only_one(var / "supervisor.lock"):
            try:
                ports = services.choose_ports(port, host)
            except services.PortTaken as error:
                raise CommandError(str(error)) from None
            self._phase("starting PostgreSQL")
            with postgres.running(var / "postgres") as server:
                os.environ.update(services.environment(var, ports, server.get_uri(postgres.DATABASE)))
                try:
                    self._run_children(server, ports, host=host, began=began, recipe=None if no_demo else recipe)
                except (StartFailed, RedisMissing) as error:
                    raise CommandError(str(error)) from None
                self._phase("stopping PostgreSQL")
        self._phase("stopped; the data is kept, `make run` goes on with it")

    def _run_children(
        self, server: PostgresServer, ports: services.Ports, *, host: str, began: float, recipe: str | None
    ) -> None:
        """Everything between the database's start and its stop."""
        var = Path(os.environ["ASTROLABE_VAR"])
        ray_temp = services.make_ray_temp()
        supervisor = Supervisor(
            services.embedded_services(var, ports, host=host, ray_temp=ray_temp), instance=secrets.token_hex(8)
        )
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, supervisor.request_stop)
        try:
            self._phase("migrating the database, looking for the demo project")
            _manage("bootstrap", "--migrate")

            def on_ready(name: str) -> None:
                if name == "web":
                    self._phase(
                        f"Astrolabe answers at http://{host}:{ports.web}/ after {time.monotonic() - began:.0f} s"
                    )
                    self._phase(f"sign in as 'demo'; the password is in {var / 'demo_password'}; Ctrl-C stops it all")

            supervisor.start_all(on_ready)
            if recipe and not supervisor.is_stopping:
                _manage("bootstrap", "--launch", recipe)
            if not supervisor.is_stopping:
                self._phase(f"everything runs after {time.monotonic() - began:.0f} s")

            def keep_database() -> None:
                if postgres.revive(server):
                    supervisor.say("PostgreSQL had died and was started again")

            supervisor.run(on_tick=keep_database)
        finally:
            self._phase("stopping everything")
            supervisor.stop_all()
            shutil.rmtree(ray_temp, ignore_errors=True)

    def _phase(self, text: str) -> None:
        self.stdout.write(f"==> {text}")
        self.stdout.flush()


def _manage(*arguments: str) -> None:
    """A management command in a process of its own: it reads the environment made above."""
    done = subprocess.run([sys.executable, str(settings.BASE_DIR / "manage.py"), *arguments], check=False)
    if done.returncode:
        raise StartFailed(f"manage.py {arguments[0]} failed with code {done.returncode}; its lines are above")


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Hold the lock of this data folder, or say who does."""
    with path.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise CommandError(f"Astrolabe already runs on this data folder (process {lock.read().strip()})") from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield
