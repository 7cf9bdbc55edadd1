"""Rows of public models that anybody measured and handed in, as CONTRIBUTING.md says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from repdyn import open_store
from repdyn.lab.recipes.cells import Cell
from repdyn.lab.recipes.recipe import shipped_recipes
from repdyn.store.files import MeasurementKey
from repdyn.store.schema import SCHEMA

HANDED_IN = Path(__file__).parents[1] / "docs" / "public_models" / "rows"
VERSIONS = ["repdyn_version", "torch_version", "transformers_version"]


def faults(folder: Path) -> list[str]:
    """Return what is wrong with each file of rows in a store of swept models."""
    found = []
    for path in sorted(folder.glob("*/*.parquet")):
        table = pq.ParquetFile(path).read()
        if not table.schema.equals(SCHEMA):
            found.append(f"{path.name}: expected the columns of this version")
            continue
        rows = table.to_pandas()
        values = rows[rows["layer"].notna() & rows["value"].notna()]
        first = rows.iloc[0]
        commit = str(first["checkpoint"]).rpartition("@")[2]
        key = MeasurementKey(
            run=first["run"],
            step=first["step"],
            probe=first["probe"],
            metrics=path.stem.rpartition("-")[2],
            checkpoint=commit,
        )
        at_layers = values.loc[
            (values["metric"] == "anisotropy") & (values["subset"] == "all"), "layer"
        ].tolist()
        within = values["value"].between(values["low"], values["high"]) | values["low"].isna()
        expected = {
            "the file's name": path == folder / key.filename,
            "one checkpoint, REPOSITORY@COMMIT": rows["checkpoint"]
            .str.fullmatch(r"[^@]+@[0-9a-f]{40}")
            .all()
            and rows["checkpoint"].nunique() == 1,
            "a revision": rows["revision"].notna().all(),
            "one probe, by its hash": rows["probe"].str.fullmatch("[0-9a-f]{16}").all()
            and rows["probe"].nunique() == 1,
            "versions of all packages": rows[VERSIONS].notna().all(axis=None)
            and len(rows[VERSIONS].value_counts()) == 1,
            "the design of the commands": (values["design"] == "paper").all(),
            "anisotropy at each layer": sorted(at_layers)
            == [*range(max(1, rows["layer"].nunique()))],
            "values in range": within.all()
            and values.query("metric == 'anisotropy'")["value"].between(0, 1).all(),
        }
        found += [f"{path.name}: expected {what}" for what, holds in expected.items() if not holds]
    return found


def faults_of_studies(folder: Path, *, as_in_recipe: bool = True) -> list[str]:
    """Return what is wrong with each study of a model in a folder of RECIPE/STUDY/MODEL."""
    problems = []
    for path in sorted(folder.glob("*/*/*/")):
        recipe, study = path.parts[-3:-1]
        if recipe not in shipped_recipes() or study not in shipped_recipes()[recipe].studies:
            problems.append(f"{path}: expected a study of a recipe of this version")
            continue
        of_recipe = shipped_recipes()[recipe]
        source_path = path / "source.json"
        source = json.loads(source_path.read_text()) if source_path.is_file() else {}
        tables = {table.stem: pd.read_csv(table) for table in path.glob("*.csv")}
        cells = [published.criterion for published in of_recipe.published]
        of_study = [cell for cell in cells if isinstance(cell, Cell) and cell.study == study]
        options = json.loads((path / "options.json").read_text())
        expected = {
            "one checkpoint, REPOSITORY@COMMIT": re.fullmatch(
                r"[^@]+@[0-9a-f]{40}", source.get("checkpoint", "")
            ),
            "versions of all packages": all(source.get(name) for name in VERSIONS),
            "the options of the recipe": not as_in_recipe or options == of_recipe.studies[study],
            "the tables that are judged, and no others": {cell.table for cell in of_study}
            >= set(tables)
            != set(),
            "their columns": all(
                {cell.column, *cell.row} <= set(tables[cell.table])
                for cell in of_study
                if cell.table in tables
            ),
        }
        problems += [f"{path}: expected {what}" for what, holds in expected.items() if not holds]
    return problems


def test_rows_in_the_repository_say_what_they_are_of():
    assert faults(HANDED_IN) == []
    assert faults_of_studies(HANDED_IN.parent / "studies") == []


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({}, None),
        ({"checkpoint": "lab/roberta"}, "one checkpoint"),
        ({"torch_version": ""}, "versions"),
        ({"options": {"text": "builtin"}}, "the options"),
        ({"column": "mean"}, "their columns"),
        ({"table": "nearest"}, "no others"),
        ({"study": "topics"}, "of this version"),
    ],
)
def test_a_study_that_does_not_say_what_it_is_of_is_named(changed, message, tmp_path):
    folder = tmp_path / "token-journeys" / changed.get("study", "tokens") / "lab_roberta"
    folder.mkdir(parents=True)
    source = {"checkpoint": f"lab/roberta@{'0123abcd' * 5}", **dict.fromkeys(VERSIONS, "1.0")}
    source = {name: changed.get(name, value) for name, value in source.items()}
    (folder / "source.json").write_text(json.dumps(source))
    options = changed.get("options", shipped_recipes()["token-journeys"].studies["tokens"])
    (folder / "options.json").write_text(json.dumps(options))
    columns = ["layer", "state", changed.get("column", "size")]
    table = pd.DataFrame([[1, "attention", 0.1]], columns=columns)
    table.to_csv(folder / f"{changed.get('table', 'positions')}.csv", index=False)
    problems = faults_of_studies(tmp_path)
    assert not problems if message is None else any(message in fault for fault in problems)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({}, None),
        ({"checkpoint": "lab/bert"}, "one checkpoint"),
        ({"revision": None}, "a revision"),
        ({"probe": "mine"}, "one probe"),
        ({"torch_version": None}, "versions"),
        ({"design": "dense"}, "the design"),
        ({"value": 1.5}, "values in range"),
        ({"metric": "other"}, "anisotropy at each layer"),
    ],
)
def test_a_row_that_does_not_say_it_is_named(changed, message, finished, tmp_path):
    commit = "0123abcd" * 5
    of_measured = {"checkpoint": f"lab/bert@{commit}", "design": "paper", "probe": "ab" * 8}
    rows = [row.with_columns(**changed) for row in finished(**of_measured)]
    open_store(tmp_path).write(
        MeasurementKey(
            run="lab/bert", step=0, probe=rows[0].probe, metrics="0f" * 4, checkpoint=commit
        ),
        rows,
    )
    found = faults(tmp_path)
    assert not found if message is None else any(message in each for each in found)
