"""The whole stack as a user starts it (`manage.py up`) on a throwaway folder, and a headless Chromium."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

START_S = 150
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


@dataclass(frozen=True)
class Stack:
    """A running Astrolabe: its address, its data folder, the demo user's password."""

    url: str
    var: Path
    password: str

    def query(self, sql: str, *parameters: object) -> list[tuple]:
        """Rows straight from its PostgreSQL: what a test proves must be in the database, not only on a page."""
        with psycopg.connect(f"postgresql://postgres@/astrolabe?host={self.var / 'postgres'}") as connection:
            return connection.execute(sql, parameters).fetchall()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_up(var: Path, port: int, *arguments: str) -> tuple[subprocess.Popen[str], list[str], threading.Event]:
    """`manage.py up` with its lines collected; the event is set once the address is printed or it ends."""
    env = {k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "REDIS_URL", "DJANGO_SETTINGS_MODULE")}
    env.update(ASTROLABE_VAR=str(var), ASTROLABE_ARTIFACTS=str(var / "artifacts"), PYTHONUNBUFFERED="1")
    process = subprocess.Popen(
        [sys.executable, "manage.py", "up", "--port", str(port), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
    )
    lines: list[str] = []
    answered = threading.Event()

    def read() -> None:
        with process.stdout:
            for line in process.stdout:
                lines.append(line)
                if "everything runs after" in line:
                    answered.set()
        answered.set()

    threading.Thread(target=read, daemon=True).start()
    return process, lines, answered


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    var = Path(tempfile.mkdtemp(prefix="astro-e2e-"))
    port = free_port()
    process, lines, answered = start_up(var, port, "--no-demo")
    try:
        assert answered.wait(START_S) and process.poll() is None, "did not start:\n" + "".join(lines)
        yield Stack(f"http://127.0.0.1:{port}", var, (var / "demo_password").read_text().strip())
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        finally:
            process.kill()
            sys.stderr.write("".join(lines[-400:]))  # pytest shows it when a test failed
            shutil.rmtree(var, ignore_errors=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One a module and no longer: Playwright keeps an event loop in this thread, which async tests cannot bear."""
    executable = next((found for name in CHROMIUM if (found := shutil.which(name))), None)
    assert executable, "chromium not found: deploy/install.sh browser installs it"
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable, args=[*quiet, "--disable-component-update", "--disable-sync"]
        )
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, stack: Stack) -> Iterator[Page]:
    """A signed-in page; a script error on any page fails the test."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.goto(stack.url)
    page.get_by_label("Username").fill("demo")
    page.get_by_label("Password").fill(stack.password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(stack.url + "/")
    yield page
    context.close()
    assert not errors, "the browser's console shows errors: " + "\n".join(errors)
