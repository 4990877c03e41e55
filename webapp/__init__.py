"""Records, shows, controls. Imports no trainer, no torch; of sandbox only sandbox.client; ray only in the launcher."""

from webapp.celery import app as celery_app

__all__ = ["celery_app"]
