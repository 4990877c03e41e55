"""The web app's settings on a throwaway data folder: its PostgreSQL and Redis are started by the `services` fixture."""

import os
import tempfile
from pathlib import Path

VAR = Path(tempfile.mkdtemp(prefix="astro-test-"))
os.environ["ASTROLABE_VAR"] = str(VAR)
os.environ.pop("DATABASE_URL", None)
os.environ.pop("REDIS_URL", None)
os.environ["ASTROLABE_ARTIFACTS"] = str(VAR / "artifacts")

from webapp.settings import *  # noqa: E402, F403

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
