"""A store is sent to loggers as a live run would have been."""

import csv
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from exported import store as store
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from synthetic_runs import SAMPLED, fill, make_rows
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from repdyn.metrics.logged import logged_values
from repdyn.store import MeasurementKey, open_store
from repdyn.tracking.sinks import RunInfo
from repdyn.views.judging import insights
from repdyn.views.publish.export import export_run, export_store, open_logger
from repdyn.views.publish.loggers import (
    WandbTarget,
    each_target,
    log_status,
    named_config,
    target_of,
)
from repdyn.views.publish.results import (
    log_heatmaps,
    log_live_charts,
    log_pictures,
    provenance,
    rows_and_stacks,
    show_run,
)
from repdyn.views.sinks import report as sink_of_report


def table(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "metrics.csv").open()))


def test_one_row_for_each_step_with_scalars_and_tokens(store, tmp_path):
    logger = CSVLogger(tmp_path / "log", name="", version="")
    run = {
        "id": "lab/model-70m",
        "name": "lab/model-70m",
        "configuration": {"training": {"lr": 0.5}, "metrics": ["a@b"]},
    }
    (store.folder_of("lab/model-70m") / "run.json").write_text(json.dumps(run))
    assert export_run(store, "lab/model-70m", [logger]) == 3
    logger.save()
    settings = yaml.safe_load(
        (tmp_path / "log" / "hparams.yaml").read_text()
    )  # exported runs had none to compare by
    assert settings["lr"] == 0.5
    assert settings["repdyn/metrics"] == "a@b"
    lines = table(tmp_path / "log")
    assert [line["step"] for line in lines] == ["0", "1", "8"]
    assert [float(line["repdyn/tokens"]) for line in lines] == [0, 1000, 8000]
    assert [float(line["seconds/forward"]) for line in lines] == [2.1] * 3
    assert [line["two_nn/layer_00"] for line in lines] == ["10.0", "nan", "18.0"]
    assert [float(line["two_nn/mean"]) for line in lines] == [10.75, 11.75, 18.75]


def test_rows_and_the_report_are_logged_as_the_logger_takes_them(store, tmp_path, monkeypatch):
    """The methods of the base class were called, so that W&B had no x axis and no report."""
    calls = []

    def note(name):
        def call(*_, **__):
            calls.append(name)

        return call

    for name in [name for name in vars(WandbTarget) if name.startswith("log_")]:
        monkeypatch.setattr(WandbTarget, name, note(name))
    logger = type("WandbLogger", (CSVLogger,), {})(tmp_path)
    export_run(store, "lab/model-70m", [logger])
    assert calls.count("log_values") == 3
    assert calls.count("log_page") == 1
    show_run(store, "lab/model-70m", loggers=[logger], report=tmp_path / "report.html")
    assert calls.count("log_page") == 2


def test_a_step_that_a_logger_refuses_leaves_the_others_their_rows(store, tmp_path, monkeypatch):
    """The first error ended the export, and later steps were nowhere."""
    logger = CSVLogger(tmp_path / "log", name="", version="")
    log_metrics = logger.log_metrics

    def refuse_the_first(values, step):
        if step == 0:
            raise ConnectionError("no route to the logger")
        log_metrics(values, step)

    monkeypatch.setattr(logger, "log_metrics", refuse_the_first)
    with pytest.raises(ConnectionError, match="no route"):
        export_run(store, "lab/model-70m", [logger])
    logger.save()
    assert [line["step"] for line in table(tmp_path / "log")] == ["1", "8"]


def test_an_export_that_fails_leaves_the_others(published, filled, tmp_path, monkeypatch):
    """The runs after it were not exported, and it was not said that it is incomplete."""
    runs = [published(name, steps=(0,), n_blocks=2) for name in ("lab/a", "lab/b")]
    whole = filled(tmp_path / "store", *runs)

    def fail_for_the_first(store, run, loggers, **options):
        if run == "lab/a":
            raise ConnectionError("no route to the logger")
        return export_run(store, run, loggers, **options)

    monkeypatch.setattr("repdyn.views.publish.export.export_run", fail_for_the_first)
    exports = export_store(whole, to=["csv"], folder=tmp_path / "exports")
    exported = []
    with pytest.raises(ConnectionError, match="no route"):
        exported.extend(exports)
    assert [str(export).partition(" in ")[0] for export in exported] == [
        "lab/a: not everything",
        "lab/b: 1 checkpoint",
    ]


def test_the_row_is_what_a_live_run_logs(store, published, tmp_path):
    rows = published(
        "lab/model-70m", steps=(8,), n_blocks=2, dimension=lambda step, depth: 10 + step + depth
    )
    logger = CSVLogger(tmp_path / "log", name="", version="")
    export_run(store, "lab/model-70m", [logger])
    logger.save()
    last = table(tmp_path / "log")[-1]
    assert {name: float(last[name]) for name in logged_values(rows)} == logged_values(rows)


def test_the_training_loss_has_its_own_name(filled, tmp_path):
    logger = CSVLogger(tmp_path / "log", name="", version="")
    export_run(filled(tmp_path / "store", make_rows(steps=(0, 8))), "decoder-quickstart", [logger])
    logger.save()
    losses = [float(line["repdyn/loss"]) for line in table(tmp_path / "log")]
    assert losses == pytest.approx([5.6, 1.2 + 4.4 * math.exp(-0.1)])
    assert "repdyn/tokens" not in table(tmp_path / "log")[0]


def test_seeds_of_one_model_are_one_more_run_with_a_band(published, filled, tmp_path):
    """Whoever looks at loggers alone saw several curves and no band, or the range of the layers
    for that of the seeds."""

    def dimension(seed):
        return lambda step, depth: 10 + seed + step + depth

    of_all = {"steps": (0, 1), "n_blocks": 2, "probe": "abc123"}
    seeds = [
        published(f"lab/a-seed{seed}", dimension=dimension(seed), **of_all) for seed in (1, 2, 3)
    ]
    store = filled(tmp_path / "sweeps", *seeds)
    *_, of_seeds = export_store(store, to=["csv"], folder=tmp_path / "exports")
    assert of_seeds.run == "lab/a (3 seeds)"
    assert of_seeds.n_steps == 2
    lines = table(Path(str(of_seeds.place)))
    assert [float(line["two_nn/mean"]) for line in lines] == [12.75, 13.75]
    half = 4.302652729911275 / math.sqrt(3)  # the quantile of t for two degrees of freedom
    assert float(lines[0]["two_nn/mean_low"]) == pytest.approx(12.75 - half)
    assert float(lines[0]["two_nn/mean_high"]) == pytest.approx(12.75 + half)
    assert float(lines[0]["two_nn/layer_02_high"]) == pytest.approx(13 + half)
    assert "anisotropy_no_sink/layer_01_low" not in lines[0]
    assert len([*export_store(store, ["lab/a-seed1"], to=["csv"], folder=tmp_path / "one")]) == 1


def test_runs_that_are_only_named_like_seeds_are_no_band(published, filled, tmp_path, caplog):
    """A mean over runs of two probes would look like one over seeds, or be left out in silence."""
    runs = [published(f"lab/a-seed{seed}", probe=f"{seed}" * 16) for seed in (1, 2)]
    store = filled(tmp_path / "sweeps", *runs)
    exported = [*export_store(store, to=["csv"], folder=tmp_path / "exports")]
    assert [each.run for each in exported] == ["lab/a-seed1", "lab/a-seed2"]
    assert "not exported as seeds of one model" in caplog.text
    assert "different probes" in caplog.text


def test_provenance(store):
    assert provenance(store, store.to_pandas("lab/model-70m")) == {
        "store": str(store.path.resolve()),
        "kind": "decoder",
        "tokens_seen": 8000,
        "n_layers": 3,
        "run": "lab/model-70m",
        "model": "GPTNeoXForCausalLM",
        "parameters": 1_234_567,
        "probe": "abc123",
        "design": "independent",
        "sampling": f"{SAMPLED}, own window's neighbours left out",
        "n_vectors": 4096,
        "n_batches": 8,
        "dim": 128,
        "dtype": "float32",
        "device": "cpu",
        "attention": "sdpa",
        "repdyn_version": "0.1.0",
    }


@pytest.mark.parametrize("name", ["../outside", ".hidden/x", "a b/ü"])
def test_no_name_leads_out_of_the_folder(name, tmp_path):
    with open_logger("csv", name, tmp_path / "logs") as (logger, location):
        logger.log_metrics({"x": 1.0}, 0)
    assert Path(location).resolve().is_relative_to((tmp_path / "logs" / "csv").resolve())
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


def test_a_model_with_two_stacks_is_one_run_that_tells_them_apart(two_stacks, filled, tmp_path):
    store = filled(tmp_path / "store", rows := two_stacks("lab/t5", steps=(0, 8)))
    loggers = (
        CSVLogger(tmp_path / "log", name="", version=""),
        TensorBoardLogger(tmp_path, name="", version="board"),
    )
    assert export_run(store, "lab/t5", loggers) == 2
    for logger in loggers:
        logger.save()
        logger.finalize("success")
    lines = table(tmp_path / "log")
    assert [line["step"] for line in lines] == ["0", "8"]
    logged = logged_values([row for row in rows if row.step == 8])
    assert {name: float(lines[-1][name]) for name in logged} == logged
    assert [float(line["repdyn/loss"]) for line in lines] == pytest.approx(
        [5.6, 1.2 + 4.4 * math.exp(-0.1)]
    )
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    images = set(events.Tags()["images"])
    assert len(images) == 12
    assert {"figures/encoder/mean_over_layers", "figures/decoder/mean_over_layers"} < images


RUN = "decoder-quickstart"


@pytest.fixture
def board(tmp_path):
    return TensorBoardLogger(tmp_path, name="", version="board")


def read(board):
    board.finalize("success")
    events = EventAccumulator(board.log_dir)
    return events.Reload()


def texts(events, tag):
    return [
        value.decode()
        for event in events.Tensors(f"{tag}/text_summary")
        for value in event.tensor_proto.string_val
    ]


def test_configuration_and_status(tmp_path, board):
    store = fill(tmp_path / "store", make_rows(steps=(0, 8)))
    loggers = [board, CSVLogger(tmp_path, name="", version="csv")]
    known = named_config({"probe": "3f2a", "schedule": "every 8"}, "teacher_")
    each_target(loggers, lambda target: target.log_config(known))
    log_status(insights(store, [RUN]), loggers)
    events = read(board)
    assert texts(events, "repdyn/config") == [
        "    repdyn/teacher_probe: 3f2a\n    repdyn/teacher_schedule: every 8"
    ]
    (summary,) = texts(events, "repdyn/summary")
    assert [line.partition(":")[0] for line in summary.splitlines()] == [
        "    repdyn/status",
        "    repdyn/headline",
    ]


def test_the_heatmaps_of_a_live_run_are_found_by_its_id(tmp_path, board):
    store = open_store(tmp_path / "store")
    run = store.begin_run("mine")
    for step in (0, 8):
        rows = [
            row.with_columns(run_id=run.id)
            for row in make_rows(run="mine", steps=(step,), n_blocks=2, loss=False)
        ]
        store.write(
            MeasurementKey(run=run.id, step=step, probe=rows[0].probe, metrics="m"),
            [row for row in rows if row.metric == "two_nn"],
        )
    log_heatmaps(store, run.id, target_of(board), probe=rows[0].probe)
    assert read(board).Tags()["images"] == ["figures/heatmap_two_nn_all"]


def recorded_charts(monkeypatch):
    """Step, name, places and number of lines of the charts that W&B gets from now on."""
    charts = []

    def log_lines(self, name, x, at, lines, step):
        charts.append((step, name, list(at), len(lines)))

    monkeypatch.setattr(WandbTarget, "log_lines", log_lines)
    return charts


class _Loggers:
    """The loggers of a training, called at once."""

    def __init__(self, *loggers):
        self._loggers = loggers

    def current(self):
        return iter(self._loggers)

    def each(self, job, step):
        for logger in self._loggers:
            job(logger)


def test_all_layers_of_what_is_asked_for_are_in_a_chart_from_the_second_measurement_on(
    tmp_path, monkeypatch
):
    """The charts came with the 4th, 8th and 16th measurement, and of geometry alone."""
    charts = recorded_charts(monkeypatch)
    monkeypatch.setattr(WandbTarget, "log_config", lambda *_: None)
    monkeypatch.setattr(sink_of_report, "MAX_TIME_SHARE", math.inf)  # every step is due
    logger = type("WandbLogger", (CSVLogger,), {})(tmp_path)
    store = open_store(tmp_path / "store")
    run = store.begin_run("mine")
    sink = sink_of_report.ReportSink(SimpleNamespace(log_layers=["norm"], report=False))
    for step in (0, 4, 8):
        rows = [
            row.with_columns(run_id=run.id, metric="norm" if row.metric == "two_nn" else row.metric)
            for row in make_rows(run="mine", steps=(step,), n_blocks=2, loss=False)
        ]
        key = MeasurementKey(run=run.id, step=step, probe=rows[0].probe, metrics="m")
        store.write(key, rows)
        if step == 0:
            info = RunInfo(
                name="mine",
                id=run.id,
                store=store,
                probe=rows[0].probe,
                weights_kind="raw",
                metrics=(("anisotropy", "all"), ("norm", "all")),
                schedule="every 4",
                configuration={},
                label="",
                has_history=False,
                loggers=_Loggers(logger),
            )
            sink.begin(info)
        sink.rows(step, rows)
    names = ["anisotropy_all_layers", "anisotropy_no_sink_layers", "norm_all_layers"]
    assert charts == [(4, name, [0, 4], 3) for name in names] + [
        (8, name, [0, 4, 8], 3) for name in names
    ]


def test_a_live_chart_has_64_steps_and_the_last_one_all(tmp_path, monkeypatch):
    """A file of every step at every step grows with the square of a training's length."""
    charts = recorded_charts(monkeypatch)
    steps = tuple(range(0, 700, 7))
    rows = make_rows(steps=steps, n_blocks=1, loss=False)
    store = fill(tmp_path / "store", [row for row in rows if row.metric == "two_nn"])
    target = WandbTarget(None)
    log_live_charts(store, RUN, target)
    ((_, _, live_steps, _),) = charts
    assert len(live_steps) == 64
    assert live_steps[0] == steps[0]
    assert live_steps[-1] == steps[-1]
    (stack,) = rows_and_stacks(store, RUN, None)[1]
    log_pictures(stack, {}, target)
    assert charts[-1][2] == list(steps)
