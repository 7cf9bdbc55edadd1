"""The pages: who is answered, what they hold, and the events."""

from __future__ import annotations

import asyncio
import json

import pytest
from starlette.testclient import TestClient
from synthetic_runs import fill, make_rows

from repdyn.utils.addresses import LOCAL
from repdyn.watch.app import Feed, build_app
from repdyn.watch.index import Index

TOKEN = "a-token-of-tests"


STEPS = (0, 10, 20)


@pytest.fixture
def index(tmp_path):
    fill(tmp_path, *(make_rows(run=run, steps=STEPS, n_blocks=2) for run in ("first", "second")))
    index = Index([tmp_path], interval=0.0)
    while index.poll(10.0):
        pass
    return index


def client_of(index, token=TOKEN, **given):
    app = build_app(Feed(index, interval=0.05), hosts=LOCAL, token=token)
    return TestClient(app, base_url="http://localhost:8765", follow_redirects=False, **given)


@pytest.fixture
def client(index):
    """A browser that has opened the printed address."""
    client = client_of(index)
    client.get(f"/?token={TOKEN}")
    return client


def key_of(index, label):
    return next(key for key, summary in index.summaries.items() if summary["label"] == label)


def test_every_answer_forbids_what_the_pages_do_not_need(client, index):
    for path in ("/", f"/run/{key_of(index, 'first')}", "/nothing"):
        headers = client.get(path).headers
        assert headers["content-security-policy"] == "frame-ancestors 'none'"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"


def test_several_runs_are_compared(client, index):
    keys = [key_of(index, label) for label in ("second", "first")]
    text = client.get(f"/compare?run={keys[0]}&run={keys[1]}").text
    assert "<title>2 runs: first to second</title>" in text


def events(feed, number, keys=None, between=lambda: None):
    """The content of the first events."""

    async def collect():
        found = []
        async for event in feed.events(keys):
            name, data = event.strip().split("\n")
            assert name == "event: runs"
            found.append(json.loads(data.removeprefix("data: ")))
            if len(found) == number:
                return found
            between()
            feed._notify()

    return asyncio.run(asyncio.wait_for(collect(), 10.0))


def labels(event):
    return [run["label"] for run in event["runs"]]


def test_a_page_of_one_run_hears_of_this_one_and_of_its_end(index, tmp_path):
    def delete():
        for file in (tmp_path / "first").iterdir():
            file.unlink()
        index.poll(10.0)

    key = key_of(index, "first")
    whole, changed = events(Feed(index, 1.0), 2, [key], between=delete)
    assert labels(whole) == ["first"]
    assert (changed["runs"], changed["gone"]) == ([], [key])


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
