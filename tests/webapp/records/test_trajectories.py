import json
import re
from html import unescape
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from django.urls import reverse

from contracts.execution import ExecutionStatus
from contracts.trajectory import ToolCallRow, ToolStatus
from tests.webapp.records.build import SHARD, make_index, make_row, rows, ungraded, write_shard, wrong
from webapp.runs.models import Run
from webapp.trajectories import blocks, queries, shards
from webapp.trajectories.actions import record_trajectories
from webapp.trajectories.endings import describe_ending
from webapp.trajectories.models import Trajectory
from webapp.trajectories.queries import StepKey


def page(client: Client, t: Trajectory, view: str = "tokens") -> str:
    reply = client.get(reverse("trajectories:trajectory", args=[t.pk]), {"view": view})
    assert reply.status_code == 200
    return reply.content.decode()


def test_recording_again_changes_nothing(run: Run) -> None:
    payload = [(5, rows(make_index(0), wrong(1))), (6, rows(ungraded(2)))]
    record_trajectories(run, 1, payload)
    before = list(Trajectory.objects.order_by("pk").values())
    record_trajectories(run, 1, payload)
    assert list(Trajectory.objects.order_by("pk").values()) == before
    assert [(r["reward"], r["ungraded_reason"]) for r in before] == [(1.0, ""), (0.0, ""), (None, "grader_crash")]


def test_a_newer_attempt_wins_and_an_older_one_never(run: Run) -> None:
    record_trajectories(run, 1, [(5, rows(make_index(0)))])
    record_trajectories(run, 2, [(5, rows(wrong(0))), (6, rows(wrong(0, row=7)))])
    record_trajectories(run, 1, [(9, rows(make_index(0)))])
    found = Trajectory.objects.get()
    assert (found.attempt, found.reward, found.row) == (2, 0.0, 7)


def test_training_and_evaluation_of_one_step_stay_apart(run: Run) -> None:
    record_trajectories(run, 1, [(1, rows(make_index(0)))])
    record_trajectories(run, 1, [(2, rows(make_index(0, decision="evaluation", shard="trajectories/e.parquet")))])
    assert Trajectory.objects.count() == 2
    for is_evaluation in (True, False):
        ledger = queries.ledger_of(StepKey(run, 2, 1, is_evaluation))
        assert ledger is not None and ledger.generated == 1


def test_hostile_strings_are_stored_clean(run: Run) -> None:
    record_trajectories(run, 1, [(1, rows(make_index(0, problem="a\0\ud800", answer="\0", prompt_id="p\0")))])
    assert Trajectory.objects.get().problem == "a\ufffd\ufffd"


def test_the_ledger_adds_up_to_what_was_generated(recorded: Run) -> None:
    ledger = queries.ledger_of(StepKey(recorded, 2, 1, False))
    assert ledger is not None
    assert sum(line.count for line in ledger.lines) == ledger.generated == 4
    assert (ledger.right, ledger.wrong, ledger.ungraded) == (1, 2, 1)


def test_step_and_group_pages(viewer: Client, recorded: Run) -> None:
    step = viewer.get(reverse("trajectories:step", args=[recorded.pk, 1]))
    assert step["Location"] == StepKey(recorded, 2, 1, False).url
    text = viewer.get(step["Location"]).content.decode()
    assert "4 generated" in text and "1 kept right" in text and "1 ungraded" in text
    group = StepKey(recorded, 2, 1, False).group_url("p1")
    text = viewer.get(group).content.decode()
    assert "rollout 1<" in text and "grader_crash" in text and "<math" in text
    assert viewer.get(f"{group}&sort=advantage").status_code == 200
    assert viewer.get(f"{group}&sort=;drop").status_code == 200
    assert viewer.get(StepKey(recorded, 2, 1, False).group_url("\0nobody")).status_code == 404
    assert viewer.get(reverse("trajectories:steps", args=[recorded.pk])).status_code == 200


def test_groups_come_in_pages_at_a_fixed_cost(viewer: Client, run: Run, django_assert_max_num_queries: object) -> None:
    many = [make_index(s, prompt_id=f"p{p:03}") for p in range(50) for s in range(4)]
    record_trajectories(run, 1, [(1, rows(*many))])
    key = StepKey(run, 2, 1, False)
    with django_assert_max_num_queries(9):
        text = viewer.get(key.url).content.decode()
    assert text.count("<tr data-href") == queries.GROUPS_PAGE and "More groups" in text
    groups, after = queries.groups_of(key, "p039")
    assert [g.prompt_id for g in groups] == [f"p{p:03}" for p in range(40, 50)] and after == ""


def test_the_trajectory_page_reads_its_row(viewer: Client, recorded: Run) -> None:
    first = Trajectory.objects.get(sample=0)
    text = page(viewer, first)
    assert 'id="tok-0"' in text and 'class="tok h7 forking"' in text and 'class="tok h9 reflection"' in text
    assert "tool response · error" in text and "41 ms · queue 6 ms" in text
    assert "Why it was kept" in text and "2G = 4 → G = 2, rule: paper" in text and "0.081" in text
    assert "&lt;script&gt;alert" in text and "&lt;b&gt;42" in text
    assert "reflection after error" in text
    assert f'data-next="/t/{Trajectory.objects.get(sample=1).pk}/?view=tokens"' in text
    assert "prompt and response as the model saw them" in page(viewer, first, "raw")
    assert "tok-0" not in page(viewer, first, "rendered")
    assert "tok-0" in page(viewer, first, "nonsense")


def test_no_page_has_an_inline_script(viewer: Client, recorded: Run) -> None:
    for view in ("tokens", "rendered", "raw"):
        text = page(viewer, Trajectory.objects.get(sample=0), view)
        assert not re.search(r"<script(?![^>]*\bsrc=)", text) and not re.search(r"\son\w+=", text)


def test_raw_text_is_a_download(viewer: Client, recorded: Run) -> None:
    reply = viewer.get(reverse("trajectories:raw", args=[Trajectory.objects.get(sample=0).pk]))
    assert reply["Content-Type"].startswith("text/plain") and reply["X-Content-Type-Options"] == "nosniff"
    assert reply["Content-Disposition"].startswith("attachment")
    assert reply.content.decode().endswith("<|im_end|>")


def test_large_texts_are_cut_with_a_way_to_all(viewer: Client, recorded: Run) -> None:
    index = make_index(0)
    write_shard(recorded, [make_row(index, problem="x" * 5_000_000, token_texts=["y" * 100_000] * 9)])
    for view in ("tokens", "rendered", "raw"):
        text = page(viewer, Trajectory.objects.get(sample=0), view)
        assert len(text) < 200_000
        assert "Show all" in text


def test_what_cannot_be_read_is_said_on_the_page(viewer: Client, recorded: Run, artifacts: Path) -> None:
    path = artifacts / "runs" / str(recorded.pk) / SHARD
    t = Trajectory.objects.get(sample=1)
    write_shard(recorded, [make_row(make_index(0))])
    assert "has no row 1" in page(viewer, t)
    write_shard(recorded, [make_row(make_index(0))] * 2)
    assert "is another rollout" in page(viewer, t)
    write_shard(recorded, [make_row(make_index(0)), make_row(wrong(1), turns="no json")])
    assert "is not a trajectory" in page(viewer, t)
    path.write_bytes(b"PAR1 no parquet")
    assert "cannot be read as Parquet" in page(viewer, t)
    path.unlink()
    assert "is not in the run&#x27;s artifact folder" in page(viewer, t)
    assert viewer.get(reverse("trajectories:raw", args=[t.pk])).status_code == 404


@pytest.mark.parametrize("shard", ["../other/x.parquet", "/etc/passwd", "link/x.parquet", "a\0b", "", "."])
def test_a_shard_path_stays_in_its_run(artifacts: Path, tmp_path: Path, shard: str) -> None:
    root = artifacts / "runs" / str(uuid4())
    root.mkdir(parents=True)
    (root / "link").symlink_to(tmp_path)
    (tmp_path / "x.parquet").write_text("secret")
    with pytest.raises(shards.ShardError):
        shards.confine(root, shard)


def test_a_path_inside_is_taken(tmp_path: Path) -> None:
    assert shards.confine(tmp_path, "a/../b.parquet") == (tmp_path / "b.parquet").resolve()


def test_blocks_follow_the_turns(recorded: Run) -> None:
    row = shards.read_row(recorded.pk, SHARD, 0)
    found = blocks.make_blocks(row, with_tokens=True)
    assert [(b.kind, b.turn, b.start, b.end) for b in found] == [
        ("assistant", 1, 0, 1),
        ("call", 1, 1, 4),
        ("response", 1, 4, 6),
        ("assistant", 2, 6, 9),
    ]
    assert [b.is_last for b in found] == [False, False, False, True]
    assert [t.position for b in found for t in b.tokens] == list(range(9))
    by_class = {c.name: (round(c.mean, 3), c.count) for c in blocks.entropy_by_class(row)}
    assert by_class["reflection after error"] == (1.9, 1)
    assert by_class["reasoning"] == (1.5, 1) and by_class["answer"] == (0.3, 1)


FRAME = 'Traceback (most recent call last):\n  File "main.py", line 1, in <module>\n    1 / 0\n    ~~^~~'
LIMITS = {"wall_s": 5.0, "cpu_s": 2.0, "memory_mb": 512, "output_kb": 64}
TOOL = {"limits": LIMITS, "max_tool_response_tokens": 160}


def call_row(**changed: Any) -> dict[str, Any]:
    return json.loads(make_row(make_index(0))["tool_calls"])[0] | {"execution_status": "error", "cpu_ms": 39} | changed


def show_call(viewer: Client, run: Run, **changed: Any) -> str:
    run.recipe = run.recipe | {"tool": TOOL}
    run.save()
    write_shard(run, [make_row(make_index(0), tool_calls=json.dumps([call_row(**changed)]))])
    return unescape(page(viewer, Trajectory.objects.get(sample=0), "rendered"))


def test_a_tool_response_says_what_was_allowed_measured_and_cut(viewer: Client, recorded: Run) -> None:
    cut = {"truncated": True, "is_cut": True, "stdout_bytes": 10_000_000, "stderr_bytes": 12}
    text = show_call(viewer, recorded, status="timeout", execution_status="cpu_limit", **cut)
    assert "tool response · timeout" in text and "stopped at the CPU time limit of 2 s" in text
    assert "ran 41 ms, used 39 ms of CPU with its start; waited 6 ms for a box, which no limit counts" in text
    assert "allowed 5 s, 2 s of CPU, 512 MB" in text
    assert "printed 10,000,000 bytes on stdout, 12 on stderr; the sandbox kept head and tail of 64 kB of each" in text
    assert "the model saw what fits into 160 tokens" in text
    assert "bytes on stdout" not in show_call(viewer, recorded)


def test_a_traceback_is_set_as_one(viewer: Client, recorded: Run) -> None:
    hostile = f"<script>alert(1)</script>\0\ud800\n{FRAME}\nZeroDivisionError: x"
    run = recorded
    write_shard(run, [make_row(make_index(0), tool_calls=json.dumps([call_row(response_text=hostile)]))])
    text = page(viewer, Trajectory.objects.get(sample=0), "rendered")
    assert '<pre class="hl traceback">' in text and '<span class="gr">ZeroDivisionError</span>' in text
    assert "&lt;script&gt;alert(1)" in text and "<script>alert" not in text and "\0" not in text
    text.encode()


@pytest.mark.parametrize(
    "recipe", [None, [], {}, {"tool": 5}, {"tool": {"limits": "x"}}, {"tool": {"limits": {"cpu_s": "<b>"}}}]
)
@pytest.mark.parametrize("status", [*ExecutionStatus, None])
def test_any_ending_and_any_stored_recipe_has_words(recipe: Any, status: ExecutionStatus | None) -> None:
    for told in ToolStatus:
        row = ToolCallRow.model_validate(call_row(status=told, execution_status=status, is_cut=True))
        ending = describe_ending(row, recipe)
        assert ending.words and "<" not in "".join(ending.notes) + ending.words


def test_strangers_and_the_anonymous_see_nothing(
    client: Client, stranger: Client, viewer: Client, recorded: Run
) -> None:
    t = Trajectory.objects.get(sample=0)
    key = StepKey(recorded, 2, 1, False)
    urls = [
        reverse("trajectories:steps", args=[recorded.pk]),
        reverse("trajectories:step", args=[recorded.pk, 1]),
        key.url,
        key.group_url("p1"),
        reverse("trajectories:trajectory", args=[t.pk]),
        reverse("trajectories:raw", args=[t.pk]),
    ]
    for url in urls:
        assert client.get(url)["Location"].startswith("/login/")
        assert stranger.get(url).status_code == 404
        assert viewer.post(url).status_code == 405
    assert viewer.get(StepKey(recorded, 2, 99, False).url).status_code == 404
    assert viewer.get("/t/99999999999999999999/").status_code == 404
