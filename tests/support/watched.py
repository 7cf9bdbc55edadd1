"""An index of two runs, as the watching server has it."""

from __future__ import annotations

import pytest
from synthetic_runs import fill, make_rows

from repdyn.views.watch.index import Index

STEPS = (0, 10, 20)


@pytest.fixture
def index(tmp_path):
    fill(tmp_path, *(make_rows(run=run, steps=STEPS, n_blocks=2) for run in ("first", "second")))
    index = Index([tmp_path], interval=0.0)
    while index.poll(10.0):
        pass
    return index
