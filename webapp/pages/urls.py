from django.urls import path

from webapp.pages import views

app_name = "pages"

urlpatterns = [
    path("", views.home, name="home"),
    path("project/", views.choose_project, name="choose_project"),
    path("runs/", views.runs, name="runs"),
    path("launch/", views.launch, name="launch"),
]
