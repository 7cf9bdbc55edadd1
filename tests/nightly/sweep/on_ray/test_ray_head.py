"""The head of a Ray cluster that is out of reach for a while, or for good."""

from __future__ import annotations

import socket
import time
from types import SimpleNamespace

import pytest

from repdyn.checkpoints import ray_engine
from repdyn.checkpoints import ray_engine as ray_head
from repdyn.checkpoints.ray_engine import ClusterHead, ClusterLostError


@pytest.fixture
def listening():
    """A socket that stands for the control service of a head."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def head(listening, monkeypatch):
    monkeypatch.setattr(ray_head, "LOST_SECONDS", 0.2)
    return ClusterHead(f"127.0.0.1:{listening.getsockname()[1]}")


def test_a_head_out_of_reach_is_lost_after_a_while(head, listening):
    head.check()
    listening.close()
    head.check()
    time.sleep(0.3)
    with pytest.raises(ClusterLostError, match=r"out of reach for 0.2 s; what is measured is stored: start the clus"):
        head.check()


def test_a_head_that_comes_back_is_not_lost(head, listening):
    port = listening.getsockname()[1]
    listening.close()
    head.check()
    with socket.create_server(("127.0.0.1", port)):
        time.sleep(0.3)
        head.check()
        head.wait()
    head.check()  # out of reach again: from here on the time counts
    time.sleep(0.3)
    with pytest.raises(ClusterLostError):
        head.check()


def test_a_head_in_another_network_is_not_watched(monkeypatch):
    monkeypatch.setattr(ray_head, "LOST_SECONDS", 0.0)
    head = ClusterHead("127.0.0.1:9")
    attempts = []
    monkeypatch.setattr(ray_head, "check_reachable", attempts.append)
    head.check()
    head.wait()
    assert attempts == []


def test_workers_that_are_lost_with_the_head_are_no_failures(head, listening):
    listening.close()
    lost = type("NodeDiedError", (Exception,), {})
    names = ("RayTaskError", "WorkerCrashedError", "OutOfMemoryError")
    exceptions = SimpleNamespace(NodeDiedError=lost, **{name: type(name, (Exception,), {}) for name in names})

    def get(_):
        raise lost

    with pytest.raises(ClusterLostError):
        # without a store that a failure could be written to
        ray_engine._outcome(SimpleNamespace(get=get, exceptions=exceptions), None, None, None, None, head)
