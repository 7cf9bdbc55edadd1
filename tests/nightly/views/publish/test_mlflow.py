"""MLflow, with its real database on disk: curves, images, alerts, the report."""

import math
from pathlib import Path

import pytest
from lightning.pytorch.loggers import MLFlowLogger
from matplotlib.figure import Figure
from synthetic_runs import fill, make_rows

from repdyn.metrics.logged import logged_values
from repdyn.views.publish.export import export_store
from repdyn.views.publish.loggers import named_figures, target_of

mlflow = pytest.importorskip("mlflow")


@pytest.fixture(scope="module")
def tracking(tmp_path_factory):
    """The address of a database; making one takes MLflow seconds."""
    folder = tmp_path_factory.mktemp("mlflow")
    return f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri()


@pytest.fixture
def logger(tracking):
    uri, artifacts = tracking
    return MLFlowLogger("tests", tracking_uri=uri, artifact_location=artifacts)


def history(logger, name):
    return [
        (point.step, point.value)
        for point in logger.experiment.get_metric_history(logger.run_id, name)
    ]


def files(logger, folder=None):
    for file in logger.experiment.list_artifacts(logger.run_id, folder):
        yield from files(logger, file.path) if file.is_dir else [file.path]


def test_values_are_those_of_every_step(row, logger):
    for step in (0, 4):
        rows = [
            row(step=step, layer=layer, value=math.nan if layer == 1 else step + layer)
            for layer in range(3)
        ]
        values = logged_values(
            [*rows, row(step=step, layer=2, metric="two_nn[discard=0.8]", value=9.0)]
        )
        target_of(logger).log_values(
            {f"teacher_{name}": value for name, value in values.items()}, step
        )
    assert history(logger, "teacher_anisotropy/layer_02") == [(0, 2.0), (4, 6.0)]
    assert history(logger, "teacher_anisotropy/mean") == [(0, 2.0), (4, 6.0)]
    assert [math.isnan(value) for _, value in history(logger, "teacher_anisotropy/layer_01")] == [
        True,
        True,
    ]
    assert history(logger, "teacher_two_nn-discard-0.8-/mean") == [(0, 9.0), (4, 9.0)]


def test_figures_and_alerts_are_artifacts(logger):
    target_of(logger).log_images(named_figures({"map": Figure((1, 1))}, "decoder"), 4)
    target_of(logger).log_alerts(["step 8, no value: two_nn", "step 8, mine: more"], 8)
    assert set(files(logger)) == {
        "figures/decoder/map/step_00000004.png",
        "alerts/step_00000008.txt",
    }
    path = logger.experiment.download_artifacts(logger.run_id, "alerts/step_00000008.txt")
    assert Path(path).read_text() == "step 8, no value: two_nn\nstep 8, mine: more"


def test_a_store_is_exported(tmp_path, tracking, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking[0])
    mlflow.MlflowClient(tracking[0]).create_experiment("mine", artifact_location=tracking[1])
    store = fill(tmp_path / "store", make_rows(steps=(0, 8), n_blocks=2))
    (line,) = export_store(store, to=["mlflow"], project="mine")
    place, _, run_id = str(line).rpartition(", run ")
    assert place == f"decoder-quickstart: 2 checkpoints in {tracking[0]}"
    logger = MLFlowLogger("mine", tracking_uri=tracking[0], run_id=run_id)
    run = logger.experiment.get_run(run_id)
    assert run.info.run_name == "decoder-quickstart"
    assert run.info.status == "FINISHED"
    assert run.data.params["repdyn/kind"] == "decoder"
    assert [step for step, _ in history(logger, "two_nn/mean")] == [0, 8]
    found = set(files(logger))
    assert {"report.html", "figures/heatmap_two_nn_all/step_00000008.png"} <= found
