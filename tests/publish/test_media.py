"""What W&B gets beside the still figures."""

import math

import pytest
from lightning.pytorch.loggers import CSVLogger, WandbLogger
from synthetic_runs import fill, make_row, make_rows, make_two_stacks

from repdyn.alerts import Rule, write_rules
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


def test_tables_hold_what_the_store_holds(tmp_path):
    store, experiment = fill(tmp_path, make_rows(steps=(0, 8), n_blocks=2)), Experiment()
    write_rules(
        [Rule(name="any", when="above", bound=0.0, metrics=("two_nn",))], store.alerts_path("decoder-quickstart")
    )
    log_stored_media(store, "decoder-quickstart", [logger_of(experiment)])
    assert tables(experiment) == {"two_nn_all", "anisotropy_all", "anisotropy_no_sink", "alerts", "findings"}
    table = experiment.logged["tables/two_nn_all"]
    rows = store.to_pandas().query("metric == 'two_nn'").sort_values(["step", "layer"])
    for column in ("step", "layer", "value", "low", "high", "n_vectors", "design"):
        assert [row[table.columns.index(column)] for row in table.data] == rows[column].tolist()
    assert {row[1] for row in experiment.logged["tables/alerts"].data} == {"any"}
    assert {name for name in experiment.logged if "two_nn" in name and name.startswith("interactive/")} == {
        f"interactive/{kind}_two_nn_all" for kind in ("profile", "heatmap", "means")
    }


def test_a_name_that_wandb_refuses_costs_itself_alone(tmp_path):
    rows = make_rows(steps=(0, 8), n_blocks=2)
    rows += [make_row(step=step, layer=1, metric="odd", value=1.0) for step in (0, 8)]
    experiment = Experiment(refused="odd_all")
    with pytest.raises(ValueError, match="no such name: tables/odd_all"):
        log_stored_media(fill(tmp_path, rows), "decoder-quickstart", [logger_of(experiment)])
    assert tables(experiment) == {"two_nn_all", "anisotropy_all", "anisotropy_no_sink", "alerts", "findings"}


@pytest.mark.extended
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


def test_missing_values_are_none_and_other_loggers_are_passed_over(tmp_path):
    rows = make_rows(steps=(0,), n_blocks=2, dimension=lambda step, depth: math.nan if depth else 9.0)
    store, experiment = fill(tmp_path / "store", rows), Experiment()
    log_stored_media(store, "decoder-quickstart", [CSVLogger(tmp_path), logger_of(experiment)])
    table = experiment.logged["tables/two_nn_all"]
    assert [row[table.columns.index("value")] for row in table.data] == [9.0, None, None]
    assert table.data[1][table.columns.index("reason")] == "2 distinct vectors, 3 needed"
