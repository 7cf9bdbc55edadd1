"""The command that joins the files of runs."""

import json

import pytest
from stored_rows import row
from synthetic_runs import fill, make_published

from repdyn import open_store
from repdyn.cli.main import main
from repdyn.store import MeasurementKey


@pytest.fixture
def store(tmp_path):
    return fill(tmp_path / "store", make_published("lab/a", steps=(0, 8)) + make_published("lab/b", steps=(0, 8, 16)))


def n_files(store, run):
    return len(list(store.folder_of(run).glob("*.parquet")))


def test_all_runs_and_one(store, capsys):
    main(["compact", str(store.path), "--run", "lab/b"])
    assert capsys.readouterr().out.startswith("lab/b: 3 files of 0.")
    assert (n_files(store, "lab/a"), n_files(store, "lab/b")) == (2, 1)
    main(["compact", str(store.path)])
    assert capsys.readouterr().out.splitlines()[1] == "lab/b: nothing to join"
    assert n_files(store, "lab/a") == 1


def test_as_json(store, capsys):
    main(["compact", str(store.path), "--run", "lab/b", "--json"])
    (done,) = json.loads(capsys.readouterr().out)
    assert (done["run"], done["store"], done["joined"]) == ("lab/b", str(store.path), True)
    assert (done["files_before"], done["files_after"], done["unreadable"]) == (3, 1, [])
    main(["compact", str(store.path), "--run", "lab/b", "--csv"])
    header, line = capsys.readouterr().out.splitlines()
    assert header == "store,run,joined,files_before,files_after,bytes_before,bytes_after,unreadable"
    assert line == f"{store.path},lab/b,False,,,,,[]"


def test_a_remote_store_is_compact_when_the_command_ends(faulty, capsys):
    remote = open_store("faulty://host/sweep")
    for step in (1, 2):
        remote.write(MeasurementKey("run", step, "p", "m"), [row(step=step)])
    assert remote.drain(20) is None
    main(["compact", remote.location])
    assert [path for path in faulty.store if "-compact-" in path] == [path for path in faulty.store]


def test_a_damaged_file_is_named(store, capsys):
    path = next(store.folder_of("lab/b").glob("step000000008*.parquet"))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(SystemExit) as stopped:
        main(["compact", str(store.path)])
    assert stopped.value.code == 1
    assert path.name in capsys.readouterr().out
    assert n_files(store, "lab/b") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["store", "--run", "lab/c"], "expected a run of these stores (lab/a, lab/b), got 'lab/c'"),
        (["nowhere"], "expected stores with measurements, found none in nowhere"),
    ],
)
def test_mistakes(store, arguments, message, capsys, monkeypatch):
    monkeypatch.chdir(store.path.parent)
    with pytest.raises(SystemExit) as stopped:
        main(["compact", *arguments])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_while_another_process_does_it(store, capsys):
    from filelock import FileLock

    with FileLock(store._lock_path("compact lab/a")), pytest.raises(SystemExit) as stopped:
        main(["compact", str(store.path)])
    assert stopped.value.code == 2
    assert "wait for the other" in capsys.readouterr().err


def test_names_with_escape_sequences(tmp_path, capsys):
    for step in (1, 2):
        open_store(tmp_path).write(MeasurementKey("\x1b[2J", step, "p", "m"), [row(run="\x1b[2J", step=step)])
    main(["compact", str(tmp_path)])
    assert "\x1b" not in capsys.readouterr().out
