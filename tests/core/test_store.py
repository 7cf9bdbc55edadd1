"""The store: atomic files, every column read as it was written, and a frame of the rows that
count.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stored_rows import KEY, row
from synthetic_runs import fill, make_published, make_row, make_rows

from repdyn import Probe, open_store
from repdyn.kernels.kernel import UndefinedCode
from repdyn.store import MeasurementKey, Store, find_store, find_stores, stores_of
from repdyn.store import store as store_module
from repdyn.store.counting import READ_FIRST
from repdyn.store.files import is_whole, read_rows
from repdyn.store.meanings import MEANING_KEY, column_meanings
from repdyn.store.schema import (
    COLUMNS,
    DESCRIPTIONS,
    SCHEMA,
    Checkpoint,
    Estimate,
    PointCloud,
    Quantity,
    ReasonCode,
    failure_rows,
    scalar_row,
)
from repdyn.views.display import Display, display_of
from repdyn.views.tables.style import metric_title

DOCS = Path(__file__).parents[2] / "docs"


# one measurement


def test_a_file_tells_what_its_columns_mean(tmp_path):
    store = open_store(tmp_path / "store")
    fields = pq.read_schema(store.write(KEY, [row()]))
    meanings = {name: fields.field(name).metadata[MEANING_KEY].decode() for name in COLUMNS}
    assert meanings == column_meanings()
    assert all(meanings.values())
    assert meanings["low"].startswith("Lower end of the 95% interval")


def test_rows_are_read_as_written(tmp_path):
    """A column that is left out, or NaN that becomes null, shows here."""
    store = open_store(tmp_path / "store")
    undefined = row(layer=2, value=math.nan, reason="constant cloud", causal=None, tokens_seen=None)
    loss = scalar_row(
        Checkpoint(run="run", model="GPT", step=8, trainer_step=16, rank=1),
        "train/loss",
        2.5,
        probe="probehash",
    )
    store.write(KEY, [row(weights_kind="averaged", way="shadow"), undefined, loss])
    frame = store.to_pandas()
    assert list(frame.columns) == list(READ_FIRST)
    assert list(COLUMNS) == SCHEMA.names
    parts = (Checkpoint, PointCloud, Quantity, Estimate)
    of_parts = [field.name for part in parts for field in dataclasses.fields(part)]
    assert sorted(COLUMNS) == sorted(of_parts)
    assert sorted(READ_FIRST) == sorted(COLUMNS)
    by_metric = frame.set_index(["metric", "layer"])
    first = by_metric.loc[("two_nn", 1)]
    written = row(weights_kind="averaged", way="shadow")
    for name in set(COLUMNS) - {"metric", "layer", "measured_at"}:
        assert first[name] == written.columns()[name] or (
            written.columns()[name] is None and pd.isna(first[name])
        ), name
    second = by_metric.loc[("two_nn", 2)]
    assert math.isnan(second["value"])
    assert pd.isna(second["tokens_seen"])
    assert second["reason"] == "constant cloud"
    scalar = frame.query("metric == 'train/loss'")
    assert scalar[["layer", "trainer_step", "rank"]].isna().to_numpy().tolist() == [
        [True, False, False]
    ]
    assert store.read(KEY)[1].reason == "constant cloud"


def test_the_title_of_a_users_metric_is_stored_with_its_rows(tmp_path, monkeypatch):
    shown = {"title": "Drift per step", "unit": "radians", "scale": "signed"}
    monkeypatch.setitem(DESCRIPTIONS, "drift", shown)
    store = open_store(tmp_path)
    store.write(KEY, [row(metric="drift[power=2]"), row()])
    DESCRIPTIONS.clear()  # as in another process
    store.to_pandas()
    assert display_of("drift") == Display(title="Drift per step", unit="radians", scale="signed")
    assert metric_title("drift[power=2]") == "Drift per step, power 2"
    assert DESCRIPTIONS.keys() == {"drift"}


def test_the_same_key_replaces_and_a_failure_is_no_step(tmp_path):
    store = open_store(tmp_path)
    store.write(KEY.failed, [row(layer=None, value=math.nan, reason="out of memory")])
    assert store.steps("run") == []
    assert KEY not in store
    assert KEY.failed in store
    store.write(KEY, [row(value=1.0)])
    store.write(KEY, [row(value=2.0), row(layer=2)])
    assert store.steps("run") == [8]
    assert store.to_pandas()["value"].tolist() == [2.0, 7.25]


def test_a_step_that_is_published_again_has_a_file_of_its_own(tmp_path):
    store = open_store(tmp_path)
    older, newer = (dataclasses.replace(KEY, checkpoint=digit * 40) for digit in "ab")
    store.write(older, [row(value=1.0, measured_at="2025-01-01T00:00:00.000+00:00")])
    assert newer not in store
    store.write(newer, [row(value=2.0, measured_at="2025-01-02T00:00:00.000+00:00")])
    assert store.to_pandas()["value"].tolist() == [2.0]
    assert store.steps("run") == [8]
    assert older in store


@pytest.mark.parametrize(
    "run", ["../../x", "..", "/etc", ".hidden", "a/b", "a\\b", "nul\0", "é ü", "x" * 300]
)
def test_a_run_is_stored_inside_the_store_whatever_its_name(tmp_path, run):
    store = open_store(tmp_path / "store")
    written = store.write(MeasurementKey(run=run, step=8, probe="p", metrics="m"), [row(run=run)])
    assert written.resolve().parent.parent == (tmp_path / "store").resolve()
    assert store.to_pandas(run)["run"].tolist() == [run] == store.runs()


def test_distinct_runs_have_distinct_folders():
    names = ["a/b", "a%2Fb", "a b", ".a", "%2Ea", "a--b"]
    assert len(
        {MeasurementKey(run=name, step=0, probe="p", metrics="m").filename for name in names}
    ) == len(names)


@pytest.mark.parametrize("field", ["run", "checkpoint", "probe", "metrics"])
def test_measurements_that_differ_in_one_thing_have_files_of_their_own(tmp_path, field):
    """Else the second would replace the first."""
    store = open_store(tmp_path)
    store.write(KEY, [row(value=1.0)])
    store.write(dataclasses.replace(KEY, **{field: "other"}), [row(value=2.0)])
    assert len(list(tmp_path.rglob("*.parquet"))) == 2


def test_a_failed_write_leaves_no_file(tmp_path):
    with pytest.raises((pa.ArrowException, TypeError)):
        open_store(tmp_path).write(KEY, [row(step="eight")])
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_file_permissions_follow_the_umask(tmp_path):
    """A file made by ``tempfile`` would be readable by its owner alone."""
    before = os.umask(0o027)
    try:
        path = open_store(tmp_path).write(KEY, [row()])
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_probe_is_saved_once(tmp_path):
    probe = Probe.from_tokens([[1, 2, 3, 4], [5, 6, 7, 8]], max_vectors=6)
    store = open_store(tmp_path)
    assert store.save_probe(probe) == store.save_probe(probe)
    assert Probe.load(store.probe_path(probe.hash)).hash == probe.hash


# files of others


def damaged(content: bytes) -> bytes:
    middle = len(content) // 3
    return (
        content[:middle]
        + bytes(byte ^ 0xFF for byte in content[middle : middle + 8])
        + content[middle + 8 :]
    )


@pytest.mark.parametrize(
    "change",
    [lambda content: content[:-20], lambda content: b"", lambda content: b"x" * 1000, damaged],
)
def test_a_damaged_file_is_named_left_out_and_measured_again(tmp_path, change, caplog):
    """One empty file ended the reading of a whole store."""
    store = open_store(tmp_path)
    for step in (0, 8):
        path = store.write(
            dataclasses.replace(KEY, step=step),
            [row(step=step, layer=layer) for layer in range(50)],
        )
    path.write_bytes(change(path.read_bytes()))
    assert KEY not in store
    assert set(store.to_pandas()["step"]) == {0}
    assert "step000000008" in caplog.text
    with pytest.raises(ValueError, match="step000000008"):
        store.read(KEY)


def test_runs_share_the_types_of_texts_that_they_have_in_common(tmp_path):
    """Making the types of each run anew took longer than reading its rows."""
    store = open_store(tmp_path)
    for run in ("first", "second"):
        rows = [row(run=run, layer=layer, metric=f"metric{layer}") for layer in range(3)]
        store.write(dataclasses.replace(KEY, run=run), rows)
    first = store.to_pandas("first", categorical=True)
    second = store.to_pandas("second", categorical=True)
    assert all(first[name].dtype is second[name].dtype for name in ("model", "metric", "reason"))
    assert first["run"].cat.categories.tolist() == ["first"]


def test_a_key_is_looked_up_without_reading_a_row(tmp_path, monkeypatch):
    """A resumed sweep of 154 checkpoints with all metrics began with a minute of reading."""
    store = open_store(tmp_path)
    store.write(KEY, [row(layer=layer) for layer in range(50)])
    for owner, name in ((pq.ParquetFile, "read"), (store_module, "read_rows")):
        monkeypatch.setattr(owner, name, lambda *given, **options: pytest.fail("rows are read"))
    assert KEY in store


def test_one_changed_byte_anywhere_is_seen_without_reading_a_row(tmp_path):
    """In the footer as well, of which many bytes can change and rows are still read: a changed
    checksum of a page, a metric's description or a column's statistics.
    """
    path = open_store(tmp_path).write(KEY, [row(layer=layer) for layer in range(50)])
    content = path.read_bytes()
    assert is_whole(path)
    for position in range(0, len(content), 97):
        changed = bytearray(content)
        changed[position] ^= 1
        path.write_bytes(changed)
        assert not is_whole(path), position
    path.write_bytes(content[:-1])
    assert not is_whole(path)


def test_rows_that_another_program_rewrote_are_still_there(tmp_path):
    """It copies the metadata, and with it the checksum of the file as it was."""
    store = open_store(tmp_path)
    path = store.write(KEY, [row(layer=layer) for layer in range(50)])
    pq.write_table(pq.ParquetFile(path).read(), path, compression="zstd")
    assert not is_whole(path)
    assert KEY in store


def test_a_table_of_something_else_is_refused(tmp_path):
    path = open_store(tmp_path).write(KEY, [row()])
    whole = pq.ParquetFile(path).read()
    for table in (pa.table({"a": [1]}), whole.slice(0, 0), whole.drop(["run"])):
        pq.write_table(table, path)
        with pytest.raises(ValueError, match="found none"):
            open_store(tmp_path).to_pandas()
        with pytest.raises(ValueError, match="step000000008"):
            open_store(tmp_path).read(KEY)
        assert KEY not in open_store(tmp_path)


def test_nullable_columns_that_a_file_lacks_are_null(tmp_path):
    store = open_store(tmp_path)
    path = store.write(KEY, [row(revision="step8")])
    pq.write_table(pq.ParquetFile(path).read().drop(["revision", "parameters", "run_id"]), path)
    frame = store.to_pandas()
    assert list(frame.columns) == list(READ_FIRST)
    assert frame[["revision", "parameters", "run_id"]].isna().all().all()
    assert store.read(KEY)[0].value == 7.25


def test_files_of_other_programs_are_read(tmp_path):
    """Pandas writes large strings; a file may hold the rows of many checkpoints."""
    store = open_store(tmp_path / "one")
    for step in (0, 8, 16):
        store.write(
            dataclasses.replace(KEY, step=step),
            [row(step=step), row(step=step, metric="norm", layer=None)],
        )
    copy = open_store(tmp_path / "two")
    copy.folder_of("run").mkdir(parents=True)
    store.to_pandas().to_parquet(copy.folder_of("run") / "rows.parquet")
    pd.testing.assert_frame_equal(copy.to_pandas(), store.to_pandas())
    assert copy.steps("run") == [0, 8, 16]


def test_the_committed_rows_of_the_experiment_are_there():
    store = open_store(DOCS / "experiment" / "rows")
    assert len(store.runs()) == 30
    assert len(store.to_pandas(columns=["value"])) == 35745


def test_distinct_values_are_those_of_measured_rows_in_readable_files(tmp_path):
    store = open_store(tmp_path)
    for step, dtype in ((0, "float32"), (1, "bfloat16"), (2, "float32")):
        loss = scalar_row(
            Checkpoint(run=KEY.run, model="GPT2", step=step), "train/loss", 2.0, probe=KEY.probe
        )
        store.write(dataclasses.replace(KEY, step=step), [row(step=step, dtype=dtype), loss])
    (tmp_path / dataclasses.replace(KEY, step=1).filename).write_bytes(b"damaged")
    assert store.distinct(KEY.run, ["dtype", "probe"]) == [{"dtype": "float32", "probe": KEY.probe}]
    assert store.distinct("no such run", ["dtype"]) == []


# the frame


@pytest.fixture
def store(tmp_path):
    """A step measured twice, one that failed first and was measured later, one that failed, and one
    that is a copy.
    """
    store = open_store(tmp_path)

    def measured(step, value, layer=1, at="2026-01-02", **fields):
        return make_row(
            run="r", step=step, layer=layer, value=value, probe="p", measured_at=at, **fields
        )

    def failed(step, at, metrics=("anisotropy", "two_nn"), same_as=None):
        rows = failure_rows(
            Checkpoint(run="r", model="m", step=step), metrics, "lost", probe="p", same_as=same_as
        )
        key = MeasurementKey(run="r", step=step, probe="p", metrics="new").failed
        store.write(key, [one.with_columns(measured_at=at) for one in rows])

    for step in (0, 1, 2, 3):
        store.write(
            MeasurementKey(run="r", step=step, probe="p", metrics="old"),
            [measured(step, 1.0, metric="two_nn"), measured(step, 5.0, 2)],
        )
    store.write(
        MeasurementKey(run="r", step=1, probe="p", metrics="new"),
        [measured(1, 2.0, metric="two_nn", at="2026-01-03")],
    )
    failed(0, "2026-01-01")
    failed(2, "2026-01-03")
    failed(3, "2026-01-03", same_as="step2")
    return store


def test_the_newest_counts_and_replaced_failures_and_values_of_copies_are_left_out(store):
    frame = store.to_pandas()
    cells = [
        tuple(each) for each in frame[["step", "metric", "layer", "value"]].fillna(-1).to_numpy()
    ]
    assert cells == [
        (0, "anisotropy", 2, 5.0), (0, "two_nn", 1, 1.0),
        (1, "anisotropy", 2, 5.0), (1, "two_nn", 1, 2.0),
        (2, "anisotropy", 2, 5.0), (2, "anisotropy", -1, -1),
        (2, "two_nn", 1, 1.0), (2, "two_nn", -1, -1),
        (3, "anisotropy", -1, -1), (3, "two_nn", -1, -1),
    ]  # fmt: skip


def test_rows_of_different_layer_selections_are_distinct(tmp_path):
    store = open_store(tmp_path)
    store.write(MeasurementKey(run="run", step=8, probe="p", metrics="one"), [row()])
    store.write(
        MeasurementKey(run="run", step=8, probe="p", metrics="two"),
        [row(layers='["blocks.1"]', value=1.0)],
    )
    assert sorted(store.to_pandas()["value"]) == [1.0, 7.25]


@pytest.mark.parametrize(
    "columns", [["value"], ["metric", "reason", "step"], ["same_as"], ["depth", "std"]]
)
def test_columns_select_from_the_whole(store, columns):
    pd.testing.assert_frame_equal(
        store.to_pandas("r", columns=columns), store.to_pandas()[columns], check_dtype=False
    )
    with pytest.raises(ValueError, match="valu"):
        store.to_pandas(columns=["valu"])


def test_texts_are_sorted_categoricals_and_a_plain_frame_can_be_written_to(store):
    """A column of one value is a view of one row, which writing would change everywhere."""
    frame = store.to_pandas(categorical=True)
    for name in ("run", "metric", "stack", "reason", "probe", "measured_at"):
        assert frame[name].cat.ordered
        assert frame[name].cat.categories.is_monotonic_increasing
    assert frame["stack"].isna().all()
    plain = store.to_pandas()
    numbers = ["value", "n_batches", "parameters", "causal"]
    before = plain.loc[1, numbers].tolist()
    plain.loc[0, numbers] = [7, 7, 7, None]
    assert plain.loc[0, numbers[:3]].tolist() == [7, 7, 7]
    assert plain.loc[1, numbers].tolist() == before


def test_rows_are_in_the_order_in_which_views_are_drawn(tmp_path):
    store = fill(tmp_path, [*make_rows(steps=(16, 0)), *make_rows(steps=(8,), run="a")])
    frame = store.to_pandas(categorical=True)
    kinds = frame["layer"].isna().astype(int) * 2 + frame["head"].notna()
    keys = list(
        zip(
            frame["run"],
            kinds,
            frame["step"],
            frame["layer"].fillna(-1),
            frame["metric"],
            strict=True,
        )
    )
    assert keys == sorted(keys)
    as_texts = store.to_pandas()
    keys = list(
        zip(
            as_texts["run"],
            as_texts["step"],
            as_texts["metric"],
            as_texts["subset"].fillna("~"),
            strict=True,
        )
    )
    assert keys == sorted(keys)


# where a store is


@pytest.mark.parametrize(
    "folder", ["", "repdyn", "..", "../.."], ids=["run", "store", "parent", "grandparent"]
)
def test_a_store_is_found_in_a_run_and_from_the_folders_above_it(folder, tmp_path):
    run = tmp_path / "runs" / "quickstart" / "2026-01-02"
    store = fill(run / "repdyn", make_published("lab/a", steps=(0,)))
    (run / "checkpoints").mkdir()
    opened = find_store(run / folder)
    assert opened.path.resolve() == store.path
    assert opened.runs() == ["lab/a"]


def test_several_stores_are_listed_and_hidden_linked_and_deep_ones_are_not(tmp_path):
    for name in ("b/repdyn", "a", "a/deeper", ".hidden", "1/2/3/4/5"):
        fill(tmp_path / name, make_published("lab/a", steps=(0,)))
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert [store.path for store in find_stores(tmp_path)] == [
        tmp_path / "a",
        tmp_path / "b" / "repdyn",
    ]
    with pytest.raises(ValueError, match=r"got 2; name one of .*/a, .*/b/repdyn"):
        find_store(tmp_path)


def test_no_store(tmp_path):
    (tmp_path / "file").write_text("")
    for path, end in (
        (tmp_path, "$"),
        (tmp_path / "nowhere", ", which does not exist"),
        (tmp_path / "file", "$"),
    ):
        with pytest.raises(ValueError, match=f"found none in {path}{end}"):
            find_store(path)
    store = fill(tmp_path / "store" / "repdyn", make_published("lab/a", steps=(0,)))
    with pytest.raises(ValueError, match=f"did you mean {store.path}"):
        Store(store.path.parent).to_pandas()  # the folder of a run
    with pytest.raises(ValueError, match="did you mean 'store'"):
        find_store(tmp_path / "stor")
    with pytest.raises(ValueError, match=f"did you mean {store.path}"):
        find_store(store.folder_of("lab/a"))
    with pytest.raises(ValueError, match="of the run 'other'"):
        store.to_pandas("other")
    for path in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(NotADirectoryError, match="name a folder"):
            open_store(path)


def test_a_local_store_loads_no_package_of_remote_ones(tmp_path):
    code = (
        "import sys, repdyn; repdyn.open_store(sys.argv[1]).runs(); print({'fsspec', 'torch'} & "
        "set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


# states of the previous checkpoint


def test_the_states_before_a_resumed_run_are_those_of_its_parent(tmp_path):
    """Those that the parent saved after it was left are of other weights."""
    import torch

    from repdyn.kernels import UndefinedError
    from repdyn.store.state_cache import StateCache

    like = torch.zeros(3, 2)
    parent = StateCache(tmp_path / "a", run="a", probe="p")
    for step in (8, 12):
        parent.begin(step)
        parent.save(step, None, 1, like + step)
        parent.complete(step)
    left = StateCache(tmp_path / "a", run="a", probe="p", last_step=8)
    child = StateCache(tmp_path / "b", run="b", probe="p", earlier=left)
    assert child.load_previous(16, None, 1, like)[0] == 8
    child.begin(16)
    child.save(16, None, 1, like)
    child.complete(16)
    child.delete_before(16)
    assert child.load_previous(20, None, 1, like)[0] == 16
    assert parent.load_previous(20, None, 1, like)[0] == 12
    with pytest.raises(UndefinedError):
        StateCache(tmp_path / "b", run="b", probe="p").load_previous(16, None, 1, like)


def test_reasons_of_a_store_written_before_get_their_codes(tmp_path):
    texts = {
        "batch 0: the points contain NaN": ReasonCode.NOT_FINITE,
        "batch 0: 1 distinct of 2048 points, at least 3 needed": ReasonCode.FEW_DISTINCT,
        "batch 1: the 96 points differ by less than rounding": ReasonCode.ROUNDING,
        "the kernel returned NaN without a reason": ReasonCode.NO_REASON,
        "ValueError: the points contain NaN": ReasonCode.ERROR,
        "the model gives no attention weights": ReasonCode.UNDEFINED,
    }
    rows = [
        make_row(layer=layer, value=math.nan, reason=reason)
        for layer, reason in enumerate([*texts, None])
    ]
    store = fill(tmp_path, rows)
    assert store.to_pandas()["reason_code"].tolist()[:-1] == [*texts.values()]
    (path,) = store.path.rglob("*.parquet")
    table = pq.read_table(path)
    old = tmp_path / "old" / path.relative_to(tmp_path)
    old.parent.mkdir(parents=True)
    pq.write_table(table.drop_columns(["reason_code"]), old)
    read = open_store(tmp_path / "old").to_pandas()
    assert read["reason_code"].tolist()[:-1] == [*texts.values()]
    assert pd.isna(read["reason_code"].iloc[-1])
    assert read_rows(old)[0].reason_code == ReasonCode.NOT_FINITE


def test_every_code_of_a_kernel_is_one_of_a_row():
    assert set(get_args(UndefinedCode)) <= set(ReasonCode)


def lines_for(program: str, folder: Path) -> dict[str, object]:
    """Run the lines of the page on stores that import a program, on the store in a folder."""
    page = (DOCS / "stores.md").read_text()
    code = next(c for c in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if program in c)
    names: dict[str, object] = {}
    exec(code.replace("runs/mine", str(folder)), names)
    return names


def test_other_programs_read_a_store_as_the_page_says(tmp_path, monkeypatch):
    """A picture beside the rows ended them all; a resumed training has a step twice, and an
    undefined value counts as a number, but for who reads the rows of paths.
    """
    monkeypatch.chdir(tmp_path)
    store = open_store(tmp_path / "store")
    first = store.begin_run("mine", {})
    again = store.begin_run("mine", {}, parent=first.id, parent_step=8)
    for run, steps in ((first, (8, 16)), (again, (16,))):
        for step in steps:
            key = MeasurementKey(run=run.id, step=step, probe="probehash", metrics="m")
            undefined = row(run="mine", run_id=run.id, step=step, layer=2, value=math.nan)
            store.write(key, [row(run="mine", run_id=run.id, step=step), undefined])
    (tmp_path / "store" / "profile.png").write_bytes(b"a picture")
    (tmp_path / "store" / "report.html").write_text("a page")
    assert len(lines_for("from glob", store.path)["frame"]) == 6
    pytest.importorskip("duckdb")
    assert len(lines_for("import duckdb", store.path)["table"]) == 6
    of_paths = lines_for("to_parquet", store.path)
    frame = of_paths["frame"]
    assert sorted(frame.loc[frame["run"] == "mine", "step"]) == [8, 8, 16, 16]
    assert not frame.duplicated(["run", "step", "layer"]).any()
    values = [value for _, _, value in of_paths["table"].fetchall()]
    assert len(values) == len(frame) / 2
    assert set(values) == {7.25}


def test_polars_reads_a_store_as_the_page_says(tmp_path):
    pytest.importorskip("polars")
    store = open_store(tmp_path / "store")
    store.write(KEY, [row(), row(layer=2)])
    (tmp_path / "store" / "profile.png").write_bytes(b"a picture")
    assert len(lines_for("import polars", store.path)["table"]) == 2


def test_the_home_directory_is_found_again(tmp_path, monkeypatch):
    """A store at ~/runs was written to the home directory, and the views found none there."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    open_store("~/runs").write(KEY, [row()])
    assert find_store("~/runs").path == tmp_path / "runs"
    (store,) = stores_of("~")
    assert store.path == tmp_path / "runs"
