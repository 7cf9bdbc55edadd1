"""The frame of a store: categoricals, and the columns and metrics that a view asks for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from repdyn import open_store
from repdyn.store import MeasurementKey
from repdyn.store.parquet_files import encoded_schema, read_table
from repdyn.store.run_files import RunFiles
from repdyn.store.schema import COLUMNS, Checkpoint, failure_rows
from repdyn.tables.frames import failures, measurements
from repdyn.tables.frames import of_heads as heads_of
from tests.synthetic_runs import make_row, make_rows

RUNS = Path(__file__).parents[2] / "docs" / "runs"
PROBE = "p"


@pytest.fixture
def store(tmp_path):
    """A step measured twice, one that failed first and was measured later, one that failed, and one that is a copy."""
    store = open_store(tmp_path)

    def row(step, value, layer=1, at="2026-01-02", **given):
        return make_row(run="r", step=step, layer=layer, value=value, probe=PROBE, measured_at=at, **given)

    def failed(step, at, metrics=("anisotropy", "two_nn"), same_as=None):
        rows = failure_rows(Checkpoint("r", "m", step), metrics, "lost", probe=PROBE, same_as=same_as)
        key = MeasurementKey("r", step, PROBE, "new").failed
        store.write(key, [replace(one, measured_at=at) for one in rows])

    for step in (0, 1, 2, 3):
        store.write(MeasurementKey("r", step, PROBE, "old"), [row(step, 1.0, metric="two_nn"), row(step, 5.0, 2)])
    store.write(MeasurementKey("r", 1, PROBE, "new"), [row(1, 2.0, metric="two_nn", at="2026-01-03")])
    failed(0, "2026-01-01")
    failed(2, "2026-01-03")
    failed(3, "2026-01-03", same_as="step2")
    return store


def as_strings(frame: pd.DataFrame) -> pd.DataFrame:
    texts = [name for name in frame if isinstance(frame[name].dtype, pd.CategoricalDtype)]
    return frame.astype(dict.fromkeys(texts, object))


def test_the_newest_counts_and_replaced_failures_and_values_of_copies_are_left_out(store):
    frame = store.to_pandas()
    found = [tuple(row) for row in as_strings(frame[["step", "metric", "layer", "value"]]).fillna(-1).to_numpy()]
    assert found == [
        (0, "anisotropy", 2, 5.0), (0, "two_nn", 1, 1.0),
        (1, "anisotropy", 2, 5.0), (1, "two_nn", 1, 2.0),
        (2, "anisotropy", 2, 5.0), (2, "anisotropy", -1, -1), (2, "two_nn", 1, 1.0), (2, "two_nn", -1, -1),
        (3, "anisotropy", -1, -1), (3, "two_nn", -1, -1),
    ]  # fmt: skip


def test_texts_are_sorted_categoricals_and_numbers_can_be_written_to(store):
    frame = store.to_pandas(categorical=True)
    for name in ("run", "metric", "stack", "reason", "probe", "measured_at"):
        assert isinstance(frame[name].dtype, pd.CategoricalDtype)
        assert frame[name].cat.categories.is_monotonic_increasing
    assert frame["stack"].isna().all()
    frame.loc[0, ["value", "step"]] = 7
    assert frame.loc[0, ["value", "step"]].tolist() == [7, 7]


@pytest.mark.parametrize("columns", [["value"], ["metric", "reason", "step"], ["same_as"], ["depth", "std"]])
@pytest.mark.parametrize("metrics", [None, ["two_nn"], ["two_nn", "anisotropy"]])
def test_columns_and_metrics_select_from_the_whole(store, columns, metrics):
    whole = store.to_pandas()
    rows = whole if metrics is None else whole.loc[whole["metric"].isin(metrics)]
    found = store.to_pandas("r", columns=columns, metrics=metrics)
    pd.testing.assert_frame_equal(as_strings(found), as_strings(rows[columns].reset_index(drop=True)))


def test_values_of_early_versions_are_judged_whatever_columns_are_read():
    store = open_store(RUNS / "finished")
    whole = store.to_pandas()
    few = whole["on_distinct"] & (2 * whole["n_unique"] < whole["n_vectors"])
    assert few.any()
    assert store.to_pandas(columns=["value"]).loc[few.to_numpy(bool), "value"].isna().all()
    told = store.to_pandas(columns=["reason"]).loc[few.to_numpy(bool), "reason"]
    assert told.str.startswith("fewer than half of the vectors are distinct").all()


def test_a_metric_that_was_not_measured_has_no_rows(store):
    found = store.to_pandas(metrics=["norm"])
    assert len(found) == 0
    assert list(found) == list(COLUMNS)


@pytest.mark.parametrize("categorical", [True, False])
def test_tables_that_are_converted_one_by_one_give_the_same_frame(store, monkeypatch, categorical):
    whole = store.to_pandas(categorical=categorical)
    monkeypatch.setattr("repdyn.store.frame._LARGE", 1)
    pd.testing.assert_frame_equal(store.to_pandas(categorical=categorical), whole)


def test_files_made_compact_while_they_are_read_count_once(store, monkeypatch):
    whole, listings, blocks = store.to_pandas(), [], RunFiles.blocks

    def first_ones_only(self, columns):
        listings.append(self)
        for number, block in enumerate(blocks(self, columns)):
            if len(listings) == 1 and number == 5:
                store.compact("r")
                raise FileNotFoundError("made compact")
            yield block

    monkeypatch.setattr(RunFiles, "blocks", first_ones_only)
    pd.testing.assert_frame_equal(store.to_pandas(), whole)
    assert len(listings) == 2


def test_rows_are_read_in_the_order_in_which_views_are_drawn(tmp_path):
    rows = make_rows(steps=(0, 16, 2), run="r")
    of_heads = [replace(row, head=head) for row in rows if row.layer and row.metric == "anisotropy" for head in (0, 1)]
    failed = failure_rows(Checkpoint("r", "m", 4), ["two_nn"], "lost", probe=PROBE)
    store = open_store(tmp_path)
    for step, given in ((16, rows), (4, failed), (0, rows), (2, of_heads + rows)):
        store.write(MeasurementKey("r", step, PROBE, "m"), [row for row in given if row.step == step])
    plain, frame = store.to_pandas(), store.to_pandas(categorical=True)
    for select in (measurements, heads_of, failures):
        expected = as_strings(select(plain.sample(frac=1, random_state=0)))
        expected = expected.sort_values(["step", "layer", "metric", "subset", "head"], ignore_index=True)
        found = as_strings(select(frame)).reset_index(drop=True)
        pd.testing.assert_frame_equal(found, expected, check_dtype=False)
        assert len(found)
        if select is not failures:
            assert np.shares_memory(select(frame)["value"].to_numpy(), frame["value"].to_numpy())


def test_an_unknown_column_is_refused(store):
    with pytest.raises(ValueError, match="expected columns of a store, got 'values'"):
        store.to_pandas(columns=["values"])


def test_rows_are_sorted_whatever_the_order_of_the_files(tmp_path):
    rows = make_rows(steps=(0, 16, 2), run="r")
    store = open_store(tmp_path)
    for step in (16, 0, 2):
        store.write(MeasurementKey("r", step, PROBE, "m"), [row for row in rows if row.step == step][::-1])
    frame = as_strings(store.to_pandas())
    order = ["run", "step", "metric", "subset", "layer"]
    pd.testing.assert_frame_equal(frame, frame.sort_values(order, kind="stable", ignore_index=True))


def test_texts_are_the_same_when_read_as_dictionaries(store, tmp_path):
    rows = next(tmp_path.rglob("step000000001-p-new.parquet"))
    early = tmp_path / "early.parquet"  # without some columns, with other texts and a former name of a metric
    table = read_table(rows).drop_columns(["same_as", "design"])
    table = table.set_column(table.column_names.index("metric"), "metric", pa.array(["token_kept"], pa.large_string()))
    pq.write_table(table, early)
    for path in (*tmp_path.rglob("*/step*.parquet"), early):
        plain, encoded = read_table(path), read_table(path, encoded=True)
        assert encoded.schema == encoded_schema(plain.schema)
        assert repr(encoded.to_pylist()) == repr(plain.to_pylist())
    assert encoded["metric"].to_pylist() == ["token_top1_match"]
    assert read_table(rows, ["step", "run"], encoded=True).column_names == ["step", "run"]
