"""Queries: the views contain what the store says, and a mistake is answered."""

import csv
import io
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from stored_rows import KEY, row
from synthetic_runs import fill, make_failures, make_published

from repdyn import open_store
from repdyn.cli.main import main
from repdyn.query import VIEWS, connection, query
from repdyn.store import MeasurementKey
from repdyn.store.schema import COLUMNS

DOCS = Path(__file__).parents[2] / "docs" / "runs"


@pytest.fixture
def store(tmp_path):
    rows = make_published("lab/a", steps=(0, 8)) + make_published("lab/b", steps=(0, 8, 16))
    return fill(tmp_path / "store", rows)


def test_rows_are_those_of_the_store(store):
    frame = store.sql("select * from rows")
    expected = store.to_pandas()
    assert list(frame.columns) == ["store", *COLUMNS]
    assert set(frame["store"]) == {str(store.path)}
    assert len(frame) == len(expected)
    for name in ("run", "step", "layer", "metric", "subset", "value", "probe"):
        # NULL for what is missing, of any type
        given, wanted = frame[name].astype(object), expected[name].astype(object)
        assert [None if pd.isna(one) else one for one in given] == [None if pd.isna(one) else one for one in wanted]


def test_aggregates_are_those_of_pandas(store):
    found = store.sql("select step, avg(value) as mean from rows where metric = 'two_nn' group by step order by step")
    frame = store.to_pandas().query("metric == 'two_nn'").astype({"value": float})
    expected = frame.groupby("step")["value"].mean()
    assert found["step"].tolist() == expected.index.tolist()
    np.testing.assert_allclose(found["mean"], expected, rtol=1e-12)


def test_undefined_values_are_null_and_do_not_spoil_a_mean(tmp_path):
    store = open_store(tmp_path)
    store.write(KEY, [row(layer=1, value=4.0), row(layer=2, value=math.nan, reason="constant cloud")])
    assert store.sql("select avg(value) as mean, count(value) as n from rows").to_dict("records") == [
        {"mean": 4.0, "n": 1}
    ]
    assert store.sql("select reason from rows where value is null")["reason"].tolist() == ["constant cloud"]


def test_runs(store):
    fill(store.path, make_failures(run="lab/b", step=32, probe=store.to_pandas("lab/b")["probe"][0]))
    found = store.sql("select * from runs").set_index("run")
    assert found["checkpoints"].to_dict() == {"lab/a": 2, "lab/b": 3}
    assert found["last_step"].to_dict() == {"lab/a": 8, "lab/b": 16}
    assert found["failed_checkpoints"].to_dict() == {"lab/a": 0, "lab/b": 1}
    frame = store.to_pandas("lab/a")
    assert list(found["metrics"]["lab/a"]) == sorted(frame.loc[frame["layer"].notna(), "metric"].unique())


def test_profiles_have_a_column_for_each_metric(store):
    found = store.sql("select * from profiles where run = 'lab/b' and step = 16 and subset = 'all' order by layer")
    frame = store.to_pandas("lab/b").query("step == 16 and subset == 'all'")
    for metric in ("two_nn", "anisotropy"):
        values = frame.loc[frame["metric"] == metric].set_index("layer")["value"].sort_index()
        np.testing.assert_array_equal(found.set_index("layer")[metric].loc[values.index], values)
    assert found["layer"].tolist() == sorted(found["layer"].unique())


def test_a_metric_with_two_settings_has_no_value_in_profiles(tmp_path):
    store = open_store(tmp_path)
    store.write(
        KEY, [row(value=1.0), row(value=2.0, settings='{"discard": 0.5}'), row(metric='it\'s "odd"', value=3.0)]
    )
    (profile,) = store.sql("select * from profiles").to_dict("records")
    assert pd.isna(profile["two_nn"])
    assert profile['it\'s "odd"'] == 3.0
    assert store.sql("select count(*) as n from rows where metric = 'two_nn'")["n"].tolist() == [2]


def test_values_of_heads_are_rows_alone(tmp_path):
    store = open_store(tmp_path)
    store.write(KEY, [row(value=1.0), row(metric="sink_rate", head=0, value=2.0), row(metric="sink_rate", head=1)])
    assert "sink_rate" not in store.sql("select * from profiles").columns
    assert store.sql("select count(*) as n from rows where head is not null")["n"].tolist() == [2]


def test_several_stores_and_compact_ones(store, tmp_path):
    other = fill(tmp_path / "other", make_published("lab/a", steps=(0, 8, 16)))
    other.compact("lab/a")
    found = query([store, other], "select store, run, checkpoints from runs order by 1 desc, 2")
    assert found["checkpoints"].tolist() == [2, 3, 3]
    assert found["store"].tolist() == [str(store.path)] * 2 + [str(other.path)]


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("select max(step) from rows", ["step"]),
        ("SELECT STEP, Value FROM rows WHERE Metric = 'two_nn'", ["step", "metric", "value"]),
        ("select count(*) from rows", ["run"]),
        ("select count( * ), run from rows group by run", ["run"]),
        ("select r.* from rows r", list(COLUMNS)),
        ("with newest as (from rows) select step from newest", ["step"]),
        ("select run, last_step from runs", ["run", "step", "layer", "probe"]),
    ],
)
def test_no_more_columns_are_read_than_needed(store, sql, columns, monkeypatch):
    asked = []

    def read_frame(folders, names, condition):
        asked.append(names)
        return frame_of(folders, names, condition)

    frame_of = connection.read_frame
    monkeypatch.setattr(connection, "read_frame", read_frame)
    store.sql(sql)
    assert asked == [columns]


def test_a_description_reads_nothing(store, monkeypatch):
    monkeypatch.setattr(connection, "read_frame", None)
    assert store.sql("describe rows")["column_name"].tolist() == ["store", *COLUMNS]


@pytest.mark.parametrize("view", VIEWS)
def test_every_column_of_a_view_can_be_selected_alone(store, view):
    for name in store.sql(f"select * from {view}").columns:
        alone = store.sql(f'select "{name}" from {view}')
        assert list(alone.columns) == [name]
        assert len(alone) > 0


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("selec", r"^expected a query over rows, runs, profiles in the SQL of DuckDB: .*syntax error at or near"),
        ("select x from rows", r'Referenced column "x" not found'),
        ("select * from row", "Table with name row does not exist"),
    ],
)
def test_mistakes(store, sql, message):
    with pytest.raises(ValueError, match=message):
        store.sql(sql)


def test_a_damaged_file_is_named(store):
    path = next(store.path.glob("*/step000000008-*.parquet"))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=f"^expected a Parquet file of measurements, cannot read {path}"):
        store.sql("select * from rows")


def test_stores_of_several_versions():
    stores = [open_store(DOCS / name) for name in ("decoder", "finished")]  # the second has values that do not count
    found = query(stores, "select store, count(*) as n from rows group by store order by store")
    assert found["n"].tolist() == [len(store.to_pandas()) for store in stores]


def test_an_empty_store(tmp_path):
    with pytest.raises(ValueError, match="expected a store with measurements, found none"):
        open_store(tmp_path).sql("select * from rows")


def test_without_duckdb(store, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ValueError, match=r"expected DuckDB.*pip install 'repdyn\[query\]'"):
        store.sql("select * from rows")


@pytest.mark.parametrize(("sql", "n"), [("", 0), (" ; ", 0), ("-- nothing", 0), ("select 1; select 2", 2)])
def test_one_statement(store, sql, n):
    with pytest.raises(ValueError, match=f"^expected one statement such as select run from runs, got {n}: "):
        store.sql(sql)
    assert store.sql("select ';' as x; -- one")["x"].tolist() == [";"]


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("select * from runz", "Table with name runz does not exist! Did you mean runs?"),
        ("select * from qqqqqq", "Table with name qqqqqq does not exist!\n"),
        ("select valu from rows", 'Referenced column "valu" not found in FROM clause! Did you mean value?'),
    ],
)
def test_what_is_suggested_exists(store, sql, said):
    with pytest.raises(ValueError, match="in the SQL of DuckDB") as raised:
        store.sql(sql)
    assert said in str(raised.value)
    assert "duckdb_" not in str(raised.value)


@pytest.mark.parametrize("query", ["select run from runs", "FROM rows"])
def test_a_query_behind_the_stores_is_noticed(store, capsys, query):
    for first in (str(store.path), "s3://bucket/sweeps", "missing"):
        with pytest.raises(SystemExit, match="^2$"):
            main(["query", first, query])
        message = f"expected the query before the stores, got {first!r} first; repdyn query '{query}' {first}"
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit, match="^2$"):
        main(["query", str(store.path)])
    assert "repdyn query 'select * from runs'" in capsys.readouterr().err


SQL = "select run, last_step, metrics, null as nothing, 1.5 as half from runs order by run"


def test_the_command_prints_a_table(store, capsys):
    main(["query", SQL, str(store.path)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["run", "last_step", "metrics", "nothing", "half"]
    assert lines[2].split()[:2] == ["lab/a", "8"]
    assert lines[3].split()[-1] == "1.5"


def test_the_command_prints_json_and_csv(store, capsys):
    main(["query", SQL, str(store.path), "--json"])
    records = json.loads(capsys.readouterr().out)
    assert [record["last_step"] for record in records] == [8, 16]
    assert records[0]["nothing"] is None
    assert isinstance(records[0]["metrics"], list)
    main(["query", SQL, str(store.path), "--csv"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["run"] for row in rows] == ["lab/a", "lab/b"]
    assert (rows[0]["nothing"], json.loads(rows[0]["metrics"])) == ("", records[0]["metrics"])


def test_names_in_a_store_cannot_steer_the_terminal(tmp_path, capsys):
    store = open_store(tmp_path)
    store.write(MeasurementKey("a\x1b[2J", 1, "p", "m"), [row(run="a\x1b[2J", step=1)])
    main(["query", "select run from runs", str(tmp_path)])
    assert "a\\x1b[2J" in capsys.readouterr().out


def test_all_stores_below_a_folder(store, tmp_path, capsys, monkeypatch):
    fill(tmp_path / "deeper" / "other", make_published("lab/c", steps=(0,)))
    monkeypatch.chdir(tmp_path)
    main(["query", "select run from runs order by run", "--csv"])
    assert capsys.readouterr().out.split() == ["run", "lab/a", "lab/b", "lab/c"]


def test_no_store(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["query", "select * from runs", str(tmp_path)])
    assert stopped.value.code == 2
    assert "expected stores with measurements, found none in" in capsys.readouterr().err


@pytest.mark.process
def test_a_query_imports_neither_torch_nor_matplotlib(store):
    code = "import sys; from repdyn.cli.query import build_parser; build_parser('x'); print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"'torch'", "'duckdb'", "'pandas'"} & set(loaded.strip("[]\n").split(", "))
