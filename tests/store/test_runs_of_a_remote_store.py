"""Commands with --run on a remote store: only the files of these runs are downloaded, and the others when needed."""

from __future__ import annotations

import pytest
from synthetic_runs import fill, make_row

from repdyn import open_store
from repdyn.cli.main import main
from repdyn.store import find_store

URL = "faulty://host/sweep"
STEPS = (0, 8, 16)
RUNS = ("lab/a", "lab/b", "lab/c")


def rows_of(run):
    return [
        make_row(run=run, step=step, layer=layer, metric="two_nn", value=5.0 + layer + step / 8, probe="3f2a")
        for step in STEPS
        for layer in range(3)
    ]


@pytest.fixture
def remote(faulty, tmp_path, monkeypatch):
    """The filesystem with a store of three runs, none of which this machine has downloaded."""
    store = fill(URL, *map(rows_of, RUNS))
    assert store.drain(20) is None
    monkeypatch.setenv("REPDYN_CACHE", str(tmp_path / "elsewhere"))
    monkeypatch.chdir(tmp_path)
    faulty.requests.clear()
    return faulty


def downloaded(remote) -> dict[str, int]:
    """The number of files that were downloaded since the last call, by the folder of their run."""
    paths = [path for method, path in remote.requests if method == "get_file"]
    remote.requests.clear()
    folders = [path.split("/")[-2] for path in paths]
    return {folder: folders.count(folder) for folder in folders}


def test_the_files_of_the_named_runs_alone_are_downloaded(remote):
    store = find_store(URL, ["lab/b"])
    assert downloaded(remote) == {"lab%2Fb": len(STEPS)}
    assert store.runs() == ["lab/b"]
    assert store.steps("lab/b") == list(STEPS)
    find_store(URL, ["lab/a", "lab/b"])
    assert downloaded(remote) == {"lab%2Fa": len(STEPS)}
    assert find_store(URL).runs() == list(RUNS)
    assert downloaded(remote) == {"lab%2Fc": len(STEPS)}


def test_what_is_new_or_gone_in_other_runs_waits_for_an_opening_that_reads_them(remote):
    find_store(URL)
    changed, gone = (next(path for path in remote.store if run in path) for run in ("lab%2Fa", "lab%2Fc"))
    remote.pipe_file(remote(), changed, remote.store[changed].getvalue() + b" ")
    del remote.store[gone]
    downloaded(remote)
    assert find_store(URL, ["lab/b"]).steps("lab/c") == list(STEPS)
    assert downloaded(remote) == {}
    assert len(find_store(URL).steps("lab/c")) == len(STEPS) - 1
    assert downloaded(remote) == {"lab%2Fa": 1}


@pytest.mark.parametrize(
    "command",
    [
        ["alerts", URL, "--json"],
        ["insights", URL, "--json"],
        ["export", URL, "--to", "csv"],
        ["compact", URL],
        pytest.param(["report", URL], marks=pytest.mark.slow),
        pytest.param(["figures", URL], marks=pytest.mark.slow),
    ],
    ids=lambda command: command[0],
)
def test_commands_download_the_runs_that_are_named(remote, command, quick_images):
    main([*command, "--run", "lab/b"])
    assert downloaded(remote) == {"lab%2Fb": len(STEPS)}


def test_a_message_on_an_unknown_run_names_those_that_there_are(remote, capsys):
    with pytest.raises(SystemExit):
        main(["alerts", URL, "--run", "lab/bb"])
    assert "expected a run of faulty://host/sweep, got 'lab/bb'; did you mean 'lab/b'?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["insights", URL, "--run", "lab/b", "elsewhere"])
    assert "got 'elsewhere'; it has lab/a, lab/b, lab/c" in capsys.readouterr().err


def test_other_runs_are_known_without_their_files(remote):
    assert find_store(URL, ["lab/b"]).has_other_runs("lab/b")
    alone = fill("faulty://host/alone", rows_of("lab/a"))
    assert alone.drain(20) is None
    assert not alone.has_other_runs("lab/a")
    assert not find_store("faulty://host/alone", ["lab/a"]).has_other_runs("lab/a")
    assert not open_store("faulty://host/alone").has_other_runs("lab/a")
