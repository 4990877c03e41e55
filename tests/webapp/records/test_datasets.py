import json
from pathlib import Path

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from contracts.events import Funnel as FunnelEvent
from contracts.events import FunnelRow
from webapp.accounts.models import Project
from webapp.datasets import actions, queries
from webapp.datasets.models import Dataset, Funnel
from webapp.runs.models import Run

GOOD = b"""\
{"problem": "a", "answer": 1}
{"problem": "b $x^2$ <script>alert(1)</script>", "answer": "2"}
{"problem": "c", "answer": "x"}
"""


def upload(client: Client, data: bytes = GOOD, name: str = "set.jsonl", **fields: str) -> object:
    file = SimpleUploadedFile(name, data)
    return client.post(reverse("datasets:upload"), {"file": file, "name": "", **fields})


@pytest.fixture
def dataset(operator: Client) -> Dataset:
    assert upload(operator).status_code == 302
    return Dataset.objects.get()


def test_upload_stores_rows_reasons_and_the_file(dataset: Dataset, artifacts: Path) -> None:
    folder = artifacts / "datasets" / str(dataset.pk)
    assert (dataset.name, dataset.accepted, dataset.rejected) == ("set", 2, 1)
    assert dataset.rejected_by_reason == {"non-integer answer": 1}
    assert (folder / "original.jsonl").read_bytes() == GOOD
    lines = [json.loads(line) for line in (folder / "problems.jsonl").read_text().splitlines()]
    assert [set(line) for line in lines] == [{"id", "problem", "answer", "extra"}] * 2
    assert json.loads((folder / "rejected.jsonl").read_text())["line"] == 3
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]


def test_the_same_content_twice_leads_to_the_first(operator: Client, dataset: Dataset) -> None:
    reply = upload(operator, name="other.jsonl")
    assert reply["Location"] == reverse("datasets:detail", args=[dataset.pk])
    assert "uploaded before" in operator.get(reply["Location"]).content.decode()
    assert Dataset.objects.count() == 1


@pytest.mark.parametrize(
    ("data", "name", "words"),
    [(b"", "a.jsonl", "empty"), (b"[{}]", "a.json", "one JSON list"), (b"x,y\n", "a.csv", "names its columns")],
)
def test_a_file_that_cannot_be_read_says_why(operator: Client, data: bytes, name: str, words: str) -> None:
    reply = upload(operator, data, name)
    assert reply.status_code == 422 and words in reply.content.decode()
    assert not Dataset.objects.exists()


def test_a_file_over_the_cap_is_refused(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webapp.datasets.forms.MAX_UPLOAD_BYTES", 10)
    assert upload(operator).status_code == 422


def test_pages_show_rows_escaped(operator: Client, viewer: Client, dataset: Dataset) -> None:
    page = viewer.get(reverse("datasets:detail", args=[dataset.pk])).content.decode()
    assert "<math" in page and "&lt;script&gt;" in page and "<script>alert" not in page
    assert "Archive" not in page  # a viewer changes nothing
    assert (
        f"?source=artifacts%3Adatasets%2F{dataset.pk}"
        in operator.get(reverse("datasets:detail", args=[dataset.pk])).content.decode()
    )
    page = viewer.get(reverse("datasets:rejected", args=[dataset.pk])).content.decode()
    assert "non-integer answer" in page and ">3<" in page


def test_downloads_are_attachments(viewer: Client, dataset: Dataset) -> None:
    reply = viewer.get(reverse("datasets:download", args=[dataset.pk, "rejected"]))
    assert reply["Content-Disposition"].startswith("attachment") and reply["X-Content-Type-Options"] == "nosniff"
    assert json.loads(b"".join(reply.streaming_content))["reason"] == "non-integer answer"
    assert viewer.get(reverse("datasets:download", args=[dataset.pk, "..%2f"])).status_code == 404


def test_a_benchmark_is_chosen_by_evaluate_stages_only(operator: Client, dataset: Dataset, project: Project) -> None:
    path = f"artifacts:datasets/{dataset.pk}/problems.jsonl"
    assert queries.dataset_choices(project) == [(path, "set · 2 problems")]
    assert operator.post(reverse("datasets:benchmark", args=[dataset.pk]), {"name": "AIME"}).status_code == 302
    assert queries.dataset_choices(project) == []
    assert queries.benchmark_choices(project) == [(path, "AIME · 2 problems")]
    assert operator.get(reverse("datasets:detail", args=[dataset.pk])).status_code == 200
    upload(operator, b'{"problem": "z", "answer": 1}')
    second = Dataset.objects.get(use="training")
    reply = operator.post(reverse("datasets:benchmark", args=[second.pk]), {"name": "AIME"})
    assert reply.status_code == 422 and "already" in reply.content.decode()


def test_archive_keeps_the_files_and_frees_the_content(operator: Client, dataset: Dataset, artifacts: Path) -> None:
    operator.post(reverse("datasets:archive", args=[dataset.pk]))
    assert "No data sets yet" in operator.get(reverse("datasets:list")).content.decode()
    assert (artifacts / "datasets" / str(dataset.pk) / "problems.jsonl").exists()
    assert upload(operator).status_code == 302
    assert Dataset.objects.count() == 2


def test_strangers_and_the_anonymous_see_nothing(
    client: Client, stranger: Client, viewer: Client, operator: Client, dataset: Dataset
) -> None:
    args = [dataset.pk]
    for name, more in (("detail", []), ("rejected", []), ("download", ["problems"])):
        url = reverse(f"datasets:{name}", args=args + more)
        assert client.get(url)["Location"].startswith("/login/")
        assert stranger.get(url).status_code == 404
        assert operator.post(url).status_code == 405
    for name in ("benchmark", "training", "archive"):
        url = reverse(f"datasets:{name}", args=args)
        assert operator.get(url).status_code == 405
        assert stranger.post(url).status_code == 404
        assert viewer.post(url).status_code == 403
        assert client.post(url).status_code == 302
    assert stranger.get(reverse("datasets:list")).status_code == 200
    assert stranger.get(reverse("datasets:upload")).status_code == 404
    assert viewer.get(reverse("datasets:upload")).status_code == 403


def test_the_list_costs_the_same_for_many(
    operator: Client, project: Project, django_assert_max_num_queries: object
) -> None:
    for i in range(60):
        Dataset.objects.create(
            project=project, name=f"d{i}", is_csv=False, content_hash=str(i), size_bytes=1, accepted=1, rejected=0
        )
    with django_assert_max_num_queries(9):
        page = operator.get(reverse("datasets:list")).content.decode()
    assert "Older data sets" in page and page.count("<tr data-href") == 50


def test_funnels_are_recorded_once_and_the_newer_attempt_wins(run: Run) -> None:
    def event(train: int) -> FunnelEvent:
        rows = [FunnelRow(filter="schema\0", entered=9, left=8, examples=["a\ud800"])]
        return FunnelEvent.model_construct(
            kind="funnel",
            stage=0,
            rows=rows,
            train=train,
            held_out=1,
            train_path="",
            held_out_path="",
            rejected_path="",
        )

    actions.record_funnel(run, 2, [(3, event(8)), (4, event(7))])
    actions.record_funnel(run, 1, [(3, event(5))])
    actions.record_funnel(run, 2, [(4, event(7))])
    assert [f.train for f in queries.funnels_for_run(run)] == [7]
    assert Funnel.objects.get().rows[0]["filter"] == "schema\ufffd"
