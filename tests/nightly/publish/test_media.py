"""What W&B gets beside the still figures."""

import pytest
from lightning.pytorch.loggers import WandbLogger
from synthetic_runs import fill, make_row, make_two_stacks

from repdyn.publish.media import MAX_ROWS, log_stored_media
from repdyn.publish.targets import STEP_KEY

pytestmark = pytest.mark.slow


class Experiment:
    """A run of W&B that refuses some names."""

    def __init__(self, refused=""):
        self.refused = refused
        self.logged = {}

    def define_metric(self, *_, **__):
        pass

    def log(self, values):
        for name, value in values.items():
            if name == STEP_KEY:
                continue
            if self.refused and self.refused in name:
                raise ValueError(f"no such name: {name}")
            self.logged[name] = value


def logger_of(experiment):
    logger = WandbLogger.__new__(WandbLogger)
    logger._experiment = experiment
    return logger


def tables(experiment):
    return {name.removeprefix("tables/") for name in experiment.logged if name.startswith("tables/")}


def test_a_long_table_is_thinned_and_keeps_its_end(tmp_path):
    n_steps = MAX_ROWS // 100 + 50
    rows = [
        make_row(step=step, layer=layer, depth=layer / 99, metric="norm", value=float(step))
        for step in range(n_steps)
        for layer in range(100)
    ]
    store, experiment = fill(tmp_path, rows), Experiment()
    log_stored_media(store, "decoder-quickstart", [logger_of(experiment)])
    table = experiment.logged["tables/norm_all"]
    steps = [row[table.columns.index("step")] for row in table.data]
    assert len(steps) <= MAX_ROWS
    assert (steps[0], steps[-1]) == (0, n_steps - 1)


def test_several_trackers_and_stacks_keep_apart(tmp_path):
    store, experiment = fill(tmp_path, make_two_stacks(steps=(0, 8))), Experiment()
    log_stored_media(store, "lab/t5", [logger_of(experiment)], prefix="teacher_")
    assert {name.rpartition("/")[0] for name in experiment.logged} == {
        f"{kind}/{stack}" for kind in ("tables", "interactive") for stack in ("encoder", "decoder")
    }
    assert all(name.rpartition("/")[2].startswith("teacher_") for name in experiment.logged)
