from django.apps import AppConfig


class IngestConfig(AppConfig):
    name = "webapp.ingest"
    label = "ingest"
