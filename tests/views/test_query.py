"""Queries in SQL: the views contain what the store says, and a mistake is answered."""

from __future__ import annotations

import csv
import io
import json
import math
import sys

import numpy as np
import pandas as pd
import pytest
from stored_rows import KEY, row
from synthetic_runs import fill, make_failures, make_published

import repdyn
from repdyn import insights, open_store, query
from repdyn.cli.main import main
from repdyn.store import MeasurementKey
from repdyn.store.schema import COLUMNS
from repdyn.views.judging import described_runs
from repdyn.views.judging.findings import findings
from repdyn.views.tables.frames import measurements
from repdyn.views.tables.series import metric_series

pytest.importorskip("duckdb")


@pytest.fixture
def store(tmp_path):
    rows = make_published("lab/a", steps=(0, 8)) + make_published("lab/b", steps=(0, 8, 16))
    return fill(tmp_path / "store", rows)


def test_rows_are_those_of_the_store(store):
    frame = query(store, "select * from rows")
    expected = store.to_pandas()
    assert list(frame.columns) == ["store", *COLUMNS]
    assert set(frame["store"]) == {str(store.path)}
    assert len(frame) == len(expected)
    names = ["run", "step", "layer", "metric", "subset", "value", "probe"]

    def sorted_lines(rows):  # a query without "order by" promises no order
        return sorted(
            map(
                repr,
                rows[names].astype(object).where(rows[names].notna(), None).itertuples(index=False),
            )
        )

    assert sorted_lines(frame) == sorted_lines(expected.astype({name: object for name in names}))


def test_aggregates_are_those_of_pandas(store):
    table = query(
        store,
        "select step, avg(value) as mean from rows where metric = 'two_nn' group by 1 order by 1",
    )
    frame = store.to_pandas()
    expected = (
        frame.query("metric == 'two_nn'").astype({"value": float}).groupby("step")["value"].mean()
    )
    assert table["step"].tolist() == expected.index.tolist()
    np.testing.assert_allclose(table["mean"], expected, rtol=1e-12)


@pytest.mark.parametrize(
    "condition",
    [
        "run = 'lab/a' and step = 8",
        "step in (0, 32) and run <> 'lab/b'",
        "run like 'lab/a%' and step between 8 and 20",
        "metric in ('two_nn', 'anisotropy') and head is null and subset = 'all'",
        "value < 1e5 and step = 8 and metric = 'two_nn'",
        "layer is null",
        "store = 'elsewhere'",
        "step = (select max(step) from rows)",
    ],
)
def test_conditions_select_from_the_rows(store, condition):
    """Columns that are in a condition alone must be read too."""
    import duckdb

    with duckdb.connect() as connection:
        connection.register("rows", query(store, "select * from rows"))
        expected = connection.execute(
            f"select count(*) as n, sum(value) as total from rows where {condition}"
        ).df()
    found = query(store, f"select count(*) as n, sum(value) as total from rows where {condition}")
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)


def test_undefined_values_are_null_and_do_not_spoil_a_mean(tmp_path):
    store = open_store(tmp_path)
    store.write(
        KEY, [row(layer=1, value=4.0), row(layer=2, value=math.nan, reason="constant cloud")]
    )
    assert query(store, "select avg(value) as mean, count(value) as n from rows").to_dict(
        "records"
    ) == [{"mean": 4.0, "n": 1}]
    assert query(store, "select reason from rows where value is null")["reason"].tolist() == [
        "constant cloud"
    ]


def test_runs(store):
    fill(
        store.path, make_failures(run="lab/b", step=32, probe=store.to_pandas("lab/b")["probe"][0])
    )
    table = query(store, "select * from runs").set_index("run")
    assert table["checkpoints"].to_dict() == {"lab/a": 2, "lab/b": 3}
    assert table["last_step"].to_dict() == {"lab/a": 8, "lab/b": 16}
    assert table["failed_checkpoints"].to_dict() == {"lab/a": 0, "lab/b": 1}
    frame = store.to_pandas("lab/a")
    assert list(table["metrics"]["lab/a"]) == sorted(
        frame.loc[frame["layer"].notna(), "metric"].unique()
    )


def test_profiles_have_a_column_for_each_metric_of_whole_layers(store, tmp_path):
    table = query(
        store,
        (
            "select * from profiles where run = 'lab/b' and step = 16 and subset = 'all' order "
            "by layer"
        ),
    )
    frame = store.to_pandas("lab/b").query("step == 16 and subset == 'all'")
    for metric in ("two_nn", "anisotropy"):
        is_of_metric = frame["metric"] == metric
        values = frame[is_of_metric].set_index("layer")["value"].sort_index()
        np.testing.assert_array_equal(table.set_index("layer")[metric].loc[values.index], values)
    odd = open_store(tmp_path / "odd")
    settings = row(value=2.0, settings='{"discard": 0.5}')
    odd.write(
        KEY,
        [
            row(value=1.0),
            settings,
            row(metric='it\'s "odd"', value=3.0),
            row(metric="sink", head=0),
        ],
    )
    (profile,) = query(odd, "select * from profiles").to_dict("records")
    assert pd.isna(profile["two_nn"])  # which of the two settings is meant is not known
    assert profile['it\'s "odd"'] == 3.0
    assert "sink" not in profile


def test_several_stores(store, tmp_path):
    other = fill(tmp_path / "other", make_published("lab/a", steps=(0, 8, 16)))
    table = query([store, other], "select store, run, checkpoints from runs order by 1 desc, 2")
    assert table["checkpoints"].tolist() == [2, 3, 3]
    assert table["store"].tolist() == [str(store.path)] * 2 + [str(other.path)]


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("selec", "syntax error"),
        ("select * from runz", "runz"),
        ("select valu from rows", "value"),
        ("", "got 0"),
        ("select 1; select 2", "got 2"),
    ],
)
def test_mistakes(store, sql, said):
    with pytest.raises(ValueError, match="query|statement") as raised:
        query(store, sql)
    assert said in str(raised.value)
    assert "duckdb_" not in str(raised.value)


def test_what_cannot_be_read(store, tmp_path, monkeypatch, caplog):
    with pytest.raises(ValueError, match="found none"):
        query(open_store(tmp_path / "none"), "select * from rows")
    n_before = query(store, "select count(*) as n from rows")["n"][0]
    path = next(store.path.glob("*/step000000008-*.parquet"))
    path.write_bytes(path.read_bytes()[:100])
    # the file is named, and costs only its own rows
    left = query(store, "select count(*) as n from rows")["n"][0]
    assert path.name in caplog.text
    assert 0 < left < n_before
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ValueError, match=r"DuckDB.*\[query\]"):
        repdyn.query(store, "select * from rows")


# the command

SQL = "select run, last_step, metrics, null as nothing, 1.5 as half from runs order by run"


def test_the_command_prints_a_table_json_and_csv(store, capsys):
    main(["query", SQL, str(store.path)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["run", "last_step", "metrics", "nothing", "half"]
    assert lines[2].split()[:2] == ["lab/a", "8"]
    assert lines[3].split()[-1] == "1.5"
    main(["query", SQL, str(store.path), "--json"])
    records = json.loads(capsys.readouterr().out)
    assert [(record["last_step"], record["nothing"]) for record in records] == [
        (8, None),
        (16, None),
    ]
    main(["query", SQL, str(store.path), "--csv"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [record["run"] for record in rows] == ["lab/a", "lab/b"]
    assert rows[0]["nothing"] == ""
    assert json.loads(rows[0]["metrics"]) == records[0]["metrics"]


def test_all_stores_below_a_folder_or_none(store, tmp_path, capsys, monkeypatch):
    fill(tmp_path / "deeper" / "other", make_published("lab/c", steps=(0,)))
    monkeypatch.chdir(tmp_path)
    main(["query", "select run from runs order by run", "--csv"])
    assert capsys.readouterr().out.split() == ["run", "lab/a", "lab/b", "lab/c"]
    for arguments in (
        ["select * from runs", "nowhere"],
        [str(store.path), "select run from runs"],
    ):  # in wrong order
        with pytest.raises(SystemExit, match="^2$"):
            main(["query", *arguments])


# copies of other checkpoints


@pytest.mark.parametrize("is_measured_before", [False, True])
def test_no_view_shows_checkpoints_with_the_weights_of_another_one(tmp_path, is_measured_before):
    steps = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    copies = (4, 64)
    run = "lab/model-70m"
    genuine = [step for step in steps if step not in copies]
    wrong = {"anisotropy": lambda step, depth: 0.9 if step in copies else 0.3, "noise": 0.001}
    measured = steps if is_measured_before else genuine
    store = fill(tmp_path / "store", make_published(run, steps=measured, **wrong))
    probe = store.to_pandas()["probe"].iloc[0]
    later = {
        "probe": probe,
        "checkpoint": f"{run}@0123abcd",
        "measured_at": "2025-01-02T00:00:00+00:00",
    }
    for step in copies:
        rows = make_failures(
            step, "a copy: it has the weights of step512", same_as="step512", **later
        )
        store.write(
            MeasurementKey(run=run, step=step, probe=probe, metrics="0123abcd").failed,
            [row for row in rows if math.isnan(row.value)],
        )
    clean = fill(tmp_path / "clean", make_published(run, steps=genuine, **wrong))
    frame = store.to_pandas()
    expected = clean.to_pandas()
    assert all(
        not set(copies) & set(row.steps) for row in metric_series(measurements(frame)).values()
    )
    assert findings(frame) == findings(expected)
    assert insights(store)[0].statements == insights(clean)[0].statements
    (shown,), (other,) = (described_runs([row]).runs for row in (store, clean))
    assert shown.steps == other.steps
    assert shown.n_failed == 0
    (runs,) = query(
        store, "select failed_checkpoints, copied_checkpoints, checkpoints from runs"
    ).to_dict("records")
    assert runs == {"failed_checkpoints": 0, "copied_checkpoints": 2, "checkpoints": len(genuine)}
    assert not set(query(store, "select * from profiles")["step"]) & set(copies)


def test_a_store_may_be_given_by_its_folder(store, tmp_path):
    """'str' object has no attribute 'runs'."""
    sql = "select count(*) as n from rows"
    expected = query(store, sql)["n"][0]
    places = (str(store.path), store.path, tmp_path, [store.path], (store, str(store.path)))
    assert {query(place, sql)["n"][0] for place in places} == {expected}


@pytest.mark.parametrize("function", [lambda argument: query(argument, "select 1"), insights])
@pytest.mark.parametrize(
    ("argument", "words"),
    [
        (pd.DataFrame({"value": [1.0]}), "got DataFrame; .*open_store"),
        (None, "got NoneType"),
        ({"a": 1}, "got dict"),
        ([3], "got int"),
    ],
    ids=["data frame", "none", "dict", "number"],
)
def test_what_is_no_store_is_refused_with_what_to_write(function, argument, words):
    with pytest.raises(TypeError, match=words):
        function(argument)


def test_the_result_of_a_sweep_says_where_its_store_is(store):
    swept = repdyn.Sweep(store, ("lab/a",))
    with pytest.raises(TypeError, match=r"got Sweep; give its \.store"):
        query(swept, "select 1")
    with pytest.raises(TypeError, match="text"):
        query("select 1", store)
