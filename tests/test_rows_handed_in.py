"""Rows of public models that anybody measured and handed in, as CONTRIBUTING.md says."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from handed_in import VERSIONS, faults, faults_of_studies

from repdyn import open_store
from repdyn.lab.recipes.recipe import shipped_recipes
from repdyn.store.files import MeasurementKey

HANDED_IN = Path(__file__).parents[1] / "docs" / "public_models" / "rows"


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
