from django.http import HttpRequest, HttpResponse
from django.urls import include, path

from webapp.api import api


def healthz(request: HttpRequest) -> HttpResponse:
    """The process answers; says nothing of the services behind it."""
    return HttpResponse("ok", content_type="text/plain")


urlpatterns = [
    path("healthz", healthz),
    path("", include("webapp.accounts.urls")),
    path("", include("webapp.pages.urls")),
    path("", include("webapp.datasets.urls")),
    path("", include("webapp.trajectories.urls")),
    path("", include("webapp.benchmarks.urls")),
    path("", include("webapp.cluster.urls")),
    path("api/", api.urls),  # /api/v1/... and /api/docs
]
