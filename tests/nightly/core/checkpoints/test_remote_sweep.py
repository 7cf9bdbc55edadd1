"""A sweep into a remote store: what it measures, uploads and says, and two machines that share
one.
"""

from __future__ import annotations

import pytest
from sweeping import lines

from repdyn import open_store

URL = "faulty://host/sweeps"


@pytest.fixture
def elsewhere(elsewhere):
    return lambda: elsewhere(URL)


def values(store):
    frame = store.to_pandas("lab/model")
    return (
        frame[frame["layer"].notna()]
        .drop(columns=["seconds", "measured_at"])
        .reset_index(drop=True)
    )


def test_a_remote_store_gets_the_values_of_a_local_one(
    faulty, hub, commits, command, shown, elsewhere, tmp_path
):
    assert command("lab/model", "--store", URL)[0] == 0
    assert command("lab/model", "--store", tmp_path / "local")[0] == 0
    assert values(elsewhere()).equals(values(open_store(tmp_path / "local")))
    status, _, err = command("lab/model", "--store", URL)
    assert status == 0
    assert err == f"3 of 3 checkpoints are in {URL} already\n"


def test_what_cannot_be_uploaded_is_kept_and_said(
    faulty, hub, commits, command, shown, elsewhere, monkeypatch
):
    monkeypatch.setattr("repdyn.checkpoints.sweep.UPLOAD_SECONDS", 0.5)
    faulty.faults["put_file"] = ConnectionRefusedError("refused")
    status, _, err = command("lab/model", "--store", URL, "--revisions", "step0,step8")
    assert status == 1
    assert "files are not uploaded" in err
    assert "drain(600)" in lines(err)[-1]
    assert elsewhere().runs() == []
    faulty.faults.clear()
    # the same command uploads it, and measures only the rest
    status, _, err = command("lab/model", "--store", URL)
    assert status == 0
    assert lines(err)[0] == f"2 of 3 checkpoints are in {URL} already"
    assert elsewhere().steps("lab/model") == [0, 8, 16]


@pytest.mark.once
@pytest.mark.process
@pytest.mark.timeout(600)
def test_two_machines_that_sweep_into_the_hub_at_once_store_the_rows_of_one(
    datasets, family, start, tmp_path
):
    """There are no claims on the hub: both may measure a checkpoint, and its rows are stored
    once.
    """
    for step, folder in family.items():
        datasets.publish("lab/model", f"step{step}", folder)
    datasets.create("me/sweep")
    datasets.fault(
        "model.safetensors", "slow", bytes_per_second=20_000
    )  # so that they last as long as each other
    url = "hf://datasets/me/sweep"
    common = {
        "HF_ENDPOINT": datasets.url,
        "HF_TOKEN": "none",
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": "127.0.0.1",
    }

    def sweep(machine, store):
        own = {name: str(tmp_path / machine / name) for name in ("HF_HOME", "REPDYN_CACHE")}
        return start("lab/model", "--store", store, **common, **own)

    both = [sweep(machine, url) for machine in ("first", "second")]
    printed = [process.communicate(timeout=400) for process in both]
    assert [process.returncode for process in both] == [0, 0], printed
    datasets.faults.clear()
    alone = sweep("third", str(tmp_path / "alone"))
    printed_alone = alone.communicate(timeout=300)
    assert alone.returncode == 0, printed_alone

    n_measured = sum(err.count(" of it in the kernels)") for _, err in printed)
    assert n_measured > 3, "no checkpoint was measured by both"
    names = [name for name in datasets.files("me/sweep") if name.endswith(".parquet")]
    assert len(names) == 3
    stored = open_store(url)
    expected = open_store(tmp_path / "alone")
    assert values(stored).equals(values(expected))
    assert (
        not stored.to_pandas()
        .duplicated(["run", "step", "layer", "metric", "subset", "probe"])
        .any()
    )
