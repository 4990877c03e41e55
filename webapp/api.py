"""The HTTP API: `/api/v1`, described at `/api/docs`."""

from ninja import NinjaAPI

api = NinjaAPI(title="Astrolabe", version="1", docs_url="/docs", openapi_url="/openapi.json")
