"""The progress bar of a whole training."""

import math
import re
from contextlib import suppress

import pytest
import torch
from jobs import Job, batches, tracker, trainer
from stored_rows import row

from repdyn.callbacks.progress import RunProgressBar, mean_dimension


def test_mean_dimension_is_over_the_layers_that_have_one():
    rows = [
        *(row(layer=layer, value=value) for layer, value in enumerate((math.nan, 4.0, 8.0))),
        row(metric="anisotropy", value=0.5),
        row(subset="no_sink", value=90.0),
    ]
    assert mean_dimension(rows) == {"dim": 6.0}
    assert mean_dimension(rows[:1]) == {}
    assert mean_dimension([]) == {}


@pytest.mark.parametrize(
    ("settings", "n_steps"),
    [({"max_steps": 8}, 8), ({"max_steps": 20}, 20), ({"max_steps": 4, "accumulate_grad_batches": 4}, 4)],
    ids=["less than an epoch", "two epochs", "accumulation"],
)
def test_one_bar_in_optimizer_steps_with_loss_and_dimension(tmp_path, probe, capsys, settings, n_steps):
    bar, job, attached = RunProgressBar(), Job(), tracker(probe, 4)
    trainer(tmp_path, bar, attached, enable_progress_bar=True, **settings).fit(job, batches(), batches())
    frames = re.split(r"[\r\n]+", capsys.readouterr().out)
    assert bar.train_progress_bar.n == bar.train_progress_bar.total == n_steps
    said = [frame for frame in frames if f"/{n_steps} [" in frame]
    drawn = [frame for frame in frames if "|" in frame]
    assert re.fullmatch(rf"training +0%\|.*\| 0/{n_steps} \[.*", drawn[0])
    assert drawn == said, "every line knows the total"
    assert not any(word in frame for frame in frames for word in ("Epoch", "Sanity", "Validation"))
    words = {re.split(r" +\d+%", frame)[0] for frame in said}
    assert {"training", "measuring step 0", f"measuring step {n_steps}"} <= words
    assert ("validating" in words) is (n_steps != 8)  # an epoch has 12 batches
    counts = [int(number) for frame in said for number in re.findall(r" (\d+)/", frame)]
    assert counts == sorted(counts)
    losses = [float(found[1]) for frame in said if (found := re.search(r"loss ([\d.]+)", frame))]
    assert losses[-1] == pytest.approx(job.losses[-1], rel=0.01)
    assert attached.store is not None
    frame = attached.store.to_pandas()
    last = frame[(frame["metric"] == "two_nn") & (frame["step"] == n_steps)]["value"].mean()
    shown = [float(found[1]) for frame in said if (found := re.search(r"dim ([\d.]+)", frame))]
    assert shown[-1] == pytest.approx(last, rel=0.01)


def test_the_bar_of_a_resumed_training_begins_at_its_step(tmp_path, capsys):
    first = trainer(tmp_path, enable_progress_bar=False, max_steps=3)
    first.fit(Job(), batches())
    first.save_checkpoint(tmp_path / "last.ckpt")
    bar = RunProgressBar()
    capsys.readouterr()
    trainer(tmp_path, bar, enable_progress_bar=True, max_steps=5).fit(
        Job(), batches(), ckpt_path=tmp_path / "last.ckpt"
    )
    drawn = [frame for frame in re.split(r"[\r\n]+", capsys.readouterr().out) if "|" in frame]
    assert re.fullmatch(r"training +60%\|.*\| 3/5 \[.*", drawn[0])
    assert (bar.train_progress_bar.n, bar.train_progress_bar.initial) == (5, 3)


def test_measuring_is_over_after_an_error(tmp_path, probe):
    bar = RunProgressBar()
    trainer(tmp_path, bar, enable_progress_bar=True, max_steps=1).fit(Job(), batches())
    with suppress(ZeroDivisionError), bar.doing("measuring step 1"):
        assert bar.train_progress_bar.desc == "measuring step 1"
        raise ZeroDivisionError
    assert bar.train_progress_bar.desc == "training"


def test_the_loss_is_read_rarely_and_at_the_end(tmp_path, monkeypatch):
    read, clock = [], [0.0]

    class Loss(torch.Tensor):
        def __float__(self) -> float:
            read.append(clock[0])
            return 1.0

    bar, show = RunProgressBar(), RunProgressBar.on_train_batch_end
    monkeypatch.setattr("repdyn.callbacks.progress.time.monotonic", lambda: clock[0])

    def end(self, trainer, module, outputs, batch, index):
        clock[0] += 0.125
        show(self, trainer, module, {"loss": outputs["loss"].as_subclass(Loss)}, batch, index)

    monkeypatch.setattr(RunProgressBar, "on_train_batch_end", end)
    trainer(tmp_path, bar, enable_progress_bar=True, max_steps=12).fit(Job(), batches())
    assert read == [0.125, 0.625, 1.125, 1.5]
