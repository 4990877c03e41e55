"""Pictures of a running Astrolabe for the README: `make screenshots` while `make run` runs.

Signs in as the demo user and takes the newest demo run's page, one of its trajectories and its board.
"""

import argparse
import re
import shutil
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

FOLDER = Path(__file__).parent / "screenshots"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
DRAWN_MS = 2500  # charts draw at most four times a second, once they are in view


def sign_in(page: Page, url: str, password: str) -> None:
    page.goto(url)
    page.get_by_label("Username").fill("demo")
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{url}/")


def take(page: Page, name: str) -> None:
    page.wait_for_timeout(DRAWN_MS)
    page.screenshot(path=FOLDER / f"{name}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--password-file", type=Path, default=Path("var/demo_password"))
    parser.add_argument("--scheme", choices=("light", "dark"), default="light")
    options = parser.parse_args()
    executable = next(found for name in CHROMIUM if (found := shutil.which(name)))
    suffix = "" if options.scheme == "light" else "_dark"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        context = browser.new_context(viewport={"width": 1440, "height": 1000}, color_scheme=options.scheme)
        page = context.new_page()
        sign_in(page, options.url, options.password_file.read_text().strip())
        take(page, f"home{suffix}")
        page.goto(f"{options.url}/runs/?q=demo")
        page.get_by_role("link", name="demo", exact=True).first.click()
        page.wait_for_url(re.compile("/runs/[0-9a-f-]{36}/"))
        take(page, f"run{suffix}")
        page.get_by_role("link", name="Steps", exact=True).click()
        page.get_by_role("link", name=re.compile(r"^step \d+$")).first.click()
        take(page, f"step{suffix}")
        page.locator("a[href*='group']").first.click()
        take(page, f"group{suffix}")
        page.get_by_role("link", name=re.compile(r"^rollout \d+$")).first.click()
        take(page, f"trajectory{suffix}")
        page.goto(f"{options.url}/leaderboards/")
        page.locator("main").get_by_role("link", name="Demo", exact=True).first.click()
        take(page, f"board{suffix}")
        browser.close()


if __name__ == "__main__":
    main()
