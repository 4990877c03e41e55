import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import PermissionDenied
from django.http import Http404
from django.test import Client

from webapp.accounts.access import get_project, has_role, projects_of
from webapp.accounts.actions import create_project, set_role
from webapp.accounts.models import Membership, Project, Role

pytestmark = pytest.mark.django_db


def test_member_sees_the_project(project: Project, alice: User) -> None:
    assert get_project(alice, "maths") == project
    assert list(projects_of(alice)) == [project]


def test_stranger_cannot_tell_that_it_exists(project: Project, charlie: User) -> None:
    with pytest.raises(Http404):
        get_project(charlie, "maths")
    with pytest.raises(Http404):
        get_project(AnonymousUser(), "maths")


def test_each_role_includes_the_ones_before(project: Project, alice: User) -> None:
    for held in Role:
        set_role(project, alice, held)
        for asked in Role:
            assert has_role(alice, project, asked) == (list(Role).index(held) >= list(Role).index(asked))


def test_a_missing_role_is_said(project: Project, victor: User) -> None:
    with pytest.raises(PermissionDenied, match="needs the role operator in Maths; yours is viewer"):
        get_project(victor, "maths", Role.OPERATOR)


def test_creating_a_project_twice_changes_nothing(charlie: User) -> None:
    first = create_project(team_name="T", name="P", slug="p", admin=charlie)
    assert create_project(team_name="T", name="Other", slug="p", admin=charlie) == first
    assert Membership.objects.filter(project=first).count() == 1


def test_sign_in_and_out(alice: User) -> None:
    client = Client()
    assert client.get("/login/").status_code == 200
    assert client.post("/login/", {"username": "alice", "password": "wrong"}).status_code == 200
    assert "_auth_user_id" not in client.session
    assert client.post("/login/", {"username": "alice", "password": "pw"}).status_code == 302
    assert client.session["_auth_user_id"] == str(alice.pk)
    assert client.get("/logout/").status_code == 405
    assert client.post("/logout/").status_code == 302


def test_pages_forbid_inline_script(client: Client) -> None:
    policy = client.get("/login/").headers["Content-Security-Policy"]
    script = next(part for part in policy.split(";") if "script-src" in part)
    assert "unsafe-inline" not in script and "unsafe-eval" not in script


def test_health(client: Client) -> None:
    assert client.get("/healthz").content == b"ok"
