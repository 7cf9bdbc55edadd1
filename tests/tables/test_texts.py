"""Views say the same of categoricals as of strings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from repdyn import open_store
from repdyn.alerts import RULES, find_alerts
from repdyn.diagnosis import describe_stacks
from repdyn.report.runs import report_runs
from repdyn.report.tree import ReportData, page_tree
from repdyn.report.write import _PARTS, Packer
from repdyn.tables.findings import findings
from repdyn.tables.frames import grid, measurements, metrics_of, of_metric, subsets_of
from repdyn.tables.texts import concatenated, counted, filled, in_lines_of_their_own

RUNS = Path(__file__).parents[2] / "docs" / "runs"


def as_strings(frame: pd.DataFrame) -> pd.DataFrame:
    texts = {name: str for name in frame if isinstance(frame[name].dtype, pd.CategoricalDtype)}
    assert texts
    return frame.astype(texts)


def both(texts: list[str | None]) -> list[pd.Series]:
    return [pd.Series(texts, dtype=object), pd.Series(texts, dtype="category")]


@pytest.fixture(scope="module", params=["decoder", "diverging", "every_metric"])
def frames(request):
    frame = open_store(RUNS / request.param).to_pandas(categorical=True)
    frame = frame.loc[frame["run"] == frame["run"].iloc[0]].reset_index(drop=True)
    return frame, as_strings(frame)


def test_alerts_and_insights_and_findings_are_the_same(frames):
    categorical, strings = frames
    assert list(map(repr, find_alerts(categorical))) == list(map(repr, find_alerts(strings)))
    told = [[one.as_dict() for one in describe_stacks(frame, RULES)] for frame in frames]
    assert repr(told[0]) == repr(told[1])
    assert findings(categorical) == findings(strings)


def test_the_report_is_the_same(frames):
    packers = [Packer(), Packer()]
    data = [ReportData(report_runs(frame), frame) for frame in frames]
    trees = [packer.pack(page_tree(one)) for packer, one in zip(packers, data, strict=True)]
    assert trees[0] == trees[1]
    assert packers[0].numbers() == packers[1].numbers()
    for part in _PARTS.values():
        assert part(data[0]) == part(data[1])


def test_a_grid_is_that_of_a_pivot(frames):
    rows = measurements(frames[0])
    for metric in metrics_of(rows):
        for subset in subsets_of(rows, metric):
            cells = of_metric(rows, metric, subset)
            expected = cells.pivot(index="layer", columns="step", values="value")
            found = grid(rows, metric, subset)
            np.testing.assert_array_equal(found.to_numpy(float), expected.to_numpy(float))
            assert (found.index.tolist(), found.columns.tolist()) == (
                expected.index.tolist(),
                expected.columns.tolist(),
            )


@pytest.mark.parametrize("column", both(["b", None, "b", "c"]))
def test_missing_texts_are_filled(column):
    assert filled(column, "a").tolist() == ["b", "a", "b", "c"]
    assert filled(column, "c").tolist() == ["b", "c", "b", "c"]


@pytest.mark.parametrize("column", both(["c", "a", "b", "a", "c", None]))
def test_the_first_of_equally_common_texts_comes_first(column):
    assert list(counted(column).items()) == [("c", 2), ("a", 2), ("b", 1)]


def test_categoricals_of_different_categories_stay_so():
    first, second = (pd.DataFrame({"x": pd.Series(texts, dtype="category")}) for texts in (["b", None], ["c", "a"]))
    joined = concatenated([first, second], ignore_index=True)["x"]
    assert joined.cat.categories.tolist() == ["a", "b", "c"]
    assert joined.isna().tolist() == [False, True, False, False]
    mixed = concatenated([first, pd.DataFrame({"x": ["d"]})], ignore_index=True)["x"]
    assert mixed.iloc[[0, 2]].tolist() == ["b", "d"]


@pytest.mark.parametrize("dtype", ["str", "object", "category"])
def test_texts_of_any_dtype_are_put_in_one_line(dtype):
    frame = pd.DataFrame({"run": pd.Series(["mine\nFORGED", "other"], dtype=dtype), "step": [1, 2]})
    shown = in_lines_of_their_own(frame)
    assert shown["run"].tolist() == ["mine\\nFORGED", "other"]
    assert shown["step"].tolist() == [1, 2]
