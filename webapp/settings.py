"""Every setting of the web app. The environment is read here, once, and nowhere else.

`ASTROLABE_VAR` is the folder for everything the project writes; the other variables say where its
services are. Without any of them the embedded services under `var/` are used.
"""

import os
from pathlib import Path
from secrets import token_urlsafe
from typing import Any
from urllib.parse import urlsplit

from psycopg.conninfo import conninfo_to_dict

from webapp.pages.charts import plotly_static

BASE_DIR = Path(__file__).resolve().parent.parent


def _env(name: str, default: str) -> str:
    return os.environ.get(name) or default


def _env_bool(name: str, default: bool) -> bool:
    value = _env(name, "1" if default else "0").lower()
    if value not in ("0", "1", "true", "false"):
        raise ValueError(f"{name} must be 0 or 1, not {value!r}")
    return value in ("1", "true")


def _env_list(name: str, default: str) -> list[str]:
    return [part.strip() for part in _env(name, default).split(",") if part.strip()]


def _stored_secret(path: Path) -> str:
    """The secret in a file only we can read; made on first use. Two processes starting at once agree on one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    mine = path.with_name(f"{path.name}.{os.getpid()}")
    if not path.exists():
        mine.touch(mode=0o600)
        mine.write_text(token_urlsafe(50))
        try:
            os.link(mine, path)
        except FileExistsError:
            pass
        finally:
            mine.unlink()
    return path.read_text().strip()


def _database(url: str) -> dict[str, Any]:
    parts = {k: v for k, v in conninfo_to_dict(url).items() if v is not None}
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    known = {django: str(parts.pop(libpq, "")) for django, libpq in names.items()}
    return {
        "ENGINE": "django.db.backends.postgresql",
        **known,
        "CONN_MAX_AGE": 0,
        "OPTIONS": {**parts, "application_name": "astrolabe"},
    }


def _celery_broker(redis_url: str) -> str:
    return "redis+socket://" + redis_url.removeprefix("unix://") if redis_url.startswith("unix://") else redis_url


# --- Where things are -------------------------------------------------------------------------
ASTROLABE_VAR = Path(_env("ASTROLABE_VAR", str(BASE_DIR / "var"))).absolute()
ASTROLABE_ARTIFACTS = Path(_env("ASTROLABE_ARTIFACTS", str(ASTROLABE_VAR / "artifacts"))).absolute()
ASTROLABE_URL = _env("ASTROLABE_URL", "http://127.0.0.1:8000").rstrip("/")
DATABASE_URL = _env("DATABASE_URL", f"postgresql://postgres@/astrolabe?host={ASTROLABE_VAR / 'postgres'}")
REDIS_URL = _env("REDIS_URL", f"unix://{ASTROLABE_VAR / 'redis' / 'redis.sock'}")
RAY_DASHBOARD_URL = _env("RAY_DASHBOARD_URL", "http://127.0.0.1:8265").rstrip("/")
SANDBOX_URLS = _env_list("SANDBOX_URLS", "http://127.0.0.1:8088")
SANDBOX_TOKEN = _env("SANDBOX_TOKEN", "")
SANDBOX_URLS_OF_RUNS = _env("SANDBOX_URLS", "")  # none named: a run asks its Ray cluster, then its own machine
RECIPES_DIR = BASE_DIR / "recipes"

# --- Security ---------------------------------------------------------------------------------
SECRET_KEY = os.environ.get("SECRET_KEY") or _stored_secret(ASTROLABE_VAR / "secret_key")
DEBUG = _env_bool("DEBUG", False)
ALLOWED_HOSTS = _env_list("ALLOWED_HOSTS", f"localhost,127.0.0.1,[::1],{urlsplit(ASTROLABE_URL).hostname}")
CSRF_TRUSTED_ORIGINS = _env_list("CSRF_TRUSTED_ORIGINS", "")
_HTTPS = _env_bool("ASTROLABE_HTTPS", ASTROLABE_URL.startswith("https://"))
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if _HTTPS else None
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _HTTPS
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'self'"],
        "script-src": ["'self'"],
        "style-src": ["'self'", "'unsafe-inline'"],  # Plotly writes style rules
        "img-src": ["'self'", "data:", "blob:"],
        "connect-src": ["'self'"],  # covers the websocket of the same origin
        "object-src": ["'none'"],
        "base-uri": ["'none'"],
        "form-action": ["'self'"],
        "frame-ancestors": ["'none'"],
    }
}

# --- Django -----------------------------------------------------------------------------------
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "django_htmx",
    "ninja",  # the API page's own static files: no CDN
    "webapp.accounts",
    "webapp.runs",
    "webapp.ingest",
    "webapp.datasets",
    "webapp.trajectories",
    "webapp.benchmarks",
    "webapp.cluster",
    "webapp.pages",
    "webapp.embedded",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    }
]
ROOT_URLCONF = "webapp.urls"
ASGI_APPLICATION = "webapp.asgi.application"
DATABASES = {"default": _database(DATABASE_URL)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "login"
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
USE_I18N = False
APPEND_SLASH = True
DATA_UPLOAD_MAX_MEMORY_SIZE = 8 * 1024 * 1024  # the largest body that is read into memory
DATA_UPLOAD_MAX_NUMBER_FIELDS = 2000

# --- Static files -----------------------------------------------------------------------------
STATIC_URL = "/static/"
STATIC_ROOT = ASTROLABE_VAR / "static"
STATIC_ROOT.mkdir(parents=True, exist_ok=True)
STATICFILES_DIRS = [BASE_DIR / "webapp" / "static", *plotly_static()]
_COLLECTED = (STATIC_ROOT / "staticfiles.json").exists() and not DEBUG
WHITENOISE_USE_FINDERS = not _COLLECTED
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"
        if _COLLECTED or _env_bool("ASTROLABE_COLLECT", False)
        else "django.contrib.staticfiles.storage.StaticFilesStorage"
    },
}

# --- Channels and Celery ----------------------------------------------------------------------
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [REDIS_URL], "prefix": "astrolabe"},
    }
}
CELERY_BROKER_URL = _celery_broker(REDIS_URL)
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_SERIALIZER = "json"
CELERY_TASK_TIME_LIMIT = 120
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": 300}
CELERY_BEAT_SCHEDULE_FILENAME = str(ASTROLABE_VAR / "celerybeat-schedule")
CELERY_BEAT_SCHEDULE = {
    # An unrun tick is worth nothing once the next one is due.
    "reconcile-runs": {"task": "webapp.runs.tasks.reconcile_runs", "schedule": 3.0, "options": {"expires": 3.0}},
}

# --- Run control ------------------------------------------------------------------------------
RUN_STOP_DEADLINE_S = 30
RUN_START_TIMEOUT_S = 300
RUN_HEARTBEAT_TIMEOUT_S = 30
RUN_UNREACHABLE_TIMEOUT_S = 600  # no heartbeat while Ray cannot be asked
RUN_RESUBMIT_AFTER_S = 15
INGEST_MAX_BODY_BYTES = 8 * 1024 * 1024

# --- Logging ----------------------------------------------------------------------------------
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": _env("LOG_LEVEL", "INFO")},
    "loggers": {"httpx": {"level": "WARNING"}, "ray": {"level": "WARNING"}},
}
