"""How Astrolabe writes states, numbers, times and places. Formulas and code are in `astro_text`."""

from datetime import datetime
from math import isfinite
from typing import Any

from django import template
from django.template.context import RequestContext
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from webapp.accounts.access import projects_of
from webapp.pages.current import current_project as project_of_request

register = template.Library()

MISSING = "–"
TEXT_FORM = "\ufe0e"  # asks for the plain glyph instead of an emoji
SHAPES = {
    "draft": "✎",
    "queued": "○",
    "submitting": "◔",
    "starting": "◔",
    "running": "▶",
    "pausing": "❚❚",
    "paused": "❚❚",
    "stopping": "■",
    "finished": "✓",
    "failed": "✕",
    "cancelled": "–",
    "lost": "⚡",
}
PLACES = (
    ("home", "Home", "pages:home"),
    ("runs", "Runs", "pages:runs"),
    ("datasets", "Data sets", "datasets:list"),
    ("leaderboards", "Leaderboards", "benchmarks:list"),
    ("cluster", "Cluster", "cluster:page"),
)


@register.simple_tag
def state_pill(state: str) -> SafeString:
    """Shape and word, so that colour is never the only difference."""
    state = str(state)
    return format_html(
        '<span class="state state-{}" data-state="{}"><span aria-hidden="true">{}</span> {}</span>',
        state,
        state,
        SHAPES.get(state, "?") + TEXT_FORM,
        state,
    )


@register.simple_tag(takes_context=True)
def places(context: RequestContext) -> list[dict[str, str]]:
    """The places of the top bar that this installation has."""
    shown = []
    for key, label, name in PLACES:
        try:
            shown.append({"key": key, "label": label, "url": reverse(name)})
        except NoReverseMatch:
            continue
    return shown


@register.simple_tag(takes_context=True)
def current_project(context: RequestContext) -> Any:
    """The page's own project, else the one the user chose last."""
    return context.get("project") or (project_of_request(context["request"]) if "request" in context else None)


@register.simple_tag(takes_context=True)
def my_projects(context: RequestContext) -> list[Any]:
    return list(projects_of(context["request"].user)) if "request" in context else []


def _float(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


@register.filter
def number(value: Any, digits: int = 0) -> str:
    """1234.5 -> 1,234; NaN and infinities by name; what is missing as a dash."""
    amount = _float(value)
    if amount is None:
        return MISSING
    if not isfinite(amount):
        return "NaN" if amount != amount else ("∞" if amount > 0 else "−∞")
    return f"{amount:,.{int(digits)}f}".replace("-", "−")


@register.filter
def percent(value: Any, digits: int = 1) -> str:
    amount = _float(value)
    if amount is None or not isfinite(amount):
        return number(value)
    return f"{number(amount * 100, digits)} %"


@register.filter
def share(part: Any, whole: Any) -> float | None:
    """part / whole; None where there is no whole."""
    numerator, denominator = _float(part), _float(whole)
    return numerator / denominator if numerator is not None and denominator else None


@register.filter
def unit(value: Any, name: str) -> str:
    """A whole number with its unit, the plural left to the caller."""
    return MISSING if _float(value) is None else f"{number(value)} {name}"


@register.filter
def duration(value: Any) -> str:
    """Seconds as a person says them: 0.4 s, 12 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    seconds = _float(value)
    if seconds is None or not isfinite(seconds) or seconds < 0:
        return MISSING
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, name, small, small_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // small
            return f"{whole // size} {name}" + (f" {rest} {small_name}" if rest else "")
    return f"{whole} s"


@register.filter
def size(value: Any) -> str:
    """Bytes with a decimal unit."""
    amount = _float(value)
    if amount is None:
        return MISSING
    for name in ("B", "kB", "MB", "GB"):
        if abs(amount) < 1000:
            return f"{amount:.0f} {name}" if name == "B" else f"{amount:.1f} {name}"
        amount /= 1000
    return f"{amount:.1f} TB"


def _ago(seconds: float) -> str:
    if seconds < 1:
        return "now"
    for limit, step, name in ((90, 1, "s"), (5400, 60, "min"), (129600, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds // step)} {name} ago"
    return f"{int(seconds // 86400)} d ago"


@register.filter
def ago(value: datetime | None) -> SafeString | str:
    """A time as its distance from now; the script of every page keeps it going."""
    if value is None:
        return MISSING
    seconds = (timezone.now() - value).total_seconds()
    title = value.strftime("%Y-%m-%d %H:%M:%S UTC")
    return format_html(
        '<time datetime="{}" data-ago title="{}">{}</time>', value.isoformat(), title, _ago(max(seconds, 0))
    )


@register.filter
def until(value: datetime | None) -> SafeString | str:
    if value is None:
        return MISSING
    seconds = (value - timezone.now()).total_seconds()
    left = f"{seconds:.0f} s left" if seconds > 0 else "over"
    return format_html('<time datetime="{}" data-ago="until">{}</time>', value.isoformat(), left)


@register.filter
def heat(entropy: Any, top: float = 2.0) -> str:
    """The class of a token's background: h0 to h9 over 0 to `top` nats."""
    amount = _float(entropy)
    if amount is None or not isfinite(amount):
        return "h0"
    return f"h{min(9, max(0, int(amount / float(top) * 10)))}"


@register.filter
def stage_weight(stage: dict[str, Any]) -> int:
    """Width of a stage in the strip: RL by its steps; the others are short and stay legible."""
    return stage["steps"] if stage["kind"] == "rl" else 6


@register.filter
def lookup(mapping: Any, key: Any) -> Any:
    return mapping.get(key) if hasattr(mapping, "get") else None


@register.filter
def visible(text: Any) -> str:
    """A token as a word on its own: blanks and line ends can be seen."""
    return clean(text).replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣")


@register.filter
def clean(text: Any) -> str:
    """Control characters and lone surrogates made visible: they would cut the page, or be none at all."""
    return "".join(c if c in "\n\t" or " " <= c < "\ud800" or c > "\udfff" else "\ufffd" for c in str(text))
