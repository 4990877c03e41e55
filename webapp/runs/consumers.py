"""The one websocket: `/ws/`. It carries hints and live tokens; whoever misses one asks again over HTTP.

In:  {type: subscribe, run, since_seq}  {type: unsubscribe, run}  {type: ping}
Out: {type: snapshot, run, seq, attempt, state, stale}  {type: hint, run, seq, dirty, attempt}
     {type: live, run, chunks}  {type: refused, run, reason}  {type: pong}
"""

import asyncio
import contextlib
from typing import Any

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from django.core.exceptions import PermissionDenied
from django.http import Http404

from webapp.runs.access import get_run
from webapp.runs.live import group_of, mark_watched
from webapp.runs.models import Run

MAX_SUBSCRIPTIONS = 20
MAX_MESSAGE_CHARS = 4096
HINT_INTERVAL_S = 0.25
LIVE_INTERVAL_S = 0.1
MAX_LIVE_WAITING = 256
NOT_SIGNED_IN = 4401


class LiveConsumer(AsyncJsonWebsocketConsumer):
    """Hints are merged and live chunks bounded (oldest dropped): a slow browser costs a slow picture, not memory."""

    async def connect(self) -> None:
        self.subscribed: set[str] = set()
        self.hints: dict[str, dict[str, Any]] = {}
        self.chunks: dict[str, list[dict[str, Any]]] = {}
        self.sender: asyncio.Task[None] | None = None
        await self.accept()
        if not self.scope["user"].is_authenticated:
            await self.close(NOT_SIGNED_IN)
            return
        self.sender = asyncio.create_task(self._send_waiting())

    async def disconnect(self, code: int) -> None:
        for run_id in self.subscribed:
            await self.channel_layer.group_discard(group_of(run_id), self.channel_name)
        if self.sender:
            self.sender.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.sender

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None, **kwargs: Any) -> None:
        if text_data is None or len(text_data) > MAX_MESSAGE_CHARS:
            await self._refuse("", "messages are JSON texts of at most 4096 characters")
            return
        try:
            content = await self.decode_json(text_data)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            await self._refuse("", "messages are JSON objects")
            return
        await self.receive_json(content)

    async def receive_json(self, content: dict[str, Any], **kwargs: Any) -> None:
        run_id = str(content.get("run", ""))[:64]
        match content.get("type"):
            case "subscribe":
                await self._subscribe(run_id, content.get("since_seq"))
            case "unsubscribe" if run_id in self.subscribed:
                self.subscribed.discard(run_id)
                await self.channel_layer.group_discard(group_of(run_id), self.channel_name)
            case "ping":
                await self._mark_watched()
                await self.send_json({"type": "pong"})
            case _:
                await self._refuse(run_id, "unknown message")

    async def run_hint(self, event: dict[str, Any]) -> None:
        """Merged with those not yet sent: the newest seq, all that is dirty."""
        waiting = self.hints.setdefault(event["run"], {"type": "hint", "run": event["run"], "dirty": set()})
        waiting["seq"] = max(event["seq"], waiting.get("seq", 0))
        waiting["attempt"] = event["attempt"]
        waiting["dirty"] |= set(event["dirty"])

    async def run_live(self, event: dict[str, Any]) -> None:
        waiting = self.chunks.setdefault(event["run"], [])
        waiting.extend(event["chunks"])
        del waiting[:-MAX_LIVE_WAITING]

    async def _subscribe(self, run_id: str, since_seq: Any) -> None:
        run = await database_sync_to_async(self._find_run)(run_id)
        if run is None or (len(self.subscribed) >= MAX_SUBSCRIPTIONS and str(run.pk) not in self.subscribed):
            await self._refuse(run_id, "no such run" if run is None else "too many subscriptions on one socket")
            return
        run_id = str(run.pk)
        await self.channel_layer.group_add(group_of(run_id), self.channel_name)
        self.subscribed.add(run_id)
        await self._mark_watched()
        # Read after joining the group: what changes from now on comes as a hint.
        await database_sync_to_async(run.refresh_from_db)(fields=["revision", "state", "attempt_number"])
        await self.send_json(
            {
                "type": "snapshot",
                "run": run_id,
                "seq": run.revision,
                "attempt": run.attempt_number,
                "state": run.state,
                "stale": since_seq != run.revision,
            }
        )

    def _find_run(self, run_id: str) -> Run | None:
        """Permission is decided anew with each subscription."""
        try:
            return get_run(self.scope["user"], run_id)
        except (Http404, PermissionDenied):
            return None

    async def _mark_watched(self) -> None:
        for run_id in self.subscribed:
            await asyncio.to_thread(mark_watched, run_id)

    async def _send_waiting(self) -> None:
        """Hints at most four times a second; live chunks ten."""
        beats = 0
        while True:
            await asyncio.sleep(LIVE_INTERVAL_S)
            beats += 1
            chunks, self.chunks = self.chunks, {}
            for run_id, of_run in chunks.items():
                await self.send_json({"type": "live", "run": run_id, "chunks": of_run})
            if self.hints and beats * LIVE_INTERVAL_S >= HINT_INTERVAL_S:
                beats = 0
                hints, self.hints = self.hints, {}
                for hint in hints.values():
                    await self.send_json({**hint, "dirty": sorted(hint["dirty"])})

    async def _refuse(self, run_id: str, reason: str) -> None:
        await self.send_json({"type": "refused", "run": run_id, "reason": reason})
