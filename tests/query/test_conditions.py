"""Conditions of a query: they select from the rows that count, and files that they rule out are not read."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from synthetic_runs import fill, make_failures, make_published, make_row

from repdyn import open_store
from repdyn.query import connection
from repdyn.store import MeasurementKey, run_files
from repdyn.store.frame import read_frame
from repdyn.store.keys import folder_name

LONG = "lab/" + "x" * 300
STEPS = (0, 8, 16)


@pytest.fixture(params=["single files", "compact files"])
def store(request, tmp_path):
    """Three runs; in one a step was measured twice, one failed and was measured later, one failed, one is a copy."""
    runs = (make_published(run, steps=STEPS) for run in ("lab/a", "lab/b", LONG))
    store = fill(tmp_path / "store", [row for rows in runs for row in rows])
    probe = store.to_pandas("lab/a")["probe"].iloc[0]

    def failed(step, at, **given):
        rows = make_failures(step, "lost", run="lab/a", probe=probe, measured_at=at, **given)
        store.write(MeasurementKey("lab/a", step, probe, "new").failed, rows)

    later = [make_row(run="lab/a", step=8, layer=1, value=1e6, probe=probe, measured_at="2030-01-01", metric="two_nn")]
    store.write(MeasurementKey("lab/a", 8, probe, "new"), [replace(row, head=None) for row in later])
    failed(0, "2000-01-01")
    failed(16, "2030-01-01", same_as="step8")
    failed(32, "2030-01-01")
    if request.param == "compact files":
        for run in ("lab/a", "lab/b", LONG):
            store.compact(run)
    return store


@pytest.mark.parametrize(
    "condition",
    [
        "run = 'lab/a'",
        "run = 'lab/a' and step = 8",
        "step = 8",
        "step in (0, 32) and run <> 'lab/b'",
        "step between 8 and 20",
        "(run = 'lab/a' and step = 8) or (run = 'lab/b' and step = 16)",
        f"run = '{LONG}' and step = 0",
        "run like 'lab/a%'",
        "metric = 'two_nn' and layer = 1",
        "metric in ('two_nn', 'anisotropy') and head is null and subset = 'all'",
        "value > 1e5",
        "value < 1e5 and step = 8 and metric = 'two_nn'",
        "value is null",
        "reason is not null and step = 32",
        "same_as = 'step8'",
        "layer is null",
        "measured_at < '2001'",
        "run = 'no such run'",
        "store = 'elsewhere'",
        "step = 7",
        "step = (select max(step) from rows)",
    ],
)
def test_conditions_select_from_the_rows_that_count(store, condition):
    import duckdb

    columns = ["run", "step", "layer", "metric", "subset", "value", "reason", "same_as", "measured_at"]
    whole = store.sql("select * from rows")
    with duckdb.connect() as connection:
        connection.register("rows", whole)  # without any files behind it
        expected = connection.execute(f"select {', '.join(columns)} from rows where {condition}").df()
    found = store.sql(f"select {', '.join(columns)} from rows where {condition}")
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)


@pytest.mark.parametrize("store", ["single files"], indirect=True)
def test_files_of_other_runs_and_steps_are_not_read(store):
    expected = store.sql("select * from rows where run = 'lab/b' and step = 8")
    for path in store.path.glob("*/*.parquet"):
        if path.parent.name != folder_name("lab/b") or not path.name.startswith("step000000008"):
            path.write_bytes(b"damaged")
    (store.folder_of(LONG) / "step000000000-p-m.parquet").unlink(missing_ok=True)
    for path in store.folder_of(LONG).glob("step000000008-*.parquet"):
        path.unlink()  # its folder does not tell its name: files of this step are read
    pd.testing.assert_frame_equal(store.sql("select * from rows where run = 'lab/b' and step = 8"), expected)
    with pytest.raises(ValueError, match="cannot read"):
        store.sql("select * from rows where step = 16")


@pytest.mark.parametrize("store", ["compact files"], indirect=True)
def test_parts_of_other_steps_are_not_read(store, monkeypatch):
    read = []

    def read_parts(path, names, columns, **options):
        read.extend(names)
        return parts_of(path, names, columns, **options)

    from repdyn.store import compact_files

    parts_of = compact_files.read_parts
    monkeypatch.setattr(compact_files, "read_parts", read_parts)
    assert len(store.sql("select * from rows where run = 'lab/b' and step = 8"))
    assert {name[:13] for name in read} == {"step000000008"}


def test_a_file_whose_name_has_no_step_is_read(tmp_path):
    store = open_store(tmp_path)
    store.write(MeasurementKey("a", 1, "p", "m"), [make_row(run="a", step=1, layer=1, value=2.0)])
    (path,) = store.path.glob("a/*.parquet")
    path.rename(path.with_name("stepwise.parquet"))
    assert store.sql("select step from rows where step = 1")["step"].tolist() == [1]
    assert run_files.RunFiles(store.folder_of("a")).names == ["stepwise.parquet"]


def test_profiles_make_a_frame_of_the_rows_asked_for_alone(store, monkeypatch):
    asked = []

    def reading(folders, columns, condition):
        frame = read_frame(folders, columns, condition)
        asked.append(set(frame["run"]))
        return frame

    monkeypatch.setattr(connection, "read_frame", reading)
    assert len(store.sql("select step, two_nn from profiles where run = 'lab/b' and step = 8"))
    assert asked == [{"lab/b"}]


def test_profiles_have_the_metrics_of_whole_layers_in_all_runs(store):
    head = make_row(run="lab/b", step=8, layer=1, metric="of_heads", value=1.0)
    store.write(MeasurementKey("lab/b", 8, "p", "heads"), [replace(head, head=0)])
    store.write(
        MeasurementKey("lab/c", 8, "p", "m"), [replace(head, run="lab/c", metric="of lab/c's layers", head=None)]
    )
    named = store.sql("select distinct metric from rows where layer is not null and head is null order by 1")["metric"]
    found = list(store.sql("select * from profiles where run = 'lab/b'").columns)
    assert found[found.index("subset") + 1 :] == named.tolist()
    assert {"of lab/c's layers", "two_nn"} <= set(named)
    assert not {"of_heads", "lost"} & set(named)
