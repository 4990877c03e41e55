from django.urls import path

from webapp.cluster import views

app_name = "cluster"

urlpatterns = [path("cluster/", views.page, name="page"), path("cluster/notice/", views.notice, name="notice")]
