"""What rows and studies that were handed in do not say of themselves."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from repdyn.lab.recipes.cells import Cell
from repdyn.lab.recipes.recipe import shipped_recipes
from repdyn.store.files import MeasurementKey
from repdyn.store.schema import SCHEMA

VERSIONS = ["repdyn_version", "torch_version", "transformers_version"]


def faults(folder: Path) -> list[str]:
    """Return what is wrong with each file of rows in a store of swept models."""
    reasons = []
    for path in sorted(folder.glob("*/*.parquet")):
        table = pq.ParquetFile(path).read()
        if not table.schema.equals(SCHEMA):
            reasons.append(f"{path.name}: expected the columns of this version")
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
        reasons += [
            f"{path.name}: expected {what}" for what, holds in expected.items() if not holds
        ]
    return reasons


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
