"""Hints to browsers over the channel layer, and whether anybody watches a run. Postgres stays the truth:
whoever misses a hint finds the gap by the revision and asks again over HTTP."""

import functools
import logging
from collections.abc import Iterable
from typing import Any
from uuid import UUID

import redis
from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.conf import settings
from django.db import transaction

logger = logging.getLogger(__name__)

WATCHED_FOR_S = 45


def group_of(run_id: UUID | str) -> str:
    return f"run.{run_id}"


def announce_on_commit(run_id: UUID, revision: int, dirty: Iterable[str], attempt: int) -> None:
    """Tell the browsers of a run which parts of it changed, once the change is committed."""
    message = {
        "type": "run.hint",
        "run": str(run_id),
        "seq": revision,
        "dirty": sorted(set(dirty)),
        "attempt": attempt,
    }
    transaction.on_commit(functools.partial(_send, run_id, message), robust=True)


def send_live(run_id: UUID, chunks: list[dict[str, Any]]) -> None:
    """Tokens being generated: shown now or never."""
    _send(run_id, {"type": "run.live", "run": str(run_id), "chunks": chunks})


def _send(run_id: UUID, message: dict[str, Any]) -> None:
    try:
        async_to_sync(get_channel_layer().group_send)(group_of(run_id), message)
    except (redis.RedisError, OSError) as error:
        logger.warning("no hint for run %s: Redis does not answer: %s", run_id, error)


@functools.cache
def _redis() -> redis.Redis:
    return redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2)


def _watched_key(run_id: UUID | str) -> str:
    return f"astrolabe:watched:{run_id}"


def is_watched(run_id: UUID | str) -> bool:
    try:
        return bool(_redis().exists(_watched_key(run_id)))
    except (redis.RedisError, OSError):
        return False


def mark_watched(run_id: UUID | str) -> None:
    """Consumers call this on subscribing and with every ping; the mark fades when they stop."""
    try:
        _redis().set(_watched_key(run_id), 1, ex=WATCHED_FOR_S)
    except (redis.RedisError, OSError) as error:
        logger.warning("cannot mark run %s as watched: %s", run_id, error)
