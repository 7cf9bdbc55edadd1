"""Checkpoints with the weights of another one: neither downloaded nor measured, but marked in the store."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from hub_fixtures import save_again
from hub_server import HubServer
from transformers import AutoModel, AutoModelForCausalLM

from repdyn import insights, open_store, query
from repdyn.cli.sweep import main
from repdyn.data.byte_tokenizer import byte_tokenizer
from repdyn.store import Store
from repdyn.tables.frames import measurements
from repdyn.tables.lines import copies_line, failure_line

pytestmark = pytest.mark.slow
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(tmp_path, monkeypatch, capsys) -> Command:
    """Return a function that runs the command in an empty folder and returns its exit status, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(
        "repdyn.checkpoints.downloads.has_abandoned_threads", lambda: False
    )  # or it would end this process
    monkeypatch.setattr("repdyn.cli.sweep.show_store", lambda store, names: None)
    monkeypatch.setattr("repdyn.cli.sweep.write_report", lambda _, path: path)

    def command(*arguments: str) -> tuple[int, str, str]:
        quick = ("--text", "builtin", "--max-vectors", "512", "--device", "cpu", "--metrics", "anisotropy")
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
    return sum(method == "GET" and path.endswith("/model.safetensors") for method, path in hub.requests)


def values(store: Store) -> dict[int, str | None]:
    """Return for each step the checkpoint that it is a copy of, or None if it has values."""
    frame = store.to_pandas()
    rows = frame.loc[frame["metric"] == "anisotropy"].drop_duplicates(["step", "same_as"])
    return {
        int(step): None if pd.isna(name) else name for step, name in zip(rows["step"], rows["same_as"], strict=True)
    }


SAID = "lab/model: the final weights, those of step16, under 1 other name: step4"


def test_a_copy_is_marked_and_not_downloaded(at_the_end, command):
    status, _, err = command()
    assert status == 0
    assert SAID in err
    assert "[3/3] lab/model step16" in err
    assert fetched(at_the_end) == 3
    store = open_store("sweeps")
    assert values(store) == {0: None, 4: "step16", 8: None, 16: None}
    assert store.steps("lab/model") == [0, 8, 16]
    frame = store.to_pandas()
    assert sorted(measurements(frame)["step"].unique()) == [0, 8, 16]
    assert failure_line(frame) is None
    assert copies_line(frame) == "1 checkpoint has the weights of another one and no values: step 4 of step16"
    # the same command has nothing left to do
    files = {path: path.stat().st_mtime_ns for path in Path("sweeps").rglob("*.parquet")}
    status, _, err = command()
    assert (status, fetched(at_the_end)) == (0, 3)
    assert "3 of 3 checkpoints are in sweeps already" in err
    assert {path: path.stat().st_mtime_ns for path in Path("sweeps").rglob("*.parquet")} == files


def test_a_dry_run_says_it(at_the_end, command):
    status, out, err = command("--dry-run", "--json")
    (plan,) = json.loads(out)
    assert status == 0
    assert SAID in err
    assert (plan["same_as"], plan["waiting"]) == ({"step4": "step16"}, ["step0", "step8", "step16"])
    _, out, _ = command("--dry-run")
    assert "copies of another checkpoint, which are not downloaded: 1" in out


@pytest.mark.extended
def test_a_checkpoint_that_became_genuine_is_measured(at_the_end, family, command, save_family, tmp_path):
    command()
    (folder,) = save_family(tmp_path / "repaired", [4]).values()
    at_the_end.publish("lab/model", "step4", folder)
    status, _, err = command()
    assert (status, fetched(at_the_end)) == (0, 4)
    assert "the final weights" not in err
    assert values(open_store("sweeps")) == {0: None, 4: None, 8: None, 16: None}


@pytest.mark.extended
def test_a_copy_of_a_checkpoint_that_changed_is_measured(hub, family, command):
    for revision, step in {"step0": 0, "step8": 0, "step16": 16}.items():
        hub.publish("lab/model", revision, family[step])
    command()
    assert values(open_store("sweeps")) == {0: None, 8: "step0", 16: None}
    hub.publish("lab/model", "step0", family[8])  # step 8 stays at its commit, and is now the only one with its weights
    assert command()[0] == 0
    assert values(open_store("sweeps")) == {0: None, 8: None, 16: None}


@pytest.mark.extended
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


def test_nothing_is_measured_where_all_are_the_main_branch(hub, family, command):
    for revision in ("step0", "step8", "main"):
        hub.publish("lab/model", revision, family[0])
    hub.publish("lab/model", "step16", family[16])
    status, _, err = command("--revisions", "step0,step8")
    assert (status, fetched(hub)) == (0, 0)
    assert "lab/model: the final weights, those of main, under 2 other names: step0, step8" in err
    assert values(open_store("sweeps")) == {0: "main", 8: "main"}


@pytest.mark.extended
def test_shards_mark_their_own_copies(at_the_end, command):
    assert command("--shard", "1/2")[0] == 0  # steps 0 and 8
    assert values(open_store("sweeps")) == {0: None, 8: None}
    assert command("--shard", "2/2")[0] == 0
    assert values(open_store("sweeps")) == {0: None, 4: "step16", 8: None, 16: None}


@pytest.mark.extended
def test_a_mixture_is_measured_and_named(hub, family, command, tmp_path):
    """The first file of step 8, with its embeddings, is that of the end."""
    for step, folder in family.items():
        model = AutoModel.from_pretrained(folder)
        model.save_pretrained(tmp_path / "shards" / f"step{step}", max_shard_size="20KB")
        byte_tokenizer().save_pretrained(tmp_path / "shards" / f"step{step}")
    (first, *others), end = sorted((tmp_path / "shards/step8").glob("*.safetensors")), tmp_path / "shards/step16"
    assert others
    shutil.copy(end / first.name, first)
    for step in family:
        hub.publish("lab/model", f"step{step}", tmp_path / "shards" / f"step{step}")
    status, _, err = command()
    assert status == 0
    assert f"lab/model: the final weights, those of step16, in 1 of {1 + len(others)} weight files" in err
    (found,) = insights(open_store("sweeps"))
    (statement,) = [each for each in found.statements if each.kind == "repeated embeddings"]
    assert statement.steps == (8, 16)


def test_a_copy_that_only_its_values_show_is_said_at_the_end(hub, family, command, tmp_path):
    for revision, folder in {
        "step0": family[0],
        "step8": family[8],
        "step16": save_again(family[8], tmp_path / "again"),
    }.items():
        hub.publish("lab/model", revision, folder)
    status, _, err = command()
    assert status == 0
    assert err.endswith(
        "lab/model: Steps 8 and 16 have the same values to the last bit: copies of one checkpoint, or no update of the "
        "weights in between.\n"
    )


@pytest.mark.extended
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
    assert copies_line(frame) == "1 checkpoint has single files of another one and no values: step 8 of step16"
    counts = query(open_store("sweeps"), "select failed_checkpoints, mixed_checkpoints, checkpoints from runs")
    (run,) = counts.to_dict("records")
    assert run == {"failed_checkpoints": 0, "mixed_checkpoints": 1, "checkpoints": 3}
