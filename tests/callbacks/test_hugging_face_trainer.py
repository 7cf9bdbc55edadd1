"""The tracker under the Hugging Face Trainer: the same schedule, store and guarantees."""

from __future__ import annotations

import ast
import atexit
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from hugging_face_jobs import DATA, model, tracker, trainer
from transformers import (
    AutoModelForCausalLM,
    EarlyStoppingCallback,
    Trainer,
    TrainerCallback,
)

from repdyn import measure, open_store
from repdyn.views.alerts import Rule, find_alerts, stored_rules
from repdyn.views.tables.words import alert_lines

pytestmark = pytest.mark.usefixtures("without_figures")


def test_steps_losses_and_tokens(tmp_path, small_probe):
    attached = tracker(small_probe)
    trained = trainer(
        tmp_path / "job",
        attached,
        max_steps=5,
        logging_steps=1,
        include_num_input_tokens_seen="all",
    )
    trained.train()
    store = open_store(tmp_path / "job" / "repdyn")
    assert store.runs() == ["job"]
    assert store.steps("job") == [0, 2, 4, 5]
    frame = store.to_pandas()
    logged = {
        entry["step"]: entry["loss"] for entry in trained.state.log_history if "loss" in entry
    }
    stored = frame.query("metric == 'train/loss'").set_index("step")["value"].to_dict()
    assert stored == {step: logged[step] for step in (2, 4, 5)}
    assert frame.groupby("step")["tokens_seen"].first().to_dict() == {0: 0, 2: 96, 4: 192, 5: 240}
    assert set(frame.loc[frame["layer"].notna(), "model"]) == {"LlamaForCausalLM"}


def test_the_learning_rate_is_stored_as_it_is_when_measured(tmp_path, small_probe):
    attached = tracker(small_probe)
    schedule = {
        "learning_rate": 1e-2,
        "lr_scheduler_type": "linear",
        "warmup_steps": 2,
        "max_steps": 6,
    }
    trainer(tmp_path / "job", attached, **schedule).train()
    frame = attached.store.to_pandas()
    stored = frame.query("metric == 'train/learning_rate'").set_index("step")["value"].to_dict()
    assert stored == pytest.approx({0: 0.0, 2: 1e-2, 4: 5e-3, 6: 0.0})
    settings = attached.store.path_of("job").run.configuration["training"]
    assert {"lr_scheduler_type": "linear", "learning_rate": 1e-2}.items() <= settings.items()


def test_the_last_step_has_the_numbers_of_the_model_it_leaves(tmp_path, small_probe):
    attached = tracker(small_probe, 4)
    trained = trainer(tmp_path / "job", attached)
    trained.train()
    frame = attached.store.to_pandas()
    found = frame.loc[(frame["step"] == 6) & frame["layer"].notna()]
    values = found.sort_values(["layer", "metric", "subset"])["value"].tolist()
    expected = (
        measure(trained.model, small_probe)
        .to_pandas()
        .sort_values(["layer", "metric", "subset"])["value"]
    )
    np.testing.assert_array_equal(values, expected.tolist())


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="plain"),
        pytest.param({"gradient_accumulation_steps": 2}, id="accumulation"),
        pytest.param({"bf16": True}, id="bf16"),
        pytest.param(
            {"eval_strategy": "steps", "eval_steps": 3, "eval_on_start": True}, id="evaluation"
        ),
        pytest.param({"gradient_checkpointing": True}, id="gradient checkpointing"),
    ],
)
def test_training_is_bit_identical(tmp_path, small_probe, settings):
    plain = trainer(tmp_path / "plain", **settings)
    plain.train()
    drawn = torch.rand(1)
    attached = tracker(small_probe, 1)
    tracked = trainer(tmp_path / "tracked", attached, **settings)
    tracked.train()
    assert torch.equal(torch.rand(1), drawn)
    assert attached.store.steps("tracked") == [0, 1, 2, 3, 4, 5, 6]
    losses = [
        [entry["loss"] for entry in run.state.log_history if "loss" in entry]
        for run in (plain, tracked)
    ]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 3
    for expected, found in zip(plain.model.parameters(), tracked.model.parameters(), strict=True):
        assert torch.equal(expected, found)
    assert [m.training for m in plain.model.modules()] == [
        m.training for m in tracked.model.modules()
    ]


def test_resume_is_one_curve_and_a_second_training_another_run(tmp_path, small_probe):
    first = tracker(small_probe)
    trainer(tmp_path / "job", first, max_steps=4, save_strategy="steps", save_steps=4).train()
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    trainer(tmp_path / "job", tracker(small_probe)).train(resume_from_checkpoint=True)
    store = open_store(tmp_path / "job" / "repdyn")
    assert store.runs() == ["job"]
    assert store.steps("job") == [0, 2, 4, 6]
    assert {path: path.stat().st_mtime_ns for path in written} == written
    trainer(tmp_path / "job", first, max_steps=2).train()
    assert len(open_store(store.path).runs()) == 2
    moved = shutil.move(tmp_path / "job", tmp_path / "moved")
    third = tracker(small_probe)
    trainer(tmp_path / "third", third).train(resume_from_checkpoint=str(moved / "checkpoint-4"))
    assert third.store.steps("third") == [0, 2, 4, 6]  # with what the moved folder has


@pytest.mark.parametrize("schedule", [2, "checkpoints"])
def test_what_was_measured_chooses_the_best_model(tmp_path, small_probe, schedule):
    settings = {
        "eval_strategy": "steps",
        "save_strategy": "steps",
        "eval_steps": 2,
        "save_steps": 2,
    }
    best = {
        "metric_for_best_model": "anisotropy/mean",
        "load_best_model_at_end": True,
        "greater_is_better": False,
    }
    attached = tracker(small_probe, schedule)
    trained = trainer(tmp_path / "job", attached, **settings, **best)
    trained.train()
    frame = attached.store.to_pandas().query(
        "metric == 'anisotropy' and subset == 'all' and step > 0 and layer > 0"
    )
    assert trained.state.best_metric == pytest.approx(frame.groupby("step")["value"].mean().min())


def test_an_evaluation_prints_means_and_the_layer_that_decides(tmp_path, small_probe, capsys):
    """Each evaluation printed all layers of all metrics, in which its loss was lost."""
    best = {"eval_strategy": "steps", "metric_for_best_model": "two_nn/layer_02"}
    attached = tracker(small_probe, 2)
    trainer(tmp_path / "job", attached, max_steps=2, eval_steps=2, **best).train()
    lines = [line for line in capsys.readouterr().out.splitlines() if "eval_loss" in line]
    named = [name for name in ast.literal_eval(lines[0]) if "/" in name]
    assert sorted(named) == [
        "eval_anisotropy/mean",
        "eval_anisotropy_no_sink/mean",
        "eval_two_nn/layer_02",
        "eval_two_nn/mean",
        "eval_two_nn_distinct_inputs/mean",
    ]


class Halving(TrainerCallback):
    """Changes weights at the end of each step, as pruning does."""

    def on_step_end(self, args, state, control, model=None, **others):
        with torch.no_grad():
            for weight in model.model.layers.parameters():
                weight.mul_(0.5)


@pytest.mark.parametrize("is_first", [True, False], ids=["tracker first", "tracker last"])
def test_a_step_is_measured_after_other_callbacks(tmp_path, small_probe, is_first):
    """Measured before one that changes weights, the rows are not those of the checkpoint of their
    step."""
    attached = tracker(small_probe)
    callbacks = [attached, Halving()] if is_first else [Halving(), attached]
    trained = trainer(tmp_path / "job", *callbacks, save_strategy="steps", save_steps=2)
    names = [type(callback).__name__ for callback in trained.callback_handler.callbacks]
    trained.train()
    assert [type(callback).__name__ for callback in trained.callback_handler.callbacks] == names
    frame = attached.store.to_pandas()
    for step in (2, 4, 6):
        saved = AutoModelForCausalLM.from_pretrained(tmp_path / "job" / f"checkpoint-{step}").eval()
        expected = measure(saved, small_probe, ["anisotropy"]).to_pandas()
        keys = ["layer", "metric", "subset"]
        pairs = expected.merge(frame.query(f"step == {step}"), on=keys, suffixes=("", "_live"))
        assert len(pairs) == len(expected)
        np.testing.assert_array_equal(pairs["value"], pairs["value_live"])


def test_a_callback_before_the_tracker_reads_its_values(tmp_path, small_probe):
    """They came only after an EarlyStoppingCallback, which then never stopped."""
    settings = {
        "eval_strategy": "steps",
        "save_strategy": "steps",
        "eval_steps": 2,
        "save_steps": 2,
    }
    best = {"metric_for_best_model": "anisotropy/mean", "load_best_model_at_end": True}
    trained = trainer(tmp_path / "job", tracker(small_probe), max_steps=8, **settings, **best)
    trained.callback_handler.callbacks.insert(
        0, EarlyStoppingCallback(1, early_stopping_threshold=1e9)
    )
    trained.train()
    assert trained.state.global_step == 4


def test_measured_whenever_it_saves(tmp_path, small_probe):
    attached = tracker(small_probe, "checkpoints")
    trainer(tmp_path / "job", attached, save_strategy="steps", save_steps=3, max_steps=7).train()
    assert attached.store.steps("job") == [0, 3, 6, 7]


def test_the_end_is_the_last_step_though_the_best_model_is_loaded_then(tmp_path, small_probe):
    attached = tracker(small_probe, 100)
    trained = trainer(
        tmp_path / "job",
        attached,
        EarlyStoppingCallback(early_stopping_patience=1),
        load_best_model_at_end=True,
        eval_strategy="steps",
        save_strategy="steps",
        eval_steps=2,
        save_steps=2,
        max_steps=40,
        learning_rate=0.5,
    )
    trained.train()
    last = trained.state.global_step
    assert last < 40  # it stopped early
    assert trained.state.best_model_checkpoint != str(tmp_path / "job" / f"checkpoint-{last}")
    frame = attached.store.to_pandas()
    end = frame[(frame["step"] == last) & frame["layer"].notna()]["value"].tolist()
    evaluated = {
        log["step"]: log["eval_loss"] for log in trained.state.log_history if "eval_loss" in log
    }
    stored = frame.query("metric == 'val/loss'")["value"].tolist()
    assert stored == [evaluated[last]]
    saved = type(trained.model).from_pretrained(tmp_path / "job" / f"checkpoint-{last}")
    expected = (
        measure(saved, small_probe)
        .to_pandas()
        .sort_values(["metric", "subset", "layer"])["value"]
        .tolist()
    )
    np.testing.assert_array_equal(end, expected)
    assert not [
        name for name in trained.evaluate() if "anisotropy" in name
    ]  # the last step's, not the best model's


def test_the_validation_loss_is_that_of_the_first_of_several_data_sets(tmp_path, small_probe):
    attached = tracker(small_probe, 2)
    trained = trainer(tmp_path / "job", attached, eval_strategy="steps", eval_steps=2, max_steps=4)
    trained.eval_dataset = {"books": DATA[:4], "news": DATA[4:8]}
    trained.train()
    evaluated = [
        log["eval_books_loss"] for log in trained.state.log_history if "eval_books_loss" in log
    ]
    frame = attached.store.to_pandas()
    assert frame.query("metric == 'val/loss'").sort_values("step")["value"].tolist() == evaluated


class Interrupted(TrainerCallback):
    """Ctrl-C in the third step, of which the Trainer tells no callback."""

    def on_step_end(self, args, state, control, **others):
        if state.global_step == 3:
            raise KeyboardInterrupt


def test_after_ctrl_c_the_end_of_the_process_names_the_store(tmp_path, small_probe, caplog):
    """It said nothing, and the store lies in a folder that nobody has named."""
    attached = tracker(small_probe)
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path / "job", attached, Interrupted()).train()
    atexit.unregister(attached._at_exit)
    attached._at_exit()
    assert "resumed from a checkpoint goes on" in caplog.text
    assert f"repdyn report {tmp_path / 'job' / 'repdyn'}" in caplog.text
    assert attached.store.steps("job") == [0, 2]


def test_a_batch_that_is_too_large_is_tried_again(tmp_path, small_probe):
    tried = []

    class Large(torch.utils.data.Dataset):
        def __len__(self):
            return len(DATA)

        def __getitem__(self, i):
            return DATA[i]

    class Hungry(Trainer):
        def training_step(self, *args, **kwargs):
            tried.append(self._train_batch_size)
            if self._train_batch_size > 2:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return super().training_step(*args, **kwargs)

    arguments = trainer(tmp_path / "job", auto_find_batch_size=True, max_steps=2).args
    attached = tracker(small_probe)
    Hungry(model(), arguments, train_dataset=Large(), callbacks=[attached]).train()
    assert tried[0] == 4
    assert tried[-1] == 2 or tried[-1] < 4
    assert attached.store.steps(attached.store.runs()[-1]) == [0, 2]


def test_two_trackers_with_names_keep_apart(tmp_path, small_probe):
    attached = tracker(small_probe), tracker(small_probe, metrics=["gride_4"], name="far")
    trainer(tmp_path / "job", *attached, max_steps=2, report_to=["tensorboard"]).train()
    assert attached[0].store.runs() == ["job", "job.far"]
    assert (tmp_path / "job" / "runs" / "repdyn_far").is_dir()


def test_the_loss_of_the_last_step_and_of_saved_ones_is_stored(tmp_path, small_probe):
    attached = tracker(small_probe, "checkpoints")
    trained = trainer(
        tmp_path / "job",
        attached,
        save_strategy="steps",
        save_steps=2,
        max_steps=6,
        logging_steps=2,
    )
    trained.train()
    logged = {
        entry["step"]: entry["loss"] for entry in trained.state.log_history if "loss" in entry
    }
    frame = attached.store.to_pandas()
    assert frame.query("metric == 'train/loss'").set_index("step")["value"].to_dict() == logged
    assert set(logged) == {2, 4, 6}


def test_a_failure_lets_the_training_go_on(tmp_path, small_probe, monkeypatch, caplog):
    monkeypatch.setattr("repdyn.tracking.run.measure_with", lambda *_, **__: 1 / 0)
    attached = tracker(small_probe, on_error="warn")
    trained = trainer(tmp_path / "job", attached)
    trained.train()
    assert trained.state.global_step == 6
    frame: pd.DataFrame = attached.store.to_pandas()
    assert set(frame["reason"].dropna()) == {"ZeroDivisionError: division by zero"}
    assert sum("tracking at step" in record.message for record in caplog.records) == 1


def test_layers_that_match_nothing_are_refused_before_training(tmp_path, small_probe):
    trained = trainer(tmp_path / "job", tracker(small_probe, layers="layer.*"))
    with pytest.raises(ValueError, match=r"'layer.\*' matches none"):
        trained.train()
    assert trained.state.global_step == 0


def test_evaluation_alone_measures_nothing(tmp_path, small_probe):
    attached = tracker(small_probe)
    trainer(tmp_path / "job", attached).evaluate()
    assert attached.store is None
    trainer(tmp_path / "job", attached).train()
    assert not [
        name
        for name in trainer(tmp_path / "next fold", attached).evaluate()
        if "anisotropy" in name
    ]


def test_alerts_on_the_loss_are_raised_once_it_is_known(tmp_path, small_probe, caplog):
    rules = [
        Rule(name="high", when="above", bound=0.0, metrics=("train/loss",), stop=True),
        Rule(name="any", when="above", bound=0.0, metrics=("anisotropy",), subsets=("all",)),
    ]
    attached = tracker(small_probe, alerts=rules)
    trained = trainer(tmp_path / "job", attached)
    trained.train()
    assert trained.state.global_step == 2
    saying = {"repdyn.views.sinks.alerts", "repdyn.tracking.notices"}
    said = [record.message for record in caplog.records if record.name in saying]
    assert all(text.startswith("repdyn: ") for text in said)
    said = [text.removeprefix("repdyn: ") for text in said]
    assert [text.partition(":")[0] for text in said] == [
        "alert at step 0, any",
        "alert at step 2, high",
        "the training is to stop at step 2, as requested by",
    ]
    store = open_store(tmp_path / "job" / "repdyn")
    found = find_alerts(store.to_pandas(), stored_rules(store.alerts_path("job")))
    assert [f"alert at {line}" for line in alert_lines(found)] == said[:2]
