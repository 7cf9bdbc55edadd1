"""The store: atomic files, and every column read as it was written."""

import dataclasses
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from stored_rows import KEY, row

from repdyn import Probe, open_store
from repdyn.store import MeasurementKey
from repdyn.store.schema import COLUMNS, SCHEMA, Checkpoint, Row, scalar_row


def test_rows_are_read_as_written(tmp_path):
    store = open_store(tmp_path / "store")
    undefined = row(layer=2, value=math.nan, reason="constant cloud", causal=None, tokens_seen=None)
    loss = scalar_row(Checkpoint("run", "GPT", 8), "train/loss", 2.5, probe="probehash")
    store.write(KEY, [row(), undefined, loss])
    frame = store.to_pandas()
    assert list(frame.columns) == list(COLUMNS)
    by_metric = frame.set_index(["metric", "layer"])
    first = by_metric.loc[("two_nn", 1)]
    for name in set(COLUMNS) - {"metric", "layer", "measured_at"}:
        assert first[name] == getattr(row(), name) or (getattr(row(), name) is None and pd.isna(first[name])), name
    assert math.isnan(by_metric.loc[("two_nn", 2)]["value"])
    assert by_metric.loc[("two_nn", 2)]["reason"] == "constant cloud"
    assert pd.isna(by_metric.loc[("two_nn", 2)]["tokens_seen"])
    assert frame[frame.metric == "train/loss"]["layer"].isna().all()


def test_schema_has_a_column_for_each_field():
    assert SCHEMA.names == list(COLUMNS) == [field.name for field in dataclasses.fields(Row)]
    assert not SCHEMA.field("step").nullable
    assert SCHEMA.field("layer").nullable


def test_read_and_discard(tmp_path):
    store = open_store(tmp_path)
    rows = [row(), row(layer=2, tokens_seen=None, causal=None)]
    store.write(KEY, rows)
    assert store.read(KEY) == rows
    store.write(KEY.failed, [row(layer=None, value=math.nan, reason="out of memory")])
    assert store.steps("run") == [8]
    (store.path / KEY.filename).unlink()
    assert store.steps("run") == []  # a failure is stored, but is no measurement
    assert store.to_pandas()["reason"].tolist() == ["out of memory"]
    elsewhere = dataclasses.replace(KEY, probe="other")
    store.write(elsewhere.failed, [row(layer=None, value=math.nan, reason="no", probe="other")])
    store.discard_failures(KEY)
    assert KEY.failed not in store
    assert elsewhere.failed in store


def test_file_permissions_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        path = open_store(tmp_path).write(KEY, [row()])
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640


def test_rows_of_different_layer_selections_are_distinct(tmp_path):
    store = open_store(tmp_path)
    store.write(MeasurementKey("run", 8, "p", "one"), [row()])
    store.write(MeasurementKey("run", 8, "p", "two"), [row(layers='["blocks.1"]', value=1.0)])
    assert sorted(store.to_pandas()["value"]) == [1.0, 7.25]


def test_steps_runs_and_membership(tmp_path):
    store = open_store(tmp_path)
    for run, step in [("b/1", 1000), ("b/1", 2), ("a", 0)]:
        store.write(MeasurementKey(run, step, "p", "m"), [row(run=run, step=step)])
    assert store.runs() == ["a", "b/1"]
    assert store.steps("b/1") == [2, 1000]
    assert MeasurementKey("a", 0, "p", "m") in store
    assert MeasurementKey("a", 0, "p", "other metrics") not in store
    assert set(store.to_pandas("a")["run"]) == {"a"}


def test_the_newest_of_two_equal_measurements_counts(tmp_path):
    store = open_store(tmp_path)
    store.write(MeasurementKey("run", 8, "p", "first"), [row(value=1.0, measured_at="2026-01-01T00:00:00")])
    store.write(
        MeasurementKey("run", 8, "p", "second"), [row(value=2.0, measured_at="2026-01-02T00:00:00"), row(layer=2)]
    )
    frame = store.to_pandas()
    assert frame["value"].tolist() == [2.0, 7.25]


@pytest.mark.slow
@pytest.mark.parametrize("run", ["../../x", "..", "/etc", ".hidden", "a/b", "a\\b", "nul\0", "é ü"])
def test_a_run_is_stored_inside_the_store_whatever_its_name(tmp_path, run):
    store = open_store(tmp_path / "store")
    written = store.write(MeasurementKey(run, 8, "p", "m"), [row(run=run)])
    assert written.resolve().parent.parent == (tmp_path / "store").resolve()
    assert store.to_pandas(run)["run"].tolist() == [run]


def test_distinct_runs_have_distinct_folders(tmp_path):
    names = ["a/b", "a%2Fb", "a b", ".a", "%2Ea"]
    assert len({MeasurementKey(name, 0, "p", "m").filename for name in names}) == len(names)


def test_the_probe_is_saved_in_the_store(tmp_path):
    probe = Probe.from_tokens([[1, 2, 3, 4], [5, 6, 7, 8]], max_vectors=6)
    store = open_store(tmp_path)
    path = store.save_probe(probe)
    assert path == store.save_probe(probe)
    assert Probe.load(store.probe_path(probe.hash)).hash == probe.hash


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (
            lambda store: store.write(KEY, []),
            "expected at least one row for run/step000000008-probehash-metrics.parquet",
        ),
        (lambda store: store.to_pandas(), "expected a store with measurements, found none in "),
        (lambda store: store.to_pandas("other"), r"found none in .* of the run 'other'; it has \[\]"),
        (
            lambda store: store.write(MeasurementKey("", 0, "p", "m"), [row()]),
            "expected a run name, got an empty string",
        ),
    ],
)
def test_errors(tmp_path, act, message):
    with pytest.raises(ValueError, match=message):
        act(open_store(tmp_path))


def test_errors_name_damaged_files(tmp_path):
    store = open_store(tmp_path)
    path = store.write(KEY, [row()])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"expected a Parquet file of measurements, cannot read .*step000000008"):
        store.to_pandas()
    pq.write_table(pq.ParquetFile(store.write(KEY, [row()])).read().drop(["layers", "dim"]), path)
    with pytest.raises(ValueError, match="missing layers, dim"):
        store.to_pandas()


def test_nullable_columns_missing_from_older_files_are_null(tmp_path):
    store = open_store(tmp_path)
    path = store.write(KEY, [row(revision="step8")])
    pq.write_table(pq.ParquetFile(path).read().drop(["revision", "parameters"]), path)
    frame = store.to_pandas()
    assert list(frame.columns) == list(COLUMNS)
    assert frame["revision"].isna().all()
    assert frame["parameters"].isna().all()
    assert store.read(KEY)[0].value == 7.25


def test_distinct_values_are_those_of_measured_rows_in_readable_files(tmp_path):
    store = open_store(tmp_path)
    for step, dtype in ((0, "float32"), (1, "bfloat16"), (2, "float32")):
        checkpoint = Checkpoint(run=KEY.run, model="GPT2", step=step)
        rows = [row(step=step, dtype=dtype), scalar_row(checkpoint, "train/loss", 2.0, probe=KEY.probe)]
        store.write(dataclasses.replace(KEY, step=step), rows)
    assert store.distinct(KEY.run, ["dtype", "probe"]) == [
        {"dtype": "float32", "probe": KEY.probe},
        {"dtype": "bfloat16", "probe": KEY.probe},
    ]
    path = tmp_path / dataclasses.replace(KEY, step=1).filename
    path.write_bytes(path.read_bytes()[:-20])
    assert store.distinct(KEY.run, ["dtype"]) == [{"dtype": "float32"}]
    assert store.distinct("no such run", ["dtype"]) == []


def test_the_newer_of_two_publications_of_a_step_counts(tmp_path):
    store = open_store(tmp_path)
    older, newer = (dataclasses.replace(KEY, checkpoint=digit * 40) for digit in "ab")
    store.write(older, [row(value=1.0, measured_at="2025-01-01T00:00:00.000+00:00")])
    assert newer not in store
    store.write(newer, [row(value=2.0, measured_at="2025-01-02T00:00:00.000+00:00")])
    assert store.to_pandas()["value"].tolist() == [2.0]
    assert (store.steps("run"), older in store, "aaaaaaaaaaaa" in older.filename) == ([8], True, True)


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.process
def test_a_claim_is_exclusive_and_ends_with_its_process(tmp_path):
    store = open_store(tmp_path)
    claim = store.claim(KEY)
    assert claim is not None
    assert open_store(tmp_path).claim(KEY) is None
    claim.release()
    killed = subprocess.run(
        [sys.executable, "-c", _CLAIM_AND_DIE, str(tmp_path)],
        capture_output=True,
        check=False,
        cwd=Path(__file__).parents[1],
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert store.claim(KEY) is not None


_CLAIM_AND_DIE = """
import os, signal, sys
from stored_rows import KEY
from repdyn import open_store
claim = open_store(sys.argv[1]).claim(KEY)
assert claim is not None
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_failure_that_a_later_measurement_replaced_is_not_shown(tmp_path):
    """As where a process is killed after it has stored the rows, before it deletes the failure."""
    store = open_store(tmp_path)
    failure = row(layer=None, value=math.nan, reason="out of memory", measured_at="2026-01-01T00:00:00.000+00:00")
    store.write(KEY.failed, [failure])
    assert store.to_pandas()["reason"].tolist() == ["out of memory"]
    store.write(KEY, [row(measured_at="2026-01-01T00:00:01.000+00:00")])
    assert store.to_pandas()["reason"].isna().all()
    later = dataclasses.replace(failure, measured_at="2026-01-01T00:00:02.000+00:00")  # of another set of metrics, say
    store.write(dataclasses.replace(KEY, metrics="other").failed, [later])
    assert store.to_pandas()["reason"].notna().sum() == 1


def test_a_failure_is_replaced_by_its_own_measurement_whatever_the_clock_says(tmp_path):
    store = open_store(tmp_path)
    failure = row(layer=None, value=math.nan, reason="out of memory", measured_at="2026-01-01T00:00:05.000+00:00")
    store.write(KEY.failed, [failure, dataclasses.replace(failure, metric="surprisal")])
    store.write(KEY, [row(measured_at="2026-01-01T00:00:04.000+00:00")])
    assert store.to_pandas()["reason"].isna().all()
    store.write(dataclasses.replace(KEY, step=KEY.step + 1), [row(step=KEY.step + 1)])
    store.compact(KEY.run)
    assert store.to_pandas()["reason"].isna().all()


def test_a_copy_stays_one_beside_its_own_measurement(tmp_path):
    store = open_store(tmp_path)
    store.write(KEY, [row()])
    store.write(KEY.failed, [row(layer=None, value=math.nan, reason="a copy", same_as="step0")])
    assert store.to_pandas()["same_as"].tolist() == ["step0"]


def test_a_failure_stays_where_only_other_metrics_are_measured_later(tmp_path):
    store = open_store(tmp_path)
    failure = row(layer=None, value=math.nan, reason="no head", measured_at="2026-01-01T00:00:00.000+00:00")
    failures = [dataclasses.replace(failure, metric=name) for name in ("surprisal", "two_nn")]
    store.write(dataclasses.replace(KEY, metrics="with head").failed, failures)
    store.write(KEY, [row(metric="two_nn", measured_at="2026-01-01T00:00:01.000+00:00")])
    frame = store.to_pandas()
    assert frame.loc[frame["reason"].notna(), "metric"].tolist() == ["surprisal"]


def test_a_failed_write_leaves_no_file(tmp_path):
    store = open_store(tmp_path)
    with pytest.raises(Exception, match="int64|integer|convert"):
        store.write(KEY, [row(step="eight")])
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


KILLED_WRITER = """
import itertools, sys
sys.path[:0] = [{tests!r}]
from stored_rows import row
from repdyn.store import MeasurementKey, Store
store = Store({path!r})
rows = [row(layer=layer) for layer in range(2000)]
print("ready", flush=True)
for step in itertools.count():
    store.write(MeasurementKey("run", step % 50, "p", "m"), rows)
"""


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.process
def test_a_store_is_readable_after_a_killed_write(tmp_path):
    script = KILLED_WRITER.format(tests=str(Path(__file__).parents[1]), path=str(tmp_path / "store"))
    for delay in (0.05, 0.11, 0.23):
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        while not list(tmp_path.glob("store/*/step*.parquet")):
            time.sleep(0.001)  # on a busy machine the first write alone may take longer than the delay
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
        frame = open_store(tmp_path / "store").to_pandas()
        assert set(frame.groupby("step").size()) == {2000}


def test_a_run_whose_folder_is_a_link_is_not_written_through(tmp_path):
    store = open_store(tmp_path / "store")
    for step in (0, 8):
        store.write(dataclasses.replace(KEY, step=step), [row(step=step)])
    store.folder_of("run").rename(tmp_path / "elsewhere")
    store.folder_of("run").symlink_to(tmp_path / "elsewhere")
    before = sorted(path.name for path in (tmp_path / "elsewhere").iterdir())
    for change in (lambda: store.write(KEY, [row()]), lambda: store.compact("run"), lambda: store.split("run")):
        with pytest.raises(ValueError, match="expected a folder for the run 'run' in .*, got a symbolic link"):
            change()
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == before
    assert store.steps("run") == [0, 8]  # reading follows it
