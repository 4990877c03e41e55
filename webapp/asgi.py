"""The ASGI application: HTTP to Django, websockets to the live consumer."""

import os
import warnings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")

from django.core.asgi import get_asgi_application

application = get_asgi_application()
