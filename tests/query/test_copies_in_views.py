"""Checkpoints with the weights of another one: no view shows them, whether or not they were measured before."""

from __future__ import annotations

import math

import pytest
from synthetic_runs import fill, make_failures, make_published

from repdyn import insights
from repdyn.report.runs import report_data
from repdyn.store import MeasurementKey
from repdyn.tables.findings import findings
from repdyn.tables.frames import measurements
from repdyn.tables.series import metric_series

STEPS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
COPIES = (4, 64)
RUN = "lab/model-70m"


@pytest.fixture(params=["not measured", "measured before"])
def stores(request, tmp_path):
    """A store with two copies, and one in which these steps were never listed."""
    genuine = [step for step in STEPS if step not in COPIES]
    wrong = {"anisotropy": lambda step, depth: 0.9 if step in COPIES else 0.3, "noise": 0.001}
    measured = STEPS if request.param == "measured before" else genuine
    store = fill(tmp_path / "store", make_published(RUN, steps=measured, **wrong))
    probe = store.to_pandas()["probe"].iloc[0]
    later = {"probe": probe, "checkpoint": f"{RUN}@0123abcd", "measured_at": "2025-01-02T00:00:00+00:00"}
    for step in COPIES:
        rows = make_failures(step, "a copy: it has the weights of step512", same_as="step512", **later)
        store.write(MeasurementKey(RUN, step, probe, "0123abcd").failed, [row for row in rows if math.isnan(row.value)])
    return store, fill(tmp_path / "clean", make_published(RUN, steps=genuine, **wrong))


def test_figures_and_verdicts(stores):
    found, clean = (store.to_pandas() for store in stores)
    series = metric_series(measurements(found))
    assert all(not set(COPIES) & set(each.steps) for each in series.values())
    assert findings(found) == findings(clean)


def test_insights(stores):
    found, clean = (insights(store)[0] for store in stores)
    assert found.statements == clean.statements
    assert found.status == clean.status


def test_the_report(stores):
    store, clean = stores
    (run,), (other,) = (report_data([each]).runs for each in (store, clean))
    assert run.measured.steps == other.measured.steps
    assert run.measured.n_failed == 0


def test_a_query(stores):
    pytest.importorskip("duckdb")
    store, _ = stores
    (runs,) = store.sql("select failed_checkpoints, copied_checkpoints, checkpoints from runs").to_dict("records")
    assert runs == {"failed_checkpoints": 0, "copied_checkpoints": 2, "checkpoints": len(STEPS) - len(COPIES)}
    values = store.sql("select step, same_as from rows where value is not null and layer is not null")
    assert not set(values["step"]) & set(COPIES)
    profiles = store.sql("select * from profiles")
    assert not set(profiles["step"]) & set(COPIES)
