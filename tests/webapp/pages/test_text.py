"""What the pages make of numbers, formulas, code and recipes. No database."""

import pytest

from tests.webapp.pages.conftest import RECIPES
from webapp.pages import recipe_form, recipe_yaml
from webapp.pages.charts import CHARTS, plotly_static
from webapp.pages.queries import spark
from webapp.pages.templatetags.astro import duration, heat, number, percent, size, state_pill
from webapp.pages.templatetags.astro_text import code, math
from webapp.runs.models import RunState

NAN = float("nan")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (number(1234.5, 1), "1,234.5"),
        (number(-2), "−2"),
        (number(NAN), "NaN"),
        (number(None), "–"),
        (number(float("-inf")), "−∞"),
        (percent(0.0384), "3.8 %"),
        (percent(NAN), "NaN"),
        (duration(0.42), "0.4 s"),
        (duration(200), "3 min 20 s"),
        (duration(7500), "2 h 5 min"),
        (duration(None), "–"),
        (size(12_400_000), "12.4 MB"),
        (heat(0), "h0"),
        (heat(1.0), "h5"),
        (heat(99), "h9"),
        (heat(NAN), "h0"),
    ],
)
def test_numbers(text: str, shown: str) -> None:
    assert text == shown


def test_every_state_has_a_shape_and_its_word() -> None:
    for state in RunState.values:
        assert f"</span> {state}</span>" in state_pill(state) and "?" not in state_pill(state)


@pytest.mark.parametrize(
    "text",
    [
        r"\(\text{<script>alert(1)</script>}\)",
        r"$\href{javascript:alert(1)}{x}$",
        r"$\unicode{x3c}script$",
        r"\(\begin{matrix}\)",
        "<img src=x onerror=alert(1)> $x$",
        r"\(" + "{" * 3000 + r"\)",
        '$\\text{"><script>}$',
    ],
)
def test_hostile_formulas_stay_text(text: str) -> None:
    html = math(text).lower()
    assert "<script" not in html and "<img" not in html and "href" not in html.replace("\\href", "")


def test_formulas_become_mathml_and_money_stays() -> None:
    assert "<msup>" in math("so $x^2$ is")
    assert math("it costs $5 and $6") == "it costs $5 and $6"
    assert "<mfrac>" in math(r"\[\frac{1}{2}\]")
    assert math("a\x00b") == "a\ufffdb"


def test_code_is_escaped_and_marked_by_classes() -> None:
    html = code("print('<b>')")
    assert "&lt;b&gt;" in html and 'class="' in html and "style=" not in html


def test_sparks_leave_out_what_is_not_finite() -> None:
    assert spark("x", [1.0, NAN, 3.0]).points == "0.0,19.0 100.0,1.0"
    assert spark("x", []).points == ""
    assert len(spark("x", [float(i) for i in range(1000)]).points.split()) == 60


def test_charts_name_known_metrics_and_plotly_is_found() -> None:
    assert all(chart.metrics for chart in CHARTS)
    assert plotly_static()


@pytest.mark.parametrize("preset", recipe_yaml.presets(RECIPES), ids=lambda p: p.key)
def test_a_recipe_survives_the_form(preset: recipe_yaml.Preset) -> None:
    """Shown as a form and sent back untouched, it resolves to the same recipe."""
    recipe, errors = recipe_form.validate(recipe_yaml.read(preset.text))
    assert recipe is not None and errors == {}
    tree = recipe_form.sparse(recipe.model_dump(mode="json"))
    form = recipe_form.build(tree, {}, {"checkpoints": [], "source": [], "model": [], "benchmark": []})
    sent: dict[str, list[str]] = {f"stages.{i}.kind": [s.kind] for i, s in enumerate(form.stages)}
    for section in recipe_form._all_sections([form.general, *form.stages]):
        for one in section.fields:
            if one.widget is recipe_form.Widget.CHECK:
                sent |= {one.name: ["on"]} if one.value else {}
            else:
                sent[one.name] = one.value if isinstance(one.value, list) else [one.value]
    back, errors = recipe_form.validate(recipe_form.parse({k: v[-1] for k, v in sent.items() if v}, sent))
    assert errors == {} and back == recipe


def test_a_part_with_its_own_default_keeps_it() -> None:
    """An evaluation samples at 0.6, also when only its turns are written."""
    sent = {"name": "x", "stages.0.kind": "evaluate", "stages.0.name": "e", "stages.0.sampling.max_turns": "2"}
    tree = recipe_form.parse(sent, {k: [v] for k, v in sent.items()})
    assert tree["stages"][0]["sampling"] == {"max_turns": "2", "temperature": 0.6}
