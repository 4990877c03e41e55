"""Where the time of a run's steps went: charts over the steps, and one step as a Gantt chart."""

from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from webapp.pages import gantt
from webapp.pages.views_run import charts_context, find_report, render_run
from webapp.runs.access import get_run
from webapp.runs.models import TimelineRow


@login_required
@require_GET
def timeline(request: HttpRequest, run_id: UUID) -> HttpResponse:
    run = get_run(request.user, run_id)
    reported = find_report(request, TimelineRow, run)
    row = reported["row"]
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
        **reported,
    )
