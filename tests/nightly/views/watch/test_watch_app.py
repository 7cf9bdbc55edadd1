"""The pages: who is answered, what they hold, and the events."""

from __future__ import annotations

import asyncio
import json

from watched import index as index

from repdyn.views.watch.app import Feed


def test_a_look_that_fails_is_said_and_the_next_one_made(index, monkeypatch):
    def fail(seconds):
        raise OSError("the disk is gone")

    feed = Feed(index, 0.01)

    async def follow():
        polling = asyncio.create_task(feed.poll())
        stream = feed.events(None)
        await anext(stream)
        monkeypatch.setattr(index, "poll", fail)
        while "the disk is gone" not in (event := await anext(stream)):
            pass
        monkeypatch.undo()
        polling.cancel()
        return json.loads(event.strip().partition("data: ")[2])

    assert asyncio.run(asyncio.wait_for(follow(), 10.0))["problem"] == "OSError: the disk is gone"


def test_streams_end_with_the_server(index):
    feed = Feed(index, 1.0)

    async def collect():
        stream = feed.events(None)
        await anext(stream)
        feed.close()
        return [event async for event in stream]

    assert asyncio.run(asyncio.wait_for(collect(), 5.0)) == []
