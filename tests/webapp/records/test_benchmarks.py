import re
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from contracts.scoring import Estimate
from tests.webapp.records.build import evaluation
from webapp.accounts.models import Project
from webapp.benchmarks import actions, queries
from webapp.benchmarks.models import Evaluation, Leaderboard, Share
from webapp.runs.models import Run


def estimate(value: float, half_width: float, n: int = 3) -> Estimate:
    return Estimate(value=value, half_width=half_width, problems=n, samples=4 * n)


@pytest.fixture
def board(run: Run) -> Leaderboard:
    best = evaluation(1, avg=estimate(0.9, 0.05), label="after RL")
    middle = evaluation(2, avg=estimate(0.82, 0.06), label="after first RL")
    low = evaluation(3, avg=estimate(0.3, 0.1), label="after SFT")
    nothing = evaluation(4, avg=None, pass_at_k=None, label="crashed")
    actions.record_evaluation(run, 1, [(seq, e) for seq, e in enumerate([best, middle, low, nothing])])
    return Leaderboard.objects.get()


def board_url(board: Leaderboard) -> str:
    return reverse("benchmarks:board", args=[board.project.slug, board.slug])


def shares_url(board: Leaderboard) -> str:
    return reverse("benchmarks:shares", args=[board.project.slug, board.slug])


def test_recording_is_idempotent_and_the_newer_attempt_wins(run: Run) -> None:
    actions.record_evaluation(run, 2, [(1, evaluation(label="new"))])
    before = Evaluation.objects.values().get()
    actions.record_evaluation(run, 2, [(1, evaluation(label="new"))])
    actions.record_evaluation(run, 1, [(1, evaluation(label="old"))])
    assert Evaluation.objects.values().get() == before
    assert Leaderboard.objects.count() == 1


def test_an_evaluation_without_a_board_and_hostile_names(run: Run) -> None:
    actions.record_evaluation(run, 1, [(1, evaluation(1, board="")), (2, evaluation(2, board="日本\0"))])
    assert Evaluation.objects.get(step=1).leaderboard is None
    assert Leaderboard.objects.get().name == "日本\ufffd"


def test_ranks_are_intervals(board: Leaderboard) -> None:
    (section,) = queries.sections_of(board)
    assert [(r.evaluation.label, r.rank) for r in section.rows] == [
        ("after RL", "1–2"),
        ("after first RL", "1–2"),
        ("after SFT", "3"),
        ("crashed", "–"),
    ]
    assert section.has_one_protocol
    assert section.problem_ids == ["p1", "p2", "p3"]


def test_all_wrong_has_an_interval_of_its_own(run: Run) -> None:
    correct = {f"p{i}": 0 for i in range(30)}
    actions.record_evaluation(run, 1, [(1, evaluation(avg=estimate(0.0, 0.0, 30), correct=correct))])
    assert queries.bounds_of(Evaluation.objects.get()) == queries.Bounds(0.0, 0.1)


def test_other_problems_are_another_section(run: Run) -> None:
    actions.record_evaluation(run, 1, [(1, evaluation(1)), (2, evaluation(2, correct={"q1": 1}))])
    sections = queries.sections_of(Leaderboard.objects.get())
    assert [s.problems for s in sections] == [3, 1]
    assert sections[1].rows[0].bounds is None  # one problem: no interval


def test_pages_show_numbers_and_links(
    viewer: Client, board: Leaderboard, django_assert_max_num_queries: object
) -> None:
    with django_assert_max_num_queries(10):
        text = viewer.get(board_url(board)).content.decode()
    assert "0.900" in text and "±0.050" in text and "nothing graded" in text and "4/4" in text
    assert "Share" not in re.sub(r"Share links", "", text)  # a viewer shares nothing
    assert "Demo board" in viewer.get(reverse("benchmarks:list")).content.decode()
    first = Evaluation.objects.get(label="after RL")
    text = viewer.get(reverse("benchmarks:evaluation", args=[first.pk])).content.decode()
    assert f"/runs/{first.run_id}/evaluations/3/1/group/?prompt=p1" in text


def test_an_empty_place_starts_something(viewer: Client, project: Project) -> None:
    assert "No leaderboards yet" in viewer.get(reverse("benchmarks:list")).content.decode()


def test_the_life_of_a_share(operator: Client, client: Client, board: Leaderboard) -> None:
    text = operator.post(shares_url(board), {"note": "Bob", "days": "30"}).content.decode()
    link = re.search(r"/s/([\w-]{43})/", text)
    assert link is not None
    assert link[1] not in operator.get(shares_url(board)).content.decode()  # told once
    assert Share.objects.get().token_hash == actions.hash_token(link[1]) != link[1]

    reply = client.get(link[0])
    shown = reply.content.decode()
    assert reply.status_code == 200 and "0.900" in shown and "4/4" in shown
    assert reply["X-Robots-Tag"] == "noindex, nofollow" and "no-store" in reply["Cache-Control"]
    hrefs = re.findall(r'(?:href|action|src)="([^"]+)"', shown)
    assert hrefs and all(h.startswith("/static/") for h in hrefs)
    assert str(Evaluation.objects.first().run_id) not in shown and "checkpoints/1" not in shown
    assert not re.search(r"<script(?![^>]*\bsrc=)", shown)

    assert client.get(link[0][:-2] + "x/").status_code == 404
    share = Share.objects.get()
    assert operator.post(reverse("benchmarks:revoke", args=[share.pk])).status_code == 302
    gone = client.get(link[0])
    assert gone.status_code == 404 and "This link opens nothing" in gone.content.decode()
    assert "revoked" in operator.get(shares_url(board)).content.decode()


def test_an_expired_share_opens_nothing(client: Client, board: Leaderboard, alice: object) -> None:
    token = actions.create_share(board, by=alice, days=1)
    assert client.get(reverse("benchmarks:shared", args=[token])).status_code == 200
    Share.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert client.get(reverse("benchmarks:shared", args=[token])).status_code == 404


def test_strangers_and_the_anonymous_see_nothing(
    client: Client, stranger: Client, viewer: Client, operator: Client, board: Leaderboard, alice: object
) -> None:
    actions.create_share(board, by=alice)
    revoke = reverse("benchmarks:revoke", args=[Share.objects.get().pk])
    for url in (board_url(board), reverse("benchmarks:evaluation", args=[Evaluation.objects.first().pk])):
        assert client.get(url)["Location"].startswith("/login/")
        assert stranger.get(url).status_code == 404
        assert operator.post(url).status_code == 405
    assert stranger.get(shares_url(board)).status_code == 404
    assert client.get(shares_url(board)).status_code == 302
    assert viewer.post(shares_url(board), {"days": "30"}).status_code == 403
    assert operator.post(shares_url(board), {"days": "9999"}).status_code == 422
    assert operator.get(revoke).status_code == 405
    assert client.post(revoke).status_code == 302
    assert stranger.post(revoke).status_code == 404
    assert viewer.post(revoke).status_code == 403
    assert client.post("/s/whatever/").status_code == 405
