"""Every page by axe, in light and dark: its rules of WCAG 2.1 A and AA, and its best practices."""

import re
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.e2e.conftest import Stack
from tests.e2e.test_whole import RUN_MS, launch, state

pytestmark = pytest.mark.e2e

RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"], "resultTypes": ["violations"]}
TABS = ("", "curation/", "steps/", "tokens/", "timeline/", "logs/", "recipe/", "checkpoints/", "events/")


def addresses(page: Page, stack: Stack) -> Iterator[str]:
    """Of every kind of page, those of a run that has finished among them."""
    yield from (
        "/",
        "/runs/",
        "/launch/?preset=smoke",
        "/datasets/",
        "/datasets/upload/",
        "/leaderboards/",
        "/cluster/",
    )
    if not (found := stack.query("SELECT id FROM runs_run WHERE state = 'finished' LIMIT 1")):
        launch(page, stack, "is looked at")
        state(page, "finished", RUN_MS)
        found = stack.query("SELECT id FROM runs_run WHERE state = 'finished' LIMIT 1")
    run = f"/runs/{found[0][0]}/"
    yield from (run + tab for tab in TABS)
    page.goto(f"{stack.url}/leaderboards/")
    yield first_link(page, "^/p/.+/leaderboards/.+/$")
    page.goto(f"{stack.url}{run}steps/")
    for link in (rf"^{run}steps/\d+/$", "/group/", r"^/t/\d+/$"):
        yield (inner := first_link(page, link))
        page.goto(stack.url + inner)


def first_link(page: Page, pattern: str) -> str:
    found = page.eval_on_selector_all("a[href]", "links => links.map(link => link.getAttribute('href'))")
    return next(href for href in found if re.search(pattern, href))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_can_be_used_by_everybody(page: Page, stack: Stack, scheme: str):
    page.emulate_media(color_scheme=scheme)
    found = {}
    for address in list(addresses(page, stack)):
        page.goto(stack.url + address, wait_until="networkidle")
        answer = Axe().run(page, options=RULES)
        faults = {v["id"]: [node["html"][:200] for node in v["nodes"]] for v in answer.response["violations"]}
        if faults:
            found[address] = faults
    assert found == {}
