"""Lists of files: what the hub says of each, one request for a commit, and none for one that is known."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha1, sha256

import pytest

from repdyn.checkpoints.hub import Hub, RemoteFile
from repdyn.checkpoints.errors import CheckpointError
from repdyn.checkpoints.listings import list_commits


@pytest.fixture
def commits(hub, tmp_path) -> list[tuple[str, str]]:
    """Two commits, each with weights and a configuration."""
    found = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_text(name)
        (tmp_path / name / "config.json").write_text("{}")
        found.append(("lab/model", hub.publish("lab/model", name, tmp_path / name, date="2024-02-03")))
    return found


def test_what_is_known_of_a_file(commits):
    weights = RemoteFile(3, sha256(b"one").hexdigest(), sha1(b"blob 3\0one").hexdigest())
    config = RemoteFile(2, None, sha1(b"blob 2\0{}").hexdigest())
    files = list_commits(Hub(), commits[:1])[commits[0]]
    assert files == {"model.safetensors": weights, "config.json": config}
    assert (weights.digest, config.digest) == (weights.sha256, config.oid)


def test_dates_on_request(commits):
    files = list_commits(Hub(), commits, with_dates=True)[commits[1]]
    assert not isinstance(files, CheckpointError)
    assert {file.date for file in files.values()} == {datetime(2024, 2, 3, tzinfo=UTC)}


def test_a_commit_is_asked_for_once(hub, commits, tmp_path):
    ticks = []
    first = list_commits(
        Hub(), [*commits, *commits], folder=tmp_path / "kept", with_dates=True, listed=lambda: ticks.append(1)
    )
    n_requests = len(hub.requests)
    assert (n_requests, len(ticks)) == (2, 2)
    again = Hub()
    assert list_commits(again, commits, folder=tmp_path / "kept", with_dates=True) == first
    assert len(hub.requests) == n_requests
    assert [again.files(*commits[0]) for _ in range(2)] == [list_commits(Hub(), commits)[commits[0]]] * 2
    assert len(hub.requests) == n_requests + 3


@pytest.mark.parametrize("content", ["{", "[]", '{"model.safetensors": {"n_bytes": 3}}', '{"a": null}'])
def test_a_damaged_list_is_asked_for_again(hub, commits, tmp_path, content):
    found = list_commits(Hub(), commits, folder=tmp_path / "kept")
    (kept,) = (tmp_path / "kept").glob(f"*/{commits[0][1]}.json")
    kept.write_text(content)
    n_requests = len(hub.requests)
    assert list_commits(Hub(), commits, folder=tmp_path / "kept") == found
    assert len(hub.requests) == n_requests + 1


def test_a_commit_that_is_not_there_has_a_reason(commits):
    gone = ("lab/model", "0" * 40)
    found = list_commits(Hub(), [gone, *commits])
    assert isinstance(found[gone], CheckpointError)
    assert "no such revision" in str(found[gone])
    assert not isinstance(found[commits[0]], CheckpointError)
