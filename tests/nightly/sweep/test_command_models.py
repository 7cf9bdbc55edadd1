"""The whole command against a hub on this machine: several models, plans without measuring, and shards."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from sweeping import MEASURED, lines, reasons, weights_fetched

from repdyn import open_store

pytestmark = pytest.mark.slow


# several models


def test_missing_checkpoints_of_a_suite_are_recorded(hub, family, command, tmp_path):
    for step in (0, 16):
        hub.publish(f"lab/seed0-{step}k", "main", family[step])
    (tmp_path / "mine.yaml").write_text(
        "title: t\ncard: c\nmodels:\n"
        "  - {name: gone, repository: lab/gone, revisions: 'step(?P<step>\\d+)'}\n"
        "  - name: seed0\n    run: lab/seed0\n    checkpoints:\n"
        "      - {for: {k: [0, 8, 16]}, repository: 'lab/seed0-{k}k', step: '{k}k'}\n"
    )
    status, _, err = command("--suite", "mine.yaml")
    assert status == 1
    assert [line for line in err.splitlines() if line.startswith("not measured: ")] == [
        "not measured: gone: the hub knows no repository lab/gone (404); if it is private, log in with 'hf auth login'",
        "not measured: lab/seed0 seed0-8k: the hub knows no repository lab/seed0-8k@main (404); if it is private, log in with 'hf auth login'",
    ]
    store = open_store("sweeps")
    assert (store.runs(), store.steps("lab/seed0")) == (["lab/seed0"], [0, 16_000])
    assert list(reasons(store)) == [8000]
    hub.publish("lab/seed0-8k", "main", family[8])
    command("--suite", "mine.yaml")
    assert store.steps("lab/seed0") == [0, 8000, 16_000], "what has come in the meantime is measured unasked"


def test_a_model_without_a_tokenizer_does_not_stop_the_others(hub, family, commits, command, tmp_path):
    (family[0] / "tokenizer.json").unlink()
    hub.publish("lab/bare", "step0", family[0])
    models = "".join(
        f"  - {{name: {name}, repository: lab/{name}, revisions: 'step(?P<step>\\d+)'}}\n" for name in ("bare", "model")
    )
    (tmp_path / "mine.yaml").write_text(f"title: t\ncard: c\nmodels:\n{models}")
    for more in ([], ["--dry-run"]):
        status, out, err = command("--suite", "mine.yaml", *more)
        if not more:
            assert status == 1
            assert "not measured: lab/bare: expected a tokenizer for bare, found none" in err
            open_store("sweeps").folder_of("lab/bare").mkdir()
    assert status == 1
    assert "not measured: lab/bare: expected a tokenizer for bare, found none" in err
    assert re.search(r"^lab/model +step0, step8, step16 +3 +0 +0 +0 GB +0 GB *$", out, re.MULTILINE)


# without measuring


def test_a_dry_run_downloads_only_listings_and_a_configuration(hub, commits, command, tmp_path):
    status, out, err = command("lab/model", "--dry-run")
    assert (status, err) == (0, "")
    assert re.search(r"^lab/model +step0, step8, step16 +0 +0 +3 ", out, re.MULTILINE)
    files = [path for _, path in hub.requests if "/resolve/" in path]
    assert [path.rpartition("/")[2] for path in files] == ["config.json"]
    listings = [path for _, path in hub.requests if path not in files]
    assert {path.split("/")[4 if "/api/" in path else 3] for path in listings} <= {"model", "refs", "tree"}
    assert not Path("sweeps").exists()
    assert not (tmp_path / "downloads").exists()


def test_a_dry_run_counts_done_and_failed_checkpoints(hub, commits, command):
    hub.fault(f"{commits[8]}/model", "status", code=404, headers={"X-Error-Code": "EntryNotFound"})
    command("lab/model", "--revisions", "step0,step8")
    before = sorted(Path("sweeps").rglob("*"))
    for more, counts in (([], r"1 +1 +1"), (["--retry-failed"], r"1 +0 +2"), (["--metrics", "two_nn"], r"0 +0 +3")):
        _, out, _ = command("lab/model", "--dry-run", *more)
        assert re.search(rf"^lab/model +step0, step8, step16 +{counts} ", out, re.MULTILINE), (more, out)
    assert sorted(Path("sweeps").rglob("*")) == before


def test_the_list_of_suites(hub, command):
    status, out, _ = command("--list-suites")
    assert (status, hub.requests) == (0, [])
    assert "pythia-70m-deduped" in out


def test_plans_and_suites_as_json(hub, commits, command):
    status, out, _ = command("lab/model", "--dry-run", "--json")
    (plan,) = json.loads(out)
    assert (status, plan["model"], plan["waiting"]) == (0, "lab/model", ["step0", "step8", "step16"])
    assert plan["download_bytes"] > plan["largest_bytes"] > 0
    status, out, _ = command("--list-suites", "--json")
    assert (status, len(json.loads(out))) == (0, 20)
    status, out, err = command("lab/model", "--json")
    assert (status, out) == (2, "")
    assert err == "error: expected --json with --dry-run or --list-suites, got it alone; add one of them\n"


# shared out


@pytest.mark.once
def test_shards_measure_every_checkpoint_once(hub, commits, command, shown):
    for shard, revisions in (("1/2", ["step0", "step16"]), ("2/2", ["step8"])):
        status, _, err = command("lab/model", "--shard", shard)
        assert status == 0
        *measured, last = lines(err)
        assert measured == [
            f"[{number}/{len(revisions)}] lab/model {name}: {MEASURED}" for number, name in enumerate(revisions, 1)
        ]
        assert last == "when all shards are done: repdyn figures sweeps, repdyn report sweeps"
    assert open_store("sweeps").steps("lab/model") == [0, 8, 16]
    assert weights_fetched(hub) == dict.fromkeys(commits.values(), 1)
    assert command("lab/model", "--shard", "1/2")[2].startswith("2 of 2 checkpoints are in sweeps already\n")
    assert shown == []
    assert command("lab/model")[0] == 0
    assert shown == [["lab/model"]]


def test_more_shards_than_checkpoints(commits, command):
    status, _, err = command("lab/model", "--shard", "9/9")
    assert (status, err) == (0, "when all shards are done: repdyn figures sweeps, repdyn report sweeps\n")


@pytest.mark.parametrize("name", ["../../outside", "/outside", ".."])
def test_names_stay_inside_the_store(hub, family, command, tmp_path, name):
    hub.publish("lab/model", "../../../runs/step8", family[8])
    assert command("lab/model", "--name", name, "--store", tmp_path / "a" / "b" / "store")[0] == 0
    store = open_store(tmp_path / "a" / "b" / "store")
    assert store.runs() == [name]
    assert set(store.to_pandas()["revision"]) == {"../../../runs/step8"}
    assert not list(tmp_path.rglob("outside"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "downloads", "family"]
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["store"]
