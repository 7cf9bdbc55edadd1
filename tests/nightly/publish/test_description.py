"""What loggers know of a run beside its curves."""

from itertools import pairwise

import pytest
from lightning.pytorch.loggers import TensorBoardLogger
from synthetic_runs import fill, make_rows

from repdyn.tracking.run_views import FIRST_HEATMAPS, HEATMAP_GROWTH, MAX_TIME_SHARE, RunViews

pytestmark = pytest.mark.slow


RUN = "decoder-quickstart"


@pytest.fixture
def board(tmp_path):
    return TensorBoardLogger(tmp_path, name="", version="board")


def test_heatmaps_become_rarer_as_a_run_goes_on(tmp_path, board, monkeypatch):
    drawn, described, clock = [], [], [0.0]

    def draw(*_, **__):
        clock[0] += 2.0
        drawn.append(len(measured))

    monkeypatch.setattr("repdyn.publish.description.log_heatmaps", draw)
    monkeypatch.setattr("repdyn.publish.description.log_config", lambda config, *_: described.append(config))
    monkeypatch.setattr("repdyn.tracking.run_views.time.perf_counter", lambda: clock[0])
    rows, measured = make_rows(steps=(0, 8)), []
    monkeypatch.setattr("repdyn.store.Store.steps", lambda *_: list(range(len(measured))))
    store = fill(tmp_path / "store", rows)

    def go_on(until: int) -> None:
        views = RunViews(store, lambda: [board], live=False)
        while len(measured) < until:
            measured.append(clock[0])
            views.refresh(RUN, rows[0].probe)
            clock[0] += 10.0

    go_on(300)
    assert drawn[0] == FIRST_HEATMAPS
    assert 8 < len(drawn) < 20
    for earlier, later in pairwise(drawn):
        assert later >= earlier * HEATMAP_GROWTH
        assert MAX_TIME_SHARE * (measured[later - 1] - measured[earlier - 1]) >= 2.0
    assert len(described) == 1
    # of a resumed run: at once, and then as rarely as before
    del drawn[:]
    go_on(500)
    assert drawn[:2] == [301, 377]
    assert described[0]["metrics"] == "anisotropy@all, anisotropy@no_sink, two_nn@all"
