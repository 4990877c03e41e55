"""The ASGI application: HTTP to Django, websockets to the live consumer."""

import os
import warnings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")

from django.core.asgi import get_asgi_application

django_application = get_asgi_application()

# These load models, so they come after Django's set-up.
from channels.auth import AuthMiddlewareStack  # noqa: E402
from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from channels.security.websocket import AllowedHostsOriginValidator  # noqa: E402
from django.urls import path  # noqa: E402

from webapp.runs.consumers import LiveConsumer  # noqa: E402

# WhiteNoise streams files synchronously; they are small and Django reads them at once.
warnings.filterwarnings("ignore", message="StreamingHttpResponse must consume synchronous iterators")

application = ProtocolTypeRouter(
    {
        "http": django_application,
        "websocket": AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter([path("ws/", LiveConsumer.as_asgi())]))),
    }
)
