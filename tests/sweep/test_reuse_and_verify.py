"""Rows of a published store taken over, and measured again to check them."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
from lanes import extended_except
from sweep.conftest import lines, weights_fetched

from repdyn import Probe, open_store
from repdyn.cli.main import main
from repdyn.checkpoints.weights import Loading
from repdyn.publish.sharing import push
from repdyn.store import Store, read_rows
from repdyn.store.parquet_files import write_single
from repdyn.store.schema import to_table
from repdyn.checkpoints.verification import choose, find_candidates

pytestmark = pytest.mark.slow
URL = "faulty://host/published"


@pytest.fixture
def published(faulty, hub, commits, command, shown):
    """The first two checkpoints, measured and pushed."""
    assert command("lab/model", "--store", "mine", "--revisions", "step0,step8")[0] == 0
    push(open_store("mine"), URL, author="A. Name")
    return open_store("mine")


def rewrite(store, change):
    """Change every row of a store behind its back."""
    import pyarrow.parquet as pq

    for path in store.path.glob("*/step*.parquet"):
        pq.write_table(to_table([change(row) for row in read_rows(path)]), path)


def test_published_rows_are_taken_and_the_rest_is_measured(published, hub, command):
    before = weights_fetched(hub).total()
    status, _, err = command("lab/model", "--store", "theirs", "--reuse", URL)
    assert status == 0
    assert lines(err)[:2] == [
        f"2 checkpoints are taken from {URL}",
        "2 of 3 checkpoints are in theirs already",
    ]
    assert weights_fetched(hub).total() == before + 1
    theirs = open_store("theirs")
    assert theirs.steps("lab/model") == [0, 8, 16]
    taken = theirs.to_pandas().query("step < 16").reset_index(drop=True)
    assert taken.equals(published.to_pandas())  # the time of the measurement among it
    (certificate,) = (theirs.path / "certificates").glob("*.json")
    assert json.loads(certificate.read_text())["author"] == "A. Name"


@pytest.mark.parametrize("is_compact", [False, True])
def test_rows_under_another_name_are_taken(faulty, hub, commits, command, is_compact):
    assert command("lab/model", "--store", "mine", "--revisions", "step0,step8", "--name", "other")[0] == 0
    if is_compact:
        open_store("mine").compact("other")
    _, _, err = command("lab/model", "--store", "theirs", "--revisions", "step0,step8", "--reuse", "mine")
    assert lines(err)[0] == "2 checkpoints are taken from mine"
    assert open_store("theirs").steps("lab/model") == [0, 8]


@pytest.mark.parametrize(
    "options",
    extended_except(
        {("--metrics", "two_nn")}, [("--metrics", "two_nn"), ("--layers", "*.layers.*"), ("--dtype", "bfloat16")]
    ),
)
def test_rows_of_other_settings_are_not_taken(published, command, options):
    _, _, err = command("lab/model", "--store", "theirs", "--revisions", "step0", "--reuse", URL, *options)
    assert lines(err)[0] == f"0 checkpoints are taken from {URL}"


@pytest.mark.extended
def test_rows_of_another_commit_or_version_are_not_taken(published, command, hub):
    original = {path: path.read_bytes() for path in published.path.glob("*/step*.parquet")}
    rewrite(published, lambda row: dataclasses.replace(row, repdyn_version="0.0.1"))
    _, _, err = command("lab/model", "--store", "a", "--revisions", "step0,step8", "--reuse", "mine")
    assert lines(err)[0] == "0 checkpoints are taken from mine; 2 there have another version of repdyn"
    [path.write_bytes(content) for path, content in original.items()]
    rewrite(published, lambda row: dataclasses.replace(row, checkpoint="lab/model@" + "0" * 40))
    _, _, err = command("lab/model", "--store", "b", "--revisions", "step0,step8", "--reuse", "mine")
    assert lines(err)[0] == "0 checkpoints are taken from mine"


def verified(capsys, *arguments):
    try:
        main(["verify", *arguments])
    except SystemExit as stop:
        return stop.code, capsys.readouterr().out.splitlines()
    return 0, capsys.readouterr().out.splitlines()


def test_a_true_store_is_verified(published, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("REPDYN_CACHE", str(tmp_path / "another"))
    status, out = verified(capsys, URL, "--relative", "0")
    assert status == 0, out
    assert len(out) == 6
    assert all("all agree; largest relative difference 0.0e+00" in line for line in out[:4:2])
    assert all(re.fullmatch(r"  measured by A\. Name with repdyn [^;]*, 20\d\d-\d\d-\d\d", line) for line in out[1:4:2])
    assert out[4] == "2 of 2 checkpoints measured again; tolerances: relative 0, absolute 1e-06"
    assert out[5] == "certificates: 2 of 2 files have a certified checksum by A. Name"


def test_a_file_with_another_content_than_certified_is_found(published, command, hub, capsys):
    command("lab/model", "--store", "theirs", "--revisions", "step0,step8", "--reuse", URL)
    store = open_store("theirs")
    status, out = verified(capsys, "theirs", "--sample", "1")
    assert (status, out[-1]) == (0, "certificates: 2 of 2 files have a certified checksum by A. Name")
    step = 8 if "step 0" in out[0] else 0
    (path,) = store.path.glob(f"*/step{step:09d}-*.parquet")
    write_single(path, to_table([dataclasses.replace(row, seconds=row.seconds + 1) for row in read_rows(path)]))
    with pytest.raises(SystemExit, match="^1$"):
        main(["verify", "theirs", "--json"])
    said = capsys.readouterr()
    assert f"other content than certified: lab%2Fmodel/step{step:09d}-" in said.err
    found = {one["step"]: one for one in json.loads(said.out)}
    assert [found[each]["agrees"] for each in (0, 8)] == [True, True]
    assert [found[each]["certified"] for each in (step, 8 - step)] == [False, True]
    assert [found[each]["authors"] for each in (step, 8 - step)] == [[], ["A. Name"]]
    store.compact("lab/model")
    status, out = verified(capsys, "theirs")
    assert (status, out[-1]) == (
        0,
        "certificates: 0 of 1 files have a certified checksum by A. Name; 1 have none, they were written or joined later",
    )


def test_a_damaged_certificate_is_named(published, capsys):
    (published.path / "certificates").mkdir()
    (published.path / "certificates" / "x.json").write_text('{"sha256": []}')
    with pytest.raises(SystemExit, match="^2$"):
        main(["verify", "mine"])
    assert "expected a certificate of a push, cannot read mine/certificates/x.json" in capsys.readouterr().err


def test_only_the_probes_and_rows_of_the_sample_are_read(tmp_path, monkeypatch, small_probe):
    from stored_rows import KEY, row

    store = open_store(tmp_path / "store")
    store.save_probe(small_probe)
    for run in ("lab/a", "lab/b"):
        for step in range(20):
            key = dataclasses.replace(KEY, run=run, step=step, probe=small_probe.hash)
            checkpoint = f"lab/m@{step:040d}"
            changes = {"run": run, "step": step, "probe": small_probe.hash, "checkpoint": checkpoint}
            store.write(key, [row(layer=layer, tokens_seen=None, **changes) for layer in range(3)])
    loaded, read = [], []
    load, to_pandas = Probe.load, Store.to_pandas
    monkeypatch.setattr(Probe, "load", lambda path: loaded.append(path) or load(path))
    monkeypatch.setattr(Store, "to_pandas", lambda *given, **kept: read.append(given[1]) or to_pandas(*given, **kept))
    candidates, left = find_candidates(store)
    assert (len(candidates), left, loaded) == (40, [], [])
    chosen, left = choose(candidates, store, Loading(), sample=4, seed=1)
    assert (len(chosen), left, len(loaded)) == (4, [], 1)
    assert len(read) == len(set(read))
    for one in chosen:
        assert one.rows["layer"].tolist() == [0, 1, 2]
        assert set(one.rows["step"]) == {one.task.target.step}
    again, _ = choose(candidates, store, Loading(), sample=4, seed=1)
    assert [one.task.target for one in again] == [one.task.target for one in chosen]


def test_a_false_value_is_found(published, capsys):
    rewrite(
        published,
        lambda row: dataclasses.replace(row, value=row.value * 1.01) if (row.layer, row.step) == (1, 8) else row,
    )
    status, out = verified(capsys, "mine")
    assert status == 1
    assert any("largest relative difference 9.9e-03" in line for line in out)
    assert any("layer 1: stored " in line for line in out)


@pytest.mark.extended
def test_the_outcome_as_json(published, capsys):
    rewrite(
        published,
        lambda row: dataclasses.replace(row, value=row.value * 1.01) if (row.layer, row.step) == (1, 8) else row,
    )
    status, out = verified(capsys, "mine", "--json")
    found = {one["step"]: one for one in json.loads("\n".join(out))}
    assert status == 1
    assert [found[step]["agrees"] for step in (0, 8)] == [True, False]
    assert (found[8]["run"], found[8]["reason"]) == ("lab/model", None)
    assert all("layer 1: stored" in line for line in found[8]["differences"])
    assert found[8]["largest_difference"] == pytest.approx(0.0099, abs=1e-4)


def test_a_checkpoint_that_is_gone_is_a_failure(published, capsys, hub, commits):
    hub.fault(f"{commits[8]}/", "status", code=404, headers={"X-Error-Code": "EntryNotFound"})
    hub.repositories["lab/model"].commits.pop(commits[8])
    status, out = verified(capsys, "mine")
    assert status == 1
    assert any(line.startswith("lab/model step 8: not measured: ") for line in out)


def test_a_live_run_cannot_be_verified(tmp_path, capsys):
    from stored_rows import KEY, row

    store = open_store(tmp_path / "live")
    store.write(KEY, [row()])
    with pytest.raises(SystemExit) as stop:
        main(["verify", str(store.path)])
    assert stop.value.code == 2
    assert "live runs alone" in capsys.readouterr().err
