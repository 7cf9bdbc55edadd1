"""A training whose rows go to a remote store: it is what it was, however bad the network."""

from __future__ import annotations

import logging
import time

import pytest
from jobs import Loop, run

from repdyn import Tracker, open_store
from repdyn.store import remote
from repdyn.store.remote import RefusedError
from repdyn.tracking import begin, writer

URL = "faulty://host/runs/mine"


@pytest.fixture(autouse=True)
def _short_waits(faulty, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("repdyn.tracking.run.UPLOAD_SECONDS", 1.0)


@pytest.fixture
def elsewhere(elsewhere):
    return lambda: elsewhere(URL)


def trained(probe, **options):
    loop = Loop()
    run(loop, Tracker(loop.model, probe, schedule=2, store=URL, on_error="raise", **options), 5)
    return loop.losses


def test_rows_are_uploaded_while_the_training_goes_on(small_probe, without_figures, elsewhere):
    loop = Loop()
    with Tracker(loop.model, small_probe, schedule=2, store=URL, on_error="raise") as tracker:
        assert tracker.store.location == URL
        deadline = time.monotonic() + 20
        while elsewhere().steps("mine") != [0] and time.monotonic() < deadline:
            time.sleep(0.05)
        assert elsewhere().steps("mine") == [0]
        for _ in range(5):
            tracker.step(loss=loop.step(), tokens=48)
    assert elsewhere().steps("mine") == [0, 2, 4, 5]


@pytest.mark.parametrize(
    ("fault", "method"),
    [
        (ConnectionRefusedError("refused"), "put_file"),
        (PermissionError("ExpiredToken"), "put_file"),
        (ConnectionResetError("cut"), "find"),
        (60.0, "put_file"),
        (60.0, "find"),
    ],
)
def test_a_dead_network_neither_stops_nor_slows_a_training(
    faulty, small_probe, without_figures, elsewhere, caplog, monkeypatch, fault, method
):
    for module in (writer, begin):
        monkeypatch.setattr(module, "STORE_SECONDS", 0.5)
    expected = Loop()
    [expected.step() for _ in range(5)]
    faulty.faults[method] = fault
    started = time.monotonic()
    with caplog.at_level(logging.WARNING):
        losses = trained(small_probe)
    assert time.monotonic() - started < 20
    assert losses == expected.losses
    if method == "put_file":
        assert "files are not uploaded" in caplog.text
    faulty.faults.clear()
    monkeypatch.setattr(remote, "REQUEST_SECONDS", 5.0)
    if not isinstance(fault, float):  # what waits would be uploaded during the next test
        assert open_store(URL, refresh=False).drain(20) is None


def test_the_next_start_uploads_the_rest(faulty, small_probe, without_figures, elsewhere):
    faulty.faults["put_file"] = ConnectionRefusedError("refused")
    trained(small_probe)
    assert elsewhere().runs() == []
    faulty.faults.clear()
    store = open_store(URL)
    assert store.drain(20) is None
    assert elsewhere().to_pandas().equals(store.to_pandas())


def test_refused_credentials_are_an_error_at_the_start(faulty, small_probe):
    faulty.faults["find"] = PermissionError("InvalidAccessKeyId")
    with pytest.raises(RefusedError, match="renew"):
        trained(small_probe)


def test_a_run_of_the_same_name_on_another_machine_is_another_run(
    faulty, small_probe, without_figures, elsewhere
):
    trained(small_probe)
    trained(small_probe)
    assert len(elsewhere().runs()) == 2


def test_views_go_to_the_current_folder(faulty, small_probe, tmp_path, quick_images):
    trained(small_probe)
    assert (tmp_path / "mine" / "report.html").exists()
    assert (tmp_path / "mine" / "figures" / "mean_over_layers.png").exists()
    assert not list(open_store(URL).path.rglob("*.png"))


@pytest.mark.parametrize("ends", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("method", ["put_file", "find"])
def test_what_ends_a_training_does_not_wait_long_for_a_dead_network(
    faulty, small_probe, without_figures, monkeypatch, ends, method
):
    """A scheduler may leave 10 s between a signal and the end of the process, in which a user
    saves.
    """
    monkeypatch.setattr("repdyn.tracking.run.UPLOAD_SECONDS", 60.0)
    loop = Loop()
    tracker = Tracker(loop.model, small_probe, schedule=1, store=URL)
    interrupted = 0.0

    def train() -> None:
        nonlocal interrupted
        with tracker:
            faulty.faults[method] = 60.0
            tracker.step(loss=loop.step())
            interrupted = time.monotonic()
            raise ends

    with pytest.raises(ends):
        train()
    assert time.monotonic() - interrupted < 5
