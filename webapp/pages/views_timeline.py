"""Where the time of a run's steps went: charts over the steps, and one step as a Gantt chart."""

from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from webapp.pages import gantt
from webapp.pages.views_run import charts_context, render_run
from webapp.runs.access import get_run
from webapp.runs.models import TimelineRow


@login_required
@require_GET
def timeline(request: HttpRequest, run_id: UUID) -> HttpResponse:
    run = get_run(request.user, run_id)
    rows = TimelineRow.objects.filter(run=run).order_by("stage", "step")
    numbers = list(rows.values_list("step", flat=True))
    asked = request.GET.get("step", "")
    step = int(asked) if asked.isdigit() and int(asked) in numbers else (numbers[-1] if numbers else None)
    row = rows.filter(step=step).last() if step is not None else None
    at = numbers.index(step) if step is not None else 0
    drawn = {}
    if row is not None:
        drawn = {
            "phases": gantt.phases(row.report),
            "in_flight": gantt.in_flight(row.report),
            "engines": gantt.engines(row.report),
            "slowest": gantt.slowest(row.report),
            "kinds": gantt.kinds(row.report),
            "seconds": row.report["seconds"],
        }
    return render_run(
        request,
        "pages/run_timeline.html",
        run,
        "timeline",
        **charts_context(run, "timeline"),
        **drawn,
        step=step,
        older=numbers[at - 1] if at > 0 else None,
        newer=numbers[at + 1] if at + 1 < len(numbers) else None,
    )
