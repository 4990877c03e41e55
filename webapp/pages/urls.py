from django.urls import path

from webapp.pages import views, views_curation, views_launch, views_run, views_timeline

app_name = "pages"

urlpatterns = [
    path("", views.home, name="home"),
    path("project/", views.choose_project, name="choose_project"),
    path("runs/", views.runs, name="runs"),
    path("launch/", views_launch.launch, name="launch"),
    path("launch/preview/", views_launch.preview, name="preview"),
    path("runs/<uuid:run_id>/", views_run.overview, name="run"),
    path("runs/<uuid:run_id>/data/", views_run.data, name="run_data"),
    path("runs/<uuid:run_id>/head/", views_run.head, name="run_head"),
    path("runs/<uuid:run_id>/now/", views_run.now, name="run_now"),
    path("runs/<uuid:run_id>/curation/", views_curation.curation, name="run_curation"),
    path("runs/<uuid:run_id>/curation/<int:stage>/keep/", views_curation.keep, name="run_curation_keep"),
    path(
        "runs/<uuid:run_id>/curation/<int:stage>/<str:which>.jsonl",
        views_curation.download,
        name="run_curation_file",
    ),
    path("runs/<uuid:run_id>/steps/", views_run.steps, name="run_steps"),
    path("runs/<uuid:run_id>/tokens/", views_run.tokens, name="run_tokens"),
    path("runs/<uuid:run_id>/timeline/", views_timeline.timeline, name="run_timeline"),
    path("runs/<uuid:run_id>/logs/", views_run.logs, name="run_logs"),
    path("runs/<uuid:run_id>/recipe/", views_run.recipe, name="run_recipe"),
    path("runs/<uuid:run_id>/checkpoints/", views_run.checkpoints, name="run_checkpoints"),
    path("runs/<uuid:run_id>/events/", views_run.events, name="run_events"),
    path("runs/<uuid:run_id>/stop/", views_run.stop, name="run_stop"),
    path("runs/<uuid:run_id>/resume/", views_run.resume, name="run_resume"),
]
