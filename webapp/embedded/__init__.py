"""The embedded set: PostgreSQL, Redis and the one supervisor behind `manage.py up`. Nothing here knows a run."""
