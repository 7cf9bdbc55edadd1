"""Checkpoints with the weights of another one: neither downloaded nor measured, but marked in the
store.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable

import pandas as pd
import pytest
from hub_server import HubServer
from sweeping import main
from transformers import AutoModelForCausalLM

from repdyn import open_store, query
from repdyn.data.tokens import byte_tokenizer
from repdyn.store import Store
from repdyn.views.tables.frames import measurements
from repdyn.views.tables.texts import copies_line, failure_line

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(tmp_path, monkeypatch, capsys) -> Command:
    """Return a function that runs the command in an empty folder and returns its exit status,
    output and errors.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(
        "repdyn.checkpoints.hub.has_abandoned_threads", lambda: False
    )  # or it would end this process
    monkeypatch.setattr("repdyn.views.publish.results.show_store", lambda store, names: None)
    monkeypatch.setattr("repdyn.views.report.write_report", lambda _, path: path)

    def command(*arguments: str) -> tuple[int, str, str]:
        quick = (
            "--text",
            "builtin",
            "--max-vectors",
            "512",
            "--device",
            "cpu",
            "--metrics",
            "anisotropy",
        )
        with pytest.raises(SystemExit) as stop:
            main(["lab/model", "--downloads", str(tmp_path / "downloads"), *quick, *arguments])
        assert isinstance(stop.value.code, int)
        return stop.value.code, *capsys.readouterr()

    return command


@pytest.fixture
def at_the_end(hub, family) -> HubServer:
    """A history in which the last step and the main branch are served as step 4 too."""
    for revision, step in {"step0": 0, "step4": 16, "step8": 8, "step16": 16, "main": 16}.items():
        hub.publish("lab/model", revision, family[step])
    return hub


def fetched(hub: HubServer) -> int:
    return sum(
        method == "GET" and path.endswith("/model.safetensors") for method, path in hub.requests
    )


def values(store: Store) -> dict[int, str | None]:
    """Return for each step the checkpoint that it is a copy of, or None if it has values."""
    frame = store.to_pandas()
    rows = frame.query("metric == 'anisotropy'").drop_duplicates(["step", "same_as"])
    return {
        int(step): None if pd.isna(name) else name
        for step, name in zip(rows["step"], rows["same_as"], strict=True)
    }


def test_a_checkpoint_that_became_genuine_is_measured(
    at_the_end, family, command, save_family, tmp_path
):
    command()
    (folder,) = save_family(tmp_path / "repaired", [4]).values()
    at_the_end.publish("lab/model", "step4", folder)
    status, _, err = command()
    assert status == 0
    assert fetched(at_the_end) == 4
    assert "the final weights" not in err
    assert values(open_store("sweeps")) == {0: None, 4: None, 8: None, 16: None}


def test_a_copy_of_a_checkpoint_that_changed_is_measured(hub, family, command):
    for revision, step in {"step0": 0, "step8": 0, "step16": 16}.items():
        hub.publish("lab/model", revision, family[step])
    command()
    assert values(open_store("sweeps")) == {0: None, 8: "step0", 16: None}
    hub.publish(
        "lab/model", "step0", family[8]
    )  # step 8 stays at its commit, and is now the only one with its weights
    assert command()[0] == 0
    assert values(open_store("sweeps")) == {0: None, 8: None, 16: None}


def test_a_measured_copy_loses_its_values(hub, family, command):
    for step, folder in family.items():
        hub.publish("lab/model", f"step{step}", folder)
    command("--revisions", "step0,step8")
    assert values(open_store("sweeps")) == {0: None, 8: None}
    hub.publish("lab/model", "step8", family[0])
    _, _, err = command("--revisions", "step0,step8")
    assert "lab/model: the same weights, copied or not updated in between: step0, step8" in err
    frame = open_store("sweeps").to_pandas()
    assert values(open_store("sweeps")) == {0: None, 8: "step0"}
    assert set(measurements(frame)["step"]) == {0}


def test_a_mixture_of_two_checkpoints_has_no_values(hub, family, command, tmp_path):
    """As in Pythia-12b: step 8 was measured before one of its files became that of the end."""
    sharded = {step: tmp_path / "sharded" / str(step) for step in (0, 8, 12, 16)}
    for step, folder in sharded.items():
        AutoModelForCausalLM.from_pretrained(family[8 if step == 12 else step]).save_pretrained(
            folder, max_shard_size="9KB"
        )
        byte_tokenizer().save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(sharded[12])
    for weights in model.parameters():
        weights.data += 0.01
    model.save_pretrained(sharded[12], max_shard_size="9KB")
    for step, folder in sharded.items():
        hub.publish("lab/model", f"step{step}", folder)
    assert command()[0] == 0
    assert set(values(open_store("sweeps")).values()) == {None}

    first = min(path.name for path in sharded[16].glob("*.safetensors"))
    shutil.copyfile(sharded[16] / first, sharded[8] / first)
    hub.publish("lab/model", "step8", sharded[8])
    _, out, err = command("--dry-run")
    assert "mixtures of two checkpoints, which are not downloaded: 1" in out
    _, out, _ = command("--dry-run", "--json")
    assert json.loads(out)[0]["mixed_with"] == {"step8": "step16"}
    n_requests = len(hub.requests)
    status, _, err = command()
    assert status == 0
    assert "the final weights, those of step16, in 1 of" in err
    assert not [path for _, path in hub.requests[n_requests:] if path.endswith(".safetensors")]
    frame = open_store("sweeps").to_pandas()
    assert sorted(measurements(frame)["step"].unique()) == [0, 12, 16]
    assert failure_line(frame) is None
    assert (
        copies_line(frame)
        == "1 checkpoint has single files of another one and no values: step 8 of step16"
    )
    counts = query(
        open_store("sweeps"), "select failed_checkpoints, mixed_checkpoints, checkpoints from runs"
    )
    (run,) = counts.to_dict("records")
    assert run == {"failed_checkpoints": 0, "mixed_checkpoints": 1, "checkpoints": 3}
