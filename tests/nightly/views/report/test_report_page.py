"""What a report holds: every number of the store, the words around them, and nothing that others
could make it do.
"""

from __future__ import annotations

import numpy as np
from pages import read_page
from synthetic_runs import fill, make_rows, make_two_stacks

from repdyn.views.report import write_report
from repdyn.views.tables.frames import by_stack, grid, measurements

STEPS = (0, 1, 8, 64)


def test_many_runs_make_one_page(tmp_path):
    names = [f"lab/seed{number:02d}" for number in range(26)]
    made = [make_rows(run=name, n_blocks=2, steps=(0, 8), loss=False) for name in names]
    store = fill(tmp_path, *([row for row in rows if row.metric == "two_nn"] for rows in made))
    page = read_page(write_report(store, tmp_path / "page.html"))
    assert [run["label"] for run in page.tree["runs"]] == [
        name.removeprefix("lab/") for name in names
    ]
    compared = page.tree["comparisons"]["two_nn"]["all"]
    assert {trace["meta"]["run"] for trace in compared["profiles"]["data"]} == set(range(26))
    assert len(compared["heatmaps"]["data"]) == 24
    assert compared["heatmaps_note"] == "; grey: no value; the first 24 runs"


def test_each_stack_of_a_model_is_there_for_itself(tmp_path):
    store = fill(tmp_path, make_two_stacks())
    page = read_page(write_report(store, tmp_path / "page.html"))
    labels = {run["label"]: run["metrics"]["two_nn"]["all"]["layers"] for run in page.tree["runs"]}
    assert labels == {"lab/t5 (decoder)": list(range(7)), "lab/t5 (encoder)": list(range(5))}
    rows = measurements(by_stack(store.to_pandas())["encoder"])
    encoder = next(run for run in page.tree["runs"] if "encoder" in run["label"])
    values = page.array(encoder["metrics"]["two_nn"]["all"]["values"])
    np.testing.assert_array_equal(values, grid(rows, "two_nn", "all").to_numpy(np.float32))
