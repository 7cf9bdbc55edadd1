"""Ranges of files, from a hub that knows ranges and from one that sends whole files."""

from __future__ import annotations

import pytest

from repdyn.checkpoints.hub import Hub
from repdyn.checkpoints.errors import CheckpointError


@pytest.fixture
def commit(hub, tmp_path):
    (tmp_path / "content").mkdir()
    (tmp_path / "content" / "config.json").write_bytes(b"0123456789")
    return hub.publish("lab/model", "main", tmp_path / "content")


def test_a_part_and_the_whole(hub, commit):
    assert Hub().read_range("lab/model", commit, "config.json", 2, 5) == b"234"
    assert Hub().read_range("lab/model", commit, "config.json", 0, 10) == b"0123456789"


def test_a_server_without_ranges(hub, commit, monkeypatch):
    """A whole file is what was asked for; of another one nothing is read."""
    monkeypatch.setattr("hub_server._range", lambda asked, size: (200, 0, size))
    assert Hub().read_range("lab/model", commit, "config.json", 0, 10) == b"0123456789"
    for start, stop in ((0, 5), (2, 5), (2, 10)):
        with pytest.raises(CheckpointError, match=f"expected {stop - start} bytes of config.json .*, got 0 "):
            Hub().read_range("lab/model", commit, "config.json", start, stop)
