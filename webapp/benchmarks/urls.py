from django.urls import path

from webapp.benchmarks import views

app_name = "benchmarks"

_BOARD = "p/<slug:project>/leaderboards/<slug:slug>/"

urlpatterns = [
    path("leaderboards/", views.index, name="list"),
    path(_BOARD, views.board, name="board"),
    path(f"{_BOARD}shares/", views.shares, name="shares"),
    path("shares/<int:pk>/revoke/", views.revoke, name="revoke"),
    path("evaluations/<int:pk>/", views.evaluation, name="evaluation"),
    path("s/<str:token>/", views.shared, name="shared"),
]
