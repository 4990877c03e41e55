"""The curation tab: the funnel, every refused row with its reason, and the accepted set as a source."""

import json
from pathlib import Path
from typing import Any

import pytest
from django.urls import reverse

from contracts.curation import RejectedRow
from contracts.events import Funnel as FunnelEvent
from contracts.events import FunnelRow
from contracts.recipe import Recipe
from tests.webapp.pages.conftest import HOSTILE, World
from webapp.datasets.actions import record_funnel
from webapp.datasets.models import Dataset
from webapp.datasets.queries import dataset_choices
from webapp.runs.models import RunState, stages_of_recipe

pytestmark = pytest.mark.db

FOLDER = "problems/stage-00"
VERSION = "ab" * 32


def refused(line: int, check: str, problem: str, **more: Any) -> dict[str, Any]:
    row = RejectedRow(
        source="rows.jsonl",
        line=line,
        id=f"r{line}",
        filter=check,
        reason="why",
        problem=problem,
        answer="yes",
        row=json.dumps({"problem": problem, "level": "hard"}),
    )
    return row.model_dump() | more


REJECTED = [
    refused(3, "integer answer", "\\frac{1}{2} of <b>it</b>", reason=HOSTILE, answer=HOSTILE, id=HOSTILE),
    refused(4, "integer answer", "plain"),
    *(refused(line, "duplicate", f"twice {line}") for line in range(10, 70)),
]
TRAIN = [{"level": "easy", "id": "a", "problem": "1 + 1 <script>alert(1)</script>", "answer": "2"}]
HELD_OUT = [{"id": "b", "problem": "2 + 2", "answer": "4"}]


def write(path: Path, rows: list[dict[str, Any]], ascii_only: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in rows))


@pytest.fixture
def curated(world: World, tmp_path: Path, settings: Any) -> World:
    settings.ASTROLABE_ARTIFACTS = tmp_path
    tree = {"name": "c", "stages": [{"kind": "curate", "name": "clean", "held_out": 1}]}
    world.run.recipe = Recipe.model_validate(tree).model_dump(mode="json")
    world.run.stages = stages_of_recipe(world.run.recipe)
    world.run.state = RunState.FINISHED
    world.run.save()
    for name, rows in (("rejected", REJECTED), ("train", TRAIN), ("held_out", HELD_OUT)):
        write(tmp_path / "runs" / str(world.run.pk) / FOLDER / f"{name}.jsonl", rows)
    event = FunnelEvent(
        stage=0,
        rows=[
            FunnelRow(filter="schema", entered=64, left=64),
            FunnelRow(filter="integer answer", entered=64, left=62),
            FunnelRow(filter="duplicate", entered=62, left=2),
        ],
        train=1,
        held_out=1,
        train_path=f"{FOLDER}/train.jsonl",
        held_out_path=f"{FOLDER}/held_out.jsonl",
        rejected_path=f"{FOLDER}/rejected.jsonl",
        version=VERSION,
    )
    record_funnel(world.run, 1, [(1, event)])
    return world


def page(world: World, **query: Any) -> str:
    url = reverse("pages:run_curation", args=[world.run.pk])
    return world.client(world.viewer).get(url, query).content.decode()


def test_the_funnel_links_to_the_rows_of_a_check(curated: World) -> None:
    text = page(curated)
    assert "2 refused" in text and "60 refused" in text and "check=integer%20answer" in text
    assert "rows 1 to 25 of 62" in text
    overview = curated.client(curated.viewer).get(reverse("pages:run", args=[curated.run.pk])).content.decode()
    assert "every rejected row" in overview and ">Curation<" in overview


def test_hostile_rows_are_text(curated: World) -> None:
    text = page(curated, check="integer answer")
    assert "rows 1 to 2 of 2" in text and "&lt;b&gt;it&lt;/b&gt;" in text
    assert "<script>alert" not in text and "<b>it" not in text and "\x1b" not in text
    assert "<script>alert" not in page(curated, show="train")


def test_rows_are_paged_within_a_check(curated: World) -> None:
    first, last = page(curated, check="duplicate"), page(curated, check="duplicate", start="50")
    assert "rows 1 to 25 of 60" in first and "twice 10" in first and "start=25" in first
    assert "rows 51 to 60 of 60" in last and "twice 69" in last and "Later" not in last
    assert "has only 60 rows" in page(curated, check="duplicate", start="900")


@pytest.mark.parametrize(
    ("text", "found"), [("\\FRAC{1}", 1), ("TWICE 1", 10), ('"level": "hard"', 62), ("ünd", 0), ("\x00", 62)]
)
def test_rows_are_found_by_text(curated: World, text: str, found: int) -> None:
    shown = page(curated, q=text)
    assert (f"of {found}<" in shown) if found else ("No row matches" in shown)


def test_surrogates_and_lines_that_are_no_rows_break_nothing(curated: World, tmp_path: Path) -> None:
    path = tmp_path / "runs" / str(curated.run.pk) / FOLDER / "rejected.jsonl"
    write(path, [refused(1, "schema", "a\0b\ud800")], ascii_only=True)
    path.write_bytes(b"\xff\xfe\n[1]\n" + path.read_bytes())
    assert "a\ufffdb" in page(curated)
    assert "rows 1 to 1 of 1" in page(curated, check="schema")


def test_files_that_are_gone_or_lead_out_are_said_to_be(curated: World, tmp_path: Path) -> None:
    (tmp_path / "runs" / str(curated.run.pk) / FOLDER / "rejected.jsonl").unlink()
    assert "is not in the run&#x27;s artifact folder" in page(curated)
    curated.run.funnels.update(rejected_path="../../../etc/passwd")
    assert "leads out of the run&#x27;s artifact folder" in page(curated)


def test_before_the_funnel_the_page_says_what_happens(world: World) -> None:
    assert "has not begun" in page(world)
    world.run.stages[0] |= {"started_at": "2026-01-01T00:00:00Z", "done": 3, "total": 9, "what": "problems"}
    world.run.save()
    assert "3 of 9 problems" in page(world)
    world.run.state = RunState.FAILED
    world.run.save()
    assert "The log says why" in page(world)


def test_a_run_that_does_not_curate_has_no_tab(world: World) -> None:
    tree = {"name": "e", "stages": [{"kind": "evaluate", "name": "e", "benchmark": "artifacts:datasets/x/p.jsonl"}]}
    world.run.recipe = Recipe.model_validate(tree).model_dump(mode="json")
    world.run.save()
    assert ">Curation<" not in page(world)


def test_the_accepted_set_becomes_a_data_set_once(curated: World, tmp_path: Path) -> None:
    client = curated.client(curated.operator)
    url = reverse("pages:run_curation_keep", args=[curated.run.pk, 0])
    reply = client.post(url, {"name": "clean set"})
    dataset = Dataset.objects.get()
    assert reply["Location"] == reverse("datasets:detail", args=[dataset.pk])
    assert (dataset.accepted, dataset.rejected, dataset.content_hash) == (2, 62, VERSION)
    assert dataset.rejected_by_reason == {"integer answer": 2, "duplicate": 60}
    assert dataset_choices(curated.project) == [(dataset.recipe_path, "clean set · 2 problems")]
    lines = (tmp_path / dataset.folder / "problems.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == {
        "id": "a",
        "problem": TRAIN[0]["problem"],
        "answer": "2",
        "extra": {"level": "easy"},
    }
    for name in ("detail", "rejected"):
        text = client.get(reverse(f"datasets:{name}", args=[dataset.pk])).content.decode()
        assert "<script>alert" not in text and "clean set" in text
    assert "kept of a curation" in client.get(reverse("datasets:list")).content.decode()
    assert client.post(url)["Location"] == reply["Location"]
    assert Dataset.objects.count() == 1


def test_a_file_with_characters_that_are_no_text_is_kept_with_them_replaced(curated: World, tmp_path: Path) -> None:
    """Such as a run of an earlier version left them; PostgreSQL takes neither NUL nor a lone surrogate."""
    hostile = {"a\0": "x", "id": "\ud800", "problem": "1\0 + 1\udfff", "answer": "2"}
    write(tmp_path / "runs" / str(curated.run.pk) / FOLDER / "train.jsonl", [hostile], ascii_only=True)
    client = curated.client(curated.operator)
    client.post(reverse("pages:run_curation_keep", args=[curated.run.pk, 0]), {"name": "n\0"})
    dataset = Dataset.objects.get()
    assert (dataset.name, dataset.extra_columns) == ("n\ufffd", ["a\ufffd"])
    stored = json.loads((tmp_path / dataset.folder / "problems.jsonl").read_text().splitlines()[0])
    assert (stored["id"], stored["problem"]) == ("\ufffd", "1\ufffd + 1\ufffd")


def test_nothing_is_kept_of_files_that_are_gone(curated: World, tmp_path: Path) -> None:
    (tmp_path / "runs" / str(curated.run.pk) / FOLDER / "held_out.jsonl").unlink()
    client = curated.client(curated.operator)
    reply = client.post(reverse("pages:run_curation_keep", args=[curated.run.pk, 0]), follow=True)
    assert "Nothing was kept" in reply.content.decode()
    assert not Dataset.objects.exists() and not list((tmp_path / "datasets").iterdir())


def test_the_accepted_set_is_a_source_of_a_run(curated: World) -> None:
    client = curated.client(curated.operator)
    source = f"artifacts:runs/{curated.run.pk}/{FOLDER}/train.jsonl"
    text = client.get(reverse("pages:run_curation", args=[curated.run.pk])).content.decode()
    link = reverse("pages:launch") + "?source=" + source.replace(":", "%3A").replace("/", "%2F")
    assert link in text
    assert f'value="{source}" selected' in client.get(link).content.decode()


def test_downloads_are_attachments(curated: World) -> None:
    client = curated.client(curated.viewer)
    reply = client.get(reverse("pages:run_curation_file", args=[curated.run.pk, 0, "train"]))
    assert reply["Content-Disposition"].startswith("attachment") and reply["X-Content-Type-Options"] == "nosniff"
    assert b"".join(reply.streaming_content).count(b"\n") == 1
    for stage, which in ((0, "manifest"), (7, "train")):
        assert client.get(reverse("pages:run_curation_file", args=[curated.run.pk, stage, which])).status_code == 404


def test_strangers_see_nothing_and_viewers_keep_nothing(curated: World) -> None:
    args = [curated.run.pk]
    tab, file = reverse("pages:run_curation", args=args), reverse("pages:run_curation_file", args=[*args, 0, "train"])
    kept = reverse("pages:run_curation_keep", args=[*args, 0])
    for url in (tab, file):
        assert curated.client(None).get(url)["Location"].startswith("/login/")
        assert curated.client(curated.stranger).get(url).status_code == 404
        assert curated.client(curated.operator).post(url).status_code == 405
    assert curated.client(None).post(kept).status_code == 302
    assert curated.client(curated.stranger).post(kept).status_code == 404
    assert curated.client(curated.viewer).post(kept).status_code == 403
    assert curated.client(curated.operator).get(kept).status_code == 405
    assert "Keep as a data set" not in page(curated)
