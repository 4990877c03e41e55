"""The launch page: presets, errors beside their fields, YAML, cloning, evaluating, sending twice."""

import re

import pytest
from django.urls import reverse

from tests.webapp.pages.conftest import World
from webapp.runs.models import Checkpoint, Run

URL = "/launch/"
FORM = {
    "mode": "form",
    "op": "launch",
    "key": "k1",
    "name": "mine",
    "stages.0.kind": "curate",
    "stages.0.name": "curate",
    "stages.0.count": "50",
    "stages.1.kind": "rl",
    "stages.1.name": "rl",
    "stages.1.oversample": "8",
    "stages.1.group_size": "4",
    "stages.1.reset_optimizer": "on",
}


def test_presets_are_offered_and_filled_in(world: World) -> None:
    body = world.client(world.operator).get(URL, {"preset": "smoke"}).content.decode()
    assert 'name="stages.2.prompts_per_step" value="4"' in body
    assert "?preset=demo" in body


def test_launch_makes_one_run_however_often_it_is_sent(world: World) -> None:
    client = world.client(world.operator)
    first, second = client.post(URL, FORM), client.post(URL, FORM)
    made = Run.objects.get(name="mine")
    assert first["Location"] == second["Location"] == reverse("pages:run", args=[made.pk])
    assert made.recipe["stages"][1]["group_size"] == 4 and made.created_by == world.operator
    client.post(URL, FORM | {"key": "k2"})
    assert Run.objects.filter(name="mine").count() == 2


@pytest.mark.parametrize(
    ("change", "field", "sentence"),
    [
        ({"stages.1.steps": "many"}, "stages.1.steps", "write a whole number"),
        ({"stages.1.clip_low": "7"}, "stages.1.clip_low", "this must be less than 1"),
        ({"name": ""}, "name", "this is needed"),
        ({"stages.0.name": "<b>"}, "stages.0.name", "begin with a letter or digit"),
    ],
)
def test_error_stands_beside_its_field(world: World, change: dict[str, str], field: str, sentence: str) -> None:
    reply = world.client(world.operator).post(URL, FORM | change)
    assert reply.status_code == 422 and not Run.objects.filter(name="mine").exists()
    body = reply.content.decode()
    at = body.index(f'name="{field}"')
    assert sentence in body[at : body.index("</div>", at)]
    assert 'aria-invalid="true"' in body[at : at + 400]


def test_additions_to_the_loss_are_lines_of_name_and_number(world: World) -> None:
    client, field = world.client(world.operator), "stages.1.loss_terms"
    client.post(URL, FORM | {field: "kl_k3: 0.001\r\ntis 2"})
    assert Run.objects.get(name="mine").recipe["stages"][1]["loss_terms"] == {"kl_k3": 0.001, "tis": 2.0}
    reply = client.post(URL, FORM | {"key": "k2", field: "tis 2\nkl_k3"})
    body = reply.content.decode()
    at = body.index(f'name="{field}"')
    assert reply.status_code == 422 and "write a number" in body[at : body.index("</div>", at)]
    assert "tis: 2\nkl_k3: </textarea>" in body


def test_sentence_across_fields_stands_in_its_stage(world: World) -> None:
    body = world.client(world.operator).post(URL, FORM | {"stages.1.group_size": "32"}).content.decode()
    assert "group_size 32 is larger than oversample 8" in body[body.index('id="stage-1"') :]


def test_sentence_of_the_whole_recipe_is_shown(world: World) -> None:
    body = world.client(world.operator).post(URL, FORM | {"stages.0.name": "rl"}).content.decode()
    assert "two stages are called" in body


def test_stages_are_added_moved_and_removed(world: World) -> None:
    client = world.client(world.operator)

    def kinds(operation: str) -> list[str]:
        body = client.post(URL, FORM | {"op": operation}).content.decode()
        return re.findall(r'name="stages\.\d\.kind" value="(\w+)"', body)

    assert kinds("add:evaluate") == ["curate", "rl", "evaluate"]
    assert kinds("up:1") == ["rl", "curate"]
    assert kinds("remove:0") == ["rl"]
    assert kinds("remove:9") == kinds("nonsense") == ["curate", "rl"]


def test_form_becomes_yaml_and_yaml_becomes_a_run(world: World) -> None:
    client = world.client(world.operator)
    body = client.post(URL, FORM | {"op": "to_yaml"}).content.decode()
    assert "group_size: &#x27;4&#x27;" in body or "group_size: 4" in body
    text = "name: by hand\nstages:\n- {kind: curate, name: c}\n"
    assert client.post(URL, {"mode": "yaml", "op": "launch", "key": "y", "yaml": text}).status_code == 302
    assert Run.objects.get(name="by hand").recipe["stages"][0]["count"] == 2000


@pytest.mark.parametrize(
    "text", ["name: [", "- 1", "\0", "a: &x [*x]", "name: x\nstages: 7", "x: 1", "!!python/object:os.x {}"]
)
def test_bad_yaml_is_told_and_kept(world: World, text: str) -> None:
    reply = world.client(world.operator).post(URL, {"mode": "yaml", "op": "launch", "key": "y", "yaml": text})
    assert reply.status_code == 422
    assert "was not launched" in reply.content.decode()


def test_preview_shows_the_resolved_recipe_with_muted_defaults(world: World) -> None:
    body = world.client(world.operator).post(reverse("pages:preview"), FORM).content.decode()
    assert '<span class="muted">    clip_low: 0.2' in body or re.search(r'class="muted">\s+clip_low: 0\.2', body)
    assert re.search(r"<span>\s+group_size: 4", body)


def test_clone_starts_from_the_run_and_shows_what_differs(world: World) -> None:
    client = world.client(world.operator)
    body = client.get(URL, {"from": str(world.run.pk)}).content.decode()
    assert "Differences to" not in body  # nothing was changed yet
    assert "clone of smoke one" in body and f'name="parent" value="{world.run.pk}"' in body
    client.post(URL, FORM | {"parent": str(world.run.pk)})
    assert Run.objects.get(name="mine").parent == world.run
    assert client.get(URL, {"from": "junk"}).status_code == 404


def test_a_limit_profile_is_a_choice_with_its_meaning(world: World) -> None:
    client = world.client(world.operator)
    body = client.get(URL, {"preset": "smoke"}).content.decode()
    assert '<option value="complex">complex: 30 s, 1,024 MB</option>' in body
    assert 'name="tool.limits.wall_s" value="" placeholder="the profile&#x27;s"' in body
    client.post(URL, FORM | {"tool.profile": "complex", "tool.limits.wall_s": "5", "tool.limits.processes": "32"})
    tool = Run.objects.get(name="mine").recipe["tool"]
    assert (tool["profile"], tool["limits"]["wall_s"], tool["limits"]["memory_mb"]) == ("complex", 5, 1024)
    body = client.get(URL, {"from": str(Run.objects.get(name="mine").pk)}).content.decode()
    assert 'value="complex" selected' in body and 'name="tool.limits.wall_s" value="5' in body
    assert 'name="tool.limits.memory_mb" value=""' in body


def test_a_cpu_limit_above_the_wall_limit_is_told(world: World) -> None:
    reply = world.client(world.operator).post(URL, FORM | {"tool.limits.cpu_s": "50"})
    assert reply.status_code == 422
    assert "limits.cpu_s 50 is above limits.wall_s 5" in reply.content.decode()


def test_a_run_of_an_earlier_version_can_be_read_and_cloned(world: World) -> None:
    old = world.run.recipe
    limits = {**old["tool"]["limits"], "wall_s": 9.0}
    old["tool"] = {"limits": limits, "max_response_chars": 160, "traceback_lines": 1}
    world.run.save()
    client = world.client(world.operator)
    body = client.get(reverse("pages:run_recipe", args=[world.run.pk])).content.decode()
    assert "max_response_chars: 160" in body and "max_tool_response_tokens" not in body
    body = client.get(URL, {"from": str(world.run.pk)}).content.decode()
    assert 'name="tool.max_tool_response_tokens" value="160"' in body
    assert 'name="tool.limits.wall_s" value="9"' in body and "Differences to" in body
    query = {"evaluate": f"artifacts:runs/{world.run.pk}/checkpoints/x"}
    assert 'name="tool.max_tool_response_tokens" value="160"' in client.get(URL, query).content.decode()


def test_a_checkpoint_is_evaluated_with_one_click(world: World) -> None:
    kept = Checkpoint.objects.create(
        run=world.run, attempt=1, stage=2, step=4, path="checkpoints/rl-4", label="rl", size_bytes=1
    )
    path = f"artifacts:runs/{world.run.pk}/{kept.path}"
    query = {"evaluate": path, "benchmark": "artifacts:datasets/x/problems.jsonl"}
    body = world.client(world.operator).get(URL, query).content.decode()
    assert f'value="{path}" checked' in body
    assert re.findall(r'name="stages\.\d\.kind" value="(\w+)"', body) == ["evaluate"]
    assert 'value="artifacts:datasets/x/problems.jsonl" selected' in body


def test_viewer_and_stranger_do_not_launch(world: World) -> None:
    assert world.client(world.viewer).get(URL).status_code == 403
    assert world.client(world.viewer).post(URL, FORM).status_code == 403
    assert world.client(world.stranger).post(URL, FORM).status_code == 404
    assert world.client(world.stranger).get(URL, {"from": str(world.run.pk)}).status_code == 404
    assert world.client(world.operator).put(URL).status_code == 405
