"""What a user does and must see, in a real browser against the whole stack: nothing here is faked."""

import os
import re
import signal

import psutil
import pytest
from playwright.sync_api import Page, expect

from tests.e2e.conftest import Stack

pytestmark = pytest.mark.e2e

RUN_MS = 300_000  # the smoke recipe on two busy cores
STATE_MS = 90_000


def launch(page: Page, stack: Stack, name: str) -> str:
    """Launch the smoke recipe from the form under another name; the run's id."""
    page.goto(f"{stack.url}/launch/?preset=smoke")
    page.get_by_label("Name", exact=True).first.fill(name)
    page.get_by_role("button", name="Launch", exact=True).click()
    page.wait_for_url(re.compile(r"/runs/[0-9a-f-]{36}/"))
    return re.search(r"/runs/([0-9a-f-]{36})/", page.url).group(1)


def state(page: Page, word: str, timeout_ms: int) -> None:
    """The head of the run page shows the state, without a reload."""
    expect(page.locator(".state").first).to_contain_text(word, timeout=timeout_ms)


def driver_of(run_id: str) -> psutil.Process:
    """The trainer process of the run: what `kill -9` is aimed at."""
    found = [
        p
        for p in psutil.process_iter(["cmdline"])
        if p.info["cmdline"] and "trainer" in p.info["cmdline"] and run_id in " ".join(p.info["cmdline"])
    ]
    python = [p for p in found if "python" in os.path.basename(p.info["cmdline"][0])]
    assert len(python) == 1, [p.info["cmdline"] for p in found]
    return python[0]


def test_a_user_launches_watches_and_reads(page: Page, stack: Stack):
    run_id = launch(page, stack, "first")
    page.evaluate("window.__notReloaded = true")

    # a chart point arrives over the websocket, without a reload
    expect(page.locator('[data-chart="reward"] .js-plotly-plot, [data-chart="reward"].js-plotly-plot')).to_have_count(
        1, timeout=RUN_MS
    )
    assert page.evaluate("window.__notReloaded") is True
    assert stack.query("SELECT count(*) FROM runs_metricpoint WHERE run_id = %s AND name = 'reward/mean'", run_id)[0][0]
    state(page, "finished", RUN_MS)
    assert page.evaluate("window.__notReloaded") is True

    # step -> group -> trajectory
    page.get_by_role("link", name="Steps", exact=True).click()
    page.get_by_role("link", name="step 4", exact=True).click()
    expect(page.get_by_role("heading", name=re.compile("^Step"))).to_be_visible()
    page.locator("a[href*='group']").first.click()
    expect(page.get_by_role("heading", name=re.compile("^Group"))).to_be_visible()
    assert page.locator("tbody tr").count() == 8  # the recipe's oversample
    page.get_by_role("link", name=re.compile(r"^rollout \d+$")).first.click()
    expect(page.locator("#problem")).to_be_visible()
    page.get_by_role("link", name="Tokens", exact=True).first.click()
    assert page.locator(".tokens span").count() > 10

    # the ledger adds up to what was generated: 4 steps x 4 prompts x 8 rollouts
    ledger = stack.query("SELECT sum(value) FROM runs_metricpoint WHERE run_id = %s AND name LIKE 'ledger/%%'", run_id)
    assert ledger == [(128.0,)]

    # the leaderboard has both rows
    page.goto(f"{stack.url}/leaderboards/")
    page.get_by_role("link", name="Smoke").first.click()
    expect(page.locator(f"tbody tr:has(a[href='/runs/{run_id}/'])")).to_have_count(2)


def test_a_user_stops_a_run(page: Page, stack: Stack):
    launch(page, stack, "second")
    page.on("dialog", lambda dialog: dialog.accept())
    state(page, "running", STATE_MS)
    page.get_by_role("button", name="Stop", exact=True).click()
    state(page, "cancelled", STATE_MS)


def test_kill_9_is_lost_and_resume_goes_on(page: Page, stack: Stack):
    run_id = launch(page, stack, "third")
    state(page, "running", STATE_MS)
    expect(page.locator('[data-chart="reward"] .js-plotly-plot, [data-chart="reward"].js-plotly-plot')).to_have_count(
        1, timeout=RUN_MS
    )
    os.kill(driver_of(run_id).pid, signal.SIGKILL)
    state(page, "lost", STATE_MS)
    expect(page.get_by_text("the job ended without saying how the run ended").first).to_be_visible()
    page.get_by_role("button", name="Resume", exact=True).click()
    state(page, "finished", RUN_MS)

    # every event of both attempts is there once, and the journal holds no other
    attempts = stack.query("SELECT number, outcome FROM runs_attempt WHERE run_id = %s ORDER BY number", run_id)
    assert [number for number, _ in attempts] == [1, 2]
    journal = (stack.var / "artifacts" / "runs" / run_id / "events.jsonl").read_text().splitlines()
    keys = [re.search(r'"attempt":\s*(\d+),\s*"seq":\s*(\d+)', line).groups() for line in journal]
    assert len(keys) == len(set(keys))
    steps = stack.query(
        "SELECT step, count(*) FROM runs_metricpoint WHERE run_id = %s AND name = 'reward/mean' GROUP BY step", run_id
    )
    assert sorted(steps) == [(1, 1), (2, 1), (3, 1), (4, 1)]
    rows = stack.query(
        "SELECT count(*), count(DISTINCT (stage, step, prompt_id, sample)) FROM trajectories_trajectory"
        " WHERE run_id = %s AND decision <> 'evaluation'",
        run_id,
    )
    assert rows == [(128, 128)]


PROBLEMS = """{"problem": "What is 12345 times 678?", "answer": "8369910"}
{"problem": "What is 2 to the power 40?", "answer": 1099511627776}
{"problem": "What is one half?", "answer": "1/2"}
{"problem": "What is 12345 times 678?", "answer": "8369910"}
not json
{"answer": "5"}
"""


def test_a_user_uploads_a_benchmark_and_evaluates_a_checkpoint_on_it(page: Page, stack: Stack, tmp_path):
    if not stack.query("SELECT 1 FROM runs_checkpoint LIMIT 1"):  # whatever order the tests run in
        launch(page, stack, "makes a checkpoint")
        state(page, "finished", RUN_MS)
    file = tmp_path / "mine.jsonl"
    file.write_text(PROBLEMS)
    page.goto(f"{stack.url}/datasets/upload/")
    page.locator("input[type=file]").set_input_files(file)
    page.locator("main").get_by_role("button", name=re.compile("^Upload")).click()
    page.wait_for_url(re.compile(r"/datasets/[0-9a-f-]{36}/"))
    dataset = page.url.split("/datasets/")[1].strip("/")
    assert stack.query("SELECT accepted, rejected FROM datasets_dataset WHERE id = %s", dataset) == [(2, 4)]
    page.get_by_role("link", name=re.compile("[Rr]ejected")).first.click()
    for reason in ("line 5", "not JSON", "non-integer answer", "duplicate of line 1"):
        expect(page.locator("main")).to_contain_text(re.compile(reason.replace("line 5", "5"), re.IGNORECASE))

    page.goto(f"{stack.url}/datasets/{dataset}/")
    page.get_by_role("button", name=re.compile("Register")).click()
    page.get_by_role("button", name="Evaluate", exact=True).click()
    page.wait_for_url(re.compile("/launch/"))
    page.get_by_role("button", name="Launch", exact=True).click()
    page.wait_for_url(re.compile(r"/runs/[0-9a-f-]{36}/"))
    run_id = re.search(r"/runs/([0-9a-f-]{36})/", page.url).group(1)
    state(page, "finished", RUN_MS)
    graded = stack.query("SELECT problems, samples, ungraded FROM benchmarks_evaluation WHERE run_id = %s", run_id)
    assert graded == [(2, 2 * 2, 0)]  # two problems, k = 2 as in the recipe of the run it came from
    rows = stack.query("SELECT count(*) FROM trajectories_trajectory WHERE run_id = %s", run_id)
    assert rows == [(4,)]


def test_the_cluster_page_shows_the_node_and_the_machine(page: Page, stack: Stack):
    page.goto(f"{stack.url}/cluster/")
    nodes = page.get_by_role("region", name="Sandbox nodes")
    expect(nodes.locator("tbody tr")).to_have_count(1)
    expect(nodes.locator("[data-state=ready]")).to_be_visible()
    expect(nodes.get_by_text("gvisor")).to_be_visible()
    expect(page.get_by_role("region", name="Machines").locator("tbody tr")).to_have_count(1, timeout=60_000)
    expect(page.get_by_role("alert")).to_have_count(0)


@pytest.mark.parametrize("path", ["/", "/runs/", "/launch/", "/datasets/", "/leaderboards/", "/cluster/"])
def test_a_narrow_screen_does_not_scroll_sideways(page: Page, stack: Stack, path):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(stack.url + path)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
