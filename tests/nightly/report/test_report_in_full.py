"""The report is one page with every number of its stores, in which nothing of others runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pages import read_page
from synthetic_runs import (
    fill,
    make_published,
    make_rows,
    make_scalar,
    make_two_stacks,
)

from repdyn.report import write_report
from repdyn.report.runs import report_data
from repdyn.report.sections import alerts_and_findings
from repdyn.tables.frames import by_stack, grid, measurements

STEPS = (0, 1, 8, 64)


def test_each_stack_of_a_model_is_there_for_itself(tmp_path):
    store = fill(tmp_path, make_two_stacks())
    page = read_page(write_report(store, tmp_path / "page.html"))
    labels = {run["label"]: run["metrics"]["two_nn"]["all"]["layers"] for run in page.tree["runs"]}
    assert labels == {"lab/t5 (decoder)": list(range(7)), "lab/t5 (encoder)": list(range(5))}
    rows = measurements(by_stack(store.to_pandas())["encoder"])
    encoder = next(run for run in page.tree["runs"] if "encoder" in run["label"])
    values = page.array(encoder["metrics"]["two_nn"]["all"]["values"])
    np.testing.assert_array_equal(values, grid(rows, "two_nn", "all").to_numpy(np.float32))


def test_only_a_run_that_goes_on_refreshes(tmp_path):
    store = fill(tmp_path, make_rows(steps=STEPS))
    assert read_page(write_report(store, tmp_path / "page.html")).tree["live"] is None
    live = read_page(write_report(store, tmp_path / "page.html", refresh_seconds=900)).tree["live"]
    assert (live["every"], live["stale"]) == (900, 2700)


STEPS_OF_REPORT_GLANCE = tuple(range(0, 120, 10))


def run(name, losses, dimension=lambda step, depth: 9 + depth, **more):
    rows = make_rows(run=name, steps=STEPS_OF_REPORT_GLANCE, n_blocks=4, dimension=dimension, loss=False, **more)
    return [
        *rows,
        *(make_scalar(step, loss, run=name) for step, loss in zip(STEPS_OF_REPORT_GLANCE, losses, strict=True)),
    ]


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    """A run that goes well, and one that fails after its dimension has halved in one layer."""
    folder = tmp_path_factory.mktemp("glance")
    well = run("well", np.linspace(5, 2, 12))
    failed = run(
        "failed",
        [*np.linspace(5, 2, 6), *np.linspace(2, 6, 6)],
        dimension=lambda step, depth: 2.0 if step >= 80 and depth == 0.5 else 9 + depth,
    )
    return write_report(fill(folder / "store", well, failed), folder / "report.html")


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def rows(name, dimension, **given):
    fields = {"steps": (0, 1, 8, 64), "n_blocks": 2, "probe": "0" * 16} | given
    return make_published(name, dimension=lambda step, depth: float(dimension), **fields)


@pytest.fixture
def stores(tmp_path):
    """A store for each of three seeds, and one of another run, which comes first in a comparison."""
    seeds = [fill(tmp_path / f"seed{number}", rows(f"lab/m-seed{number}", number)) for number in (1, 2, 6)]
    return [*seeds, fill(tmp_path / "own", rows("lab/own", 4, parameters=10))]


def test_verdicts_have_a_line_for_the_seeds(stores):
    text = str(alerts_and_findings(report_data(stores)))
    assert '<th scope="row">m (3 seeds)</th>' in text
    assert text.count("over 3 seeds: ") == 7
    assert "seeds" not in str(alerts_and_findings(report_data(stores, seeds=())))


@pytest.fixture
def store(tmp_path):
    return fill(tmp_path / "store", *(make_rows(run=name, steps=(0, 8)) for name in ("a", "b")))
