"""Compact files: what is read stays the same, whatever happens while they are written."""

import dataclasses
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from stored_rows import KEY, row

from repdyn import open_store
from repdyn.store import MeasurementKey, compact_files
from repdyn.store.compact_files import compact_parts, is_compact
from repdyn.store.run_files import RunFiles


def at(step, **changes):
    return dataclasses.replace(KEY, step=step, **changes)


def fill(store, steps, value=1.0):
    for step in steps:
        store.write(at(step), [row(step=step, layer=layer, value=value + step + layer) for layer in range(3)])


def files(store):
    return sorted(path.name for path in store.folder_of("run").glob("*.parquet"))


@pytest.fixture
def store(tmp_path):
    store = open_store(tmp_path / "store")
    fill(store, range(0, 60, 10))
    store.write(at(70).failed, [row(step=70, layer=None, value=float("nan"), reason="out of memory")])
    return store


def test_what_is_read_stays_the_same(store):
    frame, steps, distinct = store.to_pandas(), store.steps("run"), store.distinct("run", ["dtype", "design"])
    rows = store.read(at(30))
    done = store.compact("run")
    assert (done.files_before, done.files_after, done.unreadable) == (7 - 1, 1, ())
    assert done.bytes_after < done.bytes_before
    assert [is_compact(name) for name in files(store)] == [True, False]
    assert files(store)[0].startswith("step000000000-000000050-compact-000001-")
    pd.testing.assert_frame_equal(store.to_pandas(), frame)
    assert (store.steps("run"), store.runs(), store.read(at(30))) == (steps, ["run"], rows)
    assert store.distinct("run", ["dtype", "design"]) == distinct
    assert at(30) in store
    assert at(35) not in store
    assert at(30, metrics="other") not in store
    assert store.compact("run") is None


def test_other_readers_see_all_rows(store, tmp_path):
    expected = store.to_pandas("run").query("layer == layer")["value"].tolist()
    store.compact("run")
    measured = [path for path in store.folder_of("run").glob("step*.parquet") if "failed" not in path.name]
    read = pd.concat([pd.read_parquet(path) for path in measured])
    assert read.sort_values(["step", "layer"])["value"].tolist() == expected


def test_a_single_file_written_later_counts(store):
    store.compact("run")
    fill(store, [30], value=100.0)
    frame = store.to_pandas()
    assert frame.query("step == 30")["value"].tolist() == [130.0, 131.0, 132.0]
    assert len(frame) == 6 * 3 + 1
    # with fewer rows than before: none of the older ones may come back
    store.write(at(30), [row(step=30, layer=0, value=7.0)])
    for _ in range(2):
        assert store.to_pandas().query("step == 30")["value"].tolist() == [7.0]
        assert [one.value for one in store.read(at(30))] == [7.0]
        store.compact("run")
    assert len(files(store)) == 2


def test_complete_files_are_left_alone_and_later_generations_count(store, monkeypatch):
    monkeypatch.setattr(compact_files, "ROWS_PER_FILE", 6)
    monkeypatch.setattr("repdyn.store.run_files.ROWS_PER_FILE", 6)
    before = store.to_pandas()
    assert store.compact("run").files_after == 3
    complete = set(files(store))
    pd.testing.assert_frame_equal(store.to_pandas(), before)
    fill(store, [30], value=100.0)
    fill(store, [80])
    assert store.compact("run").files_after == 4
    assert complete < set(files(store))
    frame = store.to_pandas()
    assert frame.query("step == 30")["value"].tolist() == [130.0, 131.0, 132.0]
    assert len(frame) == 7 * 3 + 1
    assert store.read(at(30))[0].value == 130.0


def test_row_groups_do_not_divide_a_part(store, monkeypatch):
    monkeypatch.setattr(compact_files, "_ROWS_PER_GROUP", 4)
    before = store.to_pandas()
    store.compact("run")
    (path,) = (store.folder_of("run") / name for name in files(store) if is_compact(name))
    assert pq.read_metadata(path).num_row_groups == 3
    pd.testing.assert_frame_equal(store.to_pandas(), before)
    assert [one.value for one in store.read(at(50))] == [51.0, 52.0, 53.0]
    assert sum(map(len, compact_parts(path).values())) == pq.read_metadata(path).num_rows == 18


def test_a_damaged_single_file_is_left_and_named(store):
    path = store.path / at(20).filename
    path.write_bytes(path.read_bytes()[:-20])
    done = store.compact("run")
    assert len(done.unreadable) == 1
    assert path.name in done.unreadable[0]
    assert path.exists()
    assert (done.files_before, done.files_after) == (6, 2)
    assert (at(20) in store, at(30) in store) == (False, True)


@pytest.mark.parametrize("where", [0.2, 0.5, "index"])
def test_a_damaged_compact_file_is_an_error(store, where):
    """A sweep that took its checkpoints for missing would measure all of them again."""
    store.compact("run")
    path = next(path for path in store.folder_of("run").glob("*-compact-*"))
    content = bytearray(path.read_bytes())
    # the names of the parts stand in the index alone
    content[content.rindex(b"step0000") if where == "index" else int(where * len(content))] ^= 1
    path.write_bytes(content)
    reads = [store.to_pandas, lambda: at(30) in store, lambda: store.compact("run")]
    if where == "index":
        reads.append(lambda: store.steps("run"))
    for read in reads:
        with pytest.raises(ValueError, match="to have the content that its name states, got another; move it away"):
            read()


def test_steps_are_listed_from_the_index_alone(store, monkeypatch):
    steps = store.steps("run")
    store.compact("run")
    path = next(path for path in store.folder_of("run").glob("*-compact-*"))
    content = bytearray(path.read_bytes())
    content[len(content) // 5] ^= 1
    path.write_bytes(content)
    assert store.steps("run") == steps
    assert store.runs() == ["run"]
    with pytest.raises(ValueError, match="to have the content that its name states"):
        store.to_pandas("run", columns=["step"])


def test_every_flipped_bit_of_the_index_is_noticed(store):
    """An index that names another step would have it measured again."""
    store.compact("run")
    path = next(path for path in store.folder_of("run").glob("*-compact-*"))
    whole, names = path.read_bytes(), list(compact_parts(path))
    first = whole.index(b"repdyn.parts")
    for place in range(first, min(first + 400, len(whole)), 3):
        content = bytearray(whole)
        content[place] ^= 1
        path.write_bytes(content)
        compact_files._parts.cache_clear()  # the clock of files is not that fast
        with suppress(ValueError):
            assert list(compact_parts(path)) == names  # the bit was in what other programs read
    compact_files._parts.cache_clear()
    path.write_bytes(whole)
    assert list(compact_parts(path)) == names


def test_an_early_compact_file_without_a_digest_of_its_index(store, monkeypatch):
    steps, frame = store.steps("run"), store.to_pandas()
    with monkeypatch.context() as earlier:
        earlier.setattr(compact_files, "_DIGEST_OF_PARTS", "unknown")
        store.compact("run")
    compact_files._parts.cache_clear()
    path = next(path for path in store.folder_of("run").glob("*-compact-*"))
    assert compact_files._DIGEST_OF_PARTS.encode() not in pq.read_metadata(path).metadata
    assert store.steps("run") == steps
    pd.testing.assert_frame_equal(store.to_pandas(), frame)
    content = bytearray(path.read_bytes())
    content[len(content) // 5] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="to have the content that its name states"):
        store.steps("run")


def test_two_processes_do_not_compact_at_once(store):
    from filelock import FileLock

    with FileLock(store._lock_path("compact run")), pytest.raises(BlockingIOError, match="wait for the other"):
        store.compact("run")


def test_files_that_are_joined_while_they_are_read(store, monkeypatch):
    before = store.to_pandas()
    listed = RunFiles.__init__
    compacted = []

    def listing(self, *given):
        listed(self, *given)
        if not compacted:
            compacted.append(True)
            open_store(store.path).compact("run")

    monkeypatch.setattr(RunFiles, "__init__", listing)
    pd.testing.assert_frame_equal(store.to_pandas(), before)
    assert compacted


def test_a_file_that_is_written_again_while_it_is_joined_survives(store):
    def progress(done, total):
        assert total == 6
        if done == 4:
            fill(store, [0], value=500.0)

    store.compact("run", progress)
    assert store.read(at(0))[0].value == 500.0
    assert store.to_pandas().query("step == 0")["value"].tolist() == [500.0, 501.0, 502.0]


def test_split_is_the_inverse(store):
    before, names = store.to_pandas(), files(store)
    store.compact("run")
    fill(store, [30], value=100.0)
    changed = store.to_pandas()
    store.split("run")
    assert files(store) == names
    pd.testing.assert_frame_equal(store.to_pandas(), changed)
    fill(store, [30])
    columns = before.columns.drop("measured_at")
    pd.testing.assert_frame_equal(store.to_pandas()[columns], before[columns])


def test_runs_with_many_files_are_made_compact_at_their_end(store):
    store.compact_at_end("run")
    assert len(files(store)) == 7
    fill(store, range(100, 158))
    store.compact_at_end("run")
    assert len(files(store)) == 2


def test_nothing_to_join(tmp_path):
    store = open_store(tmp_path)
    assert store.compact("run") is None
    fill(store, [0])
    assert store.compact("run") is None
    assert store.to_pandas()["step"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("at_call", range(9))
def test_interrupted_at_each_change_of_the_folder(store, monkeypatch, at_call):
    """Every state of the files on the way reads as before, and the next attempt completes it."""
    monkeypatch.setattr(compact_files, "ROWS_PER_FILE", 9)
    monkeypatch.setattr("repdyn.store.run_files.ROWS_PER_FILE", 9)
    before, calls = store.to_pandas(), []

    def interrupted(original):
        def act(self, *given, **settings):
            calls.append(original)
            if len(calls) == at_call + 1:
                raise KeyboardInterrupt
            return original(self, *given, **settings)

        return act

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", interrupted(Path.unlink))
        patch.setattr(Path, "replace", interrupted(Path.replace))
        with pytest.raises(KeyboardInterrupt):
            store.compact("run")
    pd.testing.assert_frame_equal(store.to_pandas(), before)
    store.compact("run")
    pd.testing.assert_frame_equal(store.to_pandas(), before)
    assert all(is_compact(name) or "failed" in name for name in files(store))


KILLED = """
import os, signal, sys, threading, time
from repdyn import open_store
store = open_store(sys.argv[1])
threading.Timer(float(sys.argv[2]), lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
while True:
    store.compact("run")
    time.sleep(0.001)
"""


@pytest.mark.extended
@pytest.mark.once
@pytest.mark.slow
@pytest.mark.process
def test_killed_at_random_moments(tmp_path):
    store = open_store(tmp_path)
    for step in range(60):
        store.write(at(step), [row(step=step, layer=layer, value=step + layer / 64) for layer in range(64)])
    before = store.to_pandas()
    for milliseconds in range(2, 200, 28):
        killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), str(milliseconds / 1000)], check=False)
        assert killed.returncode == -signal.SIGKILL
        pd.testing.assert_frame_equal(store.to_pandas(), before)
        # a few files of their own again, as of a resumed run
        for step in range(milliseconds % 7, 60, 9):
            store.write(at(step), store.read(at(step)))
    store.compact("run")
    pd.testing.assert_frame_equal(store.to_pandas(), before)
    assert len(files(store)) == 1


def test_the_key_of_a_long_name(tmp_path):
    store = open_store(tmp_path)
    key = MeasurementKey("a/" + "x" * 300, 3, "probe", "metrics", "c" * 40)
    for step in (3, 4):
        store.write(dataclasses.replace(key, step=step), [row(run=key.run, step=step)])
    frame = store.to_pandas(key.run)
    assert store.compact(key.run).files_after == 1
    assert key in store
    pd.testing.assert_frame_equal(store.to_pandas(key.run), frame)
    assert os.listdir(tmp_path / Path(key.filename).parent)[0].startswith("step000000003-000000004-compact-")
