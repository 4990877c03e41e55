from django.urls import path

from webapp.trajectories import views

app_name = "trajectories"

_STEP = "runs/<uuid:run_id>/steps/<int:stage>/<int:step>/"
_EVALUATION = "runs/<uuid:run_id>/evaluations/<int:stage>/<int:step>/"
_IS = {"is_evaluation": True}
_IS_NOT = {"is_evaluation": False}

urlpatterns = [
    path("runs/<uuid:run_id>/rollouts/", views.steps, name="steps"),
    path("runs/<uuid:run_id>/steps/<int:step>/", views.training_step, name="step"),
    path(_STEP, views.step, _IS_NOT, name="step"),
    path(f"{_STEP}group/", views.group, _IS_NOT, name="group"),
    path(_EVALUATION, views.step, _IS, name="evaluation"),
    path(f"{_EVALUATION}group/", views.group, _IS, name="evaluation_group"),
    path("t/<int:pk>/", views.trajectory, name="trajectory"),
    path("t/<int:pk>/raw/", views.raw, name="raw"),
]
