"""Statements on synthetic runs whose story is known, and on the runs of the documentation."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from judged_runs import layers_at, losses
from synthetic_runs import to_frame

from repdyn import insights, open_store
from repdyn.views.judging import stacks_of_run

RUNS = Path(__file__).parents[4] / "docs" / "runs"


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.floats(0.5, 100) | st.just(math.nan), min_size=7, max_size=12),
    st.integers(0, 2**16),
)
@example([1.0] * 8, 0)  # a constant correlates with nothing
def test_any_course_gives_the_same_statements_for_any_order_of_its_rows(values, seed):
    rows = layers_at({10 * place: value for place, value in enumerate(values)}, reason=None)
    rows = [
        row.with_columns(reason="too few vectors") if math.isnan(row.value or 0.0) else row
        for row in rows
    ]
    frame = to_frame([*rows, *losses(np.linspace(5, 2, len(values)))])
    shuffled = frame.sample(frac=1.0, random_state=seed)
    first, second = (stacks_of_run(of)[0].insights.as_dict() for of in (frame, shuffled))
    assert json.dumps(first, allow_nan=False) == json.dumps(second, allow_nan=False)


@pytest.mark.parametrize(
    ("folder", "statuses"),
    [
        ("decoder", ["healthy"]),
        ("encoder", ["healthy"]),
        ("diverging", ["failed"]),
        ("finished", ["unknown", "unknown"]),
        ("topics", ["healthy", "healthy"]),
    ],
)
def test_the_runs_of_the_documentation(folder, statuses):
    store = open_store(RUNS / folder)
    runs = insights(store)
    assert [run.status for run in runs] == statuses
    for run in runs:
        assert run.as_dict() == json.loads(json.dumps(run.as_dict(), allow_nan=False))
        assert all(statement.sentence.endswith(".") for statement in run.statements)
        assert all(statement.link.startswith("#run=") for statement in run.statements)
        steps = set(store.to_pandas(run.run)["step"])
        assert all(set(statement.steps) <= steps for statement in run.statements)


def test_the_diverging_run_is_told_from_its_loss_and_its_collapse():
    (run,) = insights(RUNS / "diverging")
    assert run.headline.startswith("failed: The training loss diverged")
    peak = next(each for each in run.statements if each.metric == "two_nn" and each.kind == "peak")
    assert peak.evidence["last"] == pytest.approx(0.999, abs=0.001)
