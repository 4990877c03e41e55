"""The websocket, with the real Redis between ingest and browser."""

import asyncio
import json
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from channels.layers import get_channel_layer
from django.contrib.auth.models import AnonymousUser, User

from tests.webapp.conftest import Driver
from webapp.accounts.models import Membership
from webapp.runs.consumers import LiveConsumer
from webapp.runs.live import is_watched
from webapp.runs.models import Run

pytestmark = pytest.mark.django_db(transaction=True)


class Socket(ApplicationCommunicator):
    """A browser's end. (channels.testing needs daphne, which we do not serve with.)"""

    def __init__(self, user: Any) -> None:
        super().__init__(LiveConsumer.as_asgi(), {"type": "websocket", "path": "/ws/", "user": user})

    async def open(self) -> None:
        await self.send_input({"type": "websocket.connect"})
        assert (await self.receive_output(5))["type"] == "websocket.accept"

    async def say(self, **message: Any) -> None:
        await self.say_text(json.dumps(message))

    async def say_text(self, text: str) -> None:
        await self.send_input({"type": "websocket.receive", "text": text})

    async def hear(self, kind: str) -> dict[str, Any]:
        """The next message of a kind; others are passed over."""
        while True:
            message: dict[str, Any] = json.loads((await self.receive_output(5))["text"])
            if message["type"] == kind:
                return message

    async def shut(self) -> None:
        await self.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.wait(5)
        await get_channel_layer().flush()


async def _connect(user: Any) -> Socket:
    socket = Socket(user)
    await socket.open()
    return socket


async def test_a_point_arrives_as_a_hint(driver: Driver, victor: User) -> None:
    socket = await _connect(victor)
    await socket.say(type="subscribe", run=str(driver.run.pk), since_seq=0)
    snapshot = await socket.hear("snapshot")
    assert (snapshot["state"], snapshot["stale"]) == ("starting", True)
    reply = await sync_to_async(driver.post)(driver.started(), driver.metrics(1, reward__mean=0.5))
    assert reply.json()["watched"]
    hint = await socket.hear("hint")
    assert hint["run"] == str(driver.run.pk)
    assert {"metrics", "state"} <= set(hint["dirty"])
    run = await Run.objects.aget()
    assert snapshot["seq"] < hint["seq"] == run.revision
    await socket.say(type="subscribe", run=str(driver.run.pk), since_seq=run.revision)
    assert not (await socket.hear("snapshot"))["stale"]
    await socket.shut()


async def test_live_tokens_reach_watchers_only(driver: Driver, victor: User) -> None:
    tokens = [{"text": "let", "entropy": 1.5, "token_class": "reasoning"}]
    chunk = {"stage": 2, "step": 1, "prompt_id": "p", "sample": 0, "position": 0, "tokens": tokens}
    socket = await _connect(victor)
    await socket.say(type="subscribe", run=str(driver.run.pk))
    await socket.hear("snapshot")
    assert (await sync_to_async(_post_live)(driver, chunk)).status_code == 204
    live = await socket.hear("live")
    assert live["chunks"][0]["tokens"][0]["text"] == "let"
    await socket.say(type="unsubscribe", run=str(driver.run.pk))
    await socket.say(type="ping")
    await socket.hear("pong")
    await sync_to_async(_post_live)(driver, chunk)
    assert await socket.receive_nothing(0.4)
    await socket.shut()


def _post_live(driver: Driver, chunk: dict[str, Any]) -> Any:
    from django.test import Client

    return Client().post(
        f"/api/v1/runs/{driver.run.pk}/live",
        {"chunks": [chunk]},
        content_type="application/json",
        headers={"Authorization": f"Bearer {driver.token}"},
    )


def test_live_needs_the_run_token_and_a_batch(driver: Driver) -> None:
    assert _post_live(driver, {"nonsense": 1}).status_code == 422
    driver.token = "wrong"
    assert _post_live(driver, {}).status_code == 401


async def test_strangers_are_refused_and_members_no_longer_members_too(
    driver: Driver, victor: User, charlie: User
) -> None:
    for user in (charlie, victor):
        await Membership.objects.filter(user=victor).adelete()
        socket = await _connect(user)
        await socket.say(type="subscribe", run=str(driver.run.pk))
        assert (await socket.hear("refused"))["reason"] == "no such run"
        await socket.shut()
    assert not await sync_to_async(is_watched)(driver.run.pk)


async def test_anonymous_sockets_are_closed(db: None) -> None:
    socket = await _connect(AnonymousUser())
    assert (await socket.receive_output(5))["code"] == 4401
    await socket.shut()


@pytest.mark.parametrize("text", ["", "[]", "{", "3", '{"type": "dance"}', '{"type": "subscribe", "run": "\\u0000"}'])
async def test_nonsense_is_answered_and_the_socket_lives(victor: User, text: str) -> None:
    socket = await _connect(victor)
    await socket.say_text(text)
    await socket.hear("refused")
    await socket.say(type="ping")
    await socket.hear("pong")
    await socket.shut()


async def test_a_burst_of_hints_is_merged(driver: Driver, victor: User) -> None:
    socket = await _connect(victor)
    await socket.say(type="subscribe", run=str(driver.run.pk))
    await socket.hear("snapshot")
    for step in range(1, 21):
        await sync_to_async(driver.post)(driver.metrics(step, reward__mean=0.5))
    await asyncio.sleep(0.6)
    run = await Run.objects.aget()
    hints = [await socket.hear("hint")]
    while hints[-1]["seq"] < run.revision:
        hints.append(await socket.hear("hint"))
    assert len(hints) < 20
    await socket.shut()
