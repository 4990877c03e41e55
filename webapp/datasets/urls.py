from django.urls import path

from webapp.datasets import views

app_name = "datasets"

urlpatterns = [
    path("datasets/", views.index, name="list"),
    path("datasets/upload/", views.upload, name="upload"),
    path("datasets/<uuid:pk>/", views.detail, name="detail"),
    path("datasets/<uuid:pk>/rejected/", views.rejected, name="rejected"),
    path("datasets/<uuid:pk>/files/<str:which>/", views.download, name="download"),
    path("datasets/<uuid:pk>/benchmark/", views.benchmark, name="benchmark"),
    path("datasets/<uuid:pk>/training/", views.training, name="training"),
    path("datasets/<uuid:pk>/archive/", views.archive, name="archive"),
]
