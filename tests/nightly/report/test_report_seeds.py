"""Seeds of one model in a report: one line with a band, and one line of verdicts."""

import pytest
from synthetic_runs import fill, make_published

from repdyn.report.runs import report_data
from repdyn.report.sections import overview


def rows(name, dimension, **given):
    fields = {"steps": (0, 1, 8, 64), "n_blocks": 2, "probe": "0" * 16} | given
    return make_published(name, dimension=lambda step, depth: float(dimension), **fields)


@pytest.fixture
def stores(tmp_path):
    """A store for each of three seeds, and one of another run, which comes first in a comparison."""
    seeds = [fill(tmp_path / f"seed{number}", rows(f"lab/m-seed{number}", number)) for number in (1, 2, 6)]
    return [*seeds, fill(tmp_path / "own", rows("lab/own", 4, parameters=10))]


def test_runs_that_are_no_seeds_are_shown_as_runs_with_a_warning(stores):
    other = fill(stores[0].path.parent / "other", rows("lab/m-seed9", 9, n_blocks=3))
    data = report_data([*stores, other])
    assert list(data.seeds) == []
    assert "Not shown as seeds of one model: expected runs that differ in their seed alone" in str(overview(data))
    with pytest.raises(ValueError, match="different layers of"):
        report_data([*stores, other], seeds=["lab/m-*"])
