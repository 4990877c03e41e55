"""The Celery application. Tasks live in each app's `tasks.py`, are short and may run twice."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")

app = Celery("astrolabe")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
