"""The tracker in a loop of one's own: when it measures, and that the loop is what it was."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from small import HandWritten, random_tokens
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from repdyn import Probe, Tracker, open_store

pytestmark = pytest.mark.slow


class Loop:
    """A training as one writes it, which remembers its losses."""

    def __init__(self, model: nn.Module | None = None, precision: torch.dtype | None = None) -> None:
        torch.manual_seed(0)
        self.model = HandWritten() if model is None else model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scaler = torch.amp.GradScaler("cpu", enabled=precision is torch.float16)
        self.precision = precision
        self.losses: list[float] = []

    def step(self) -> Tensor:
        tokens = torch.randint(3, 50, (4, 12))
        with torch.autocast("cpu", self.precision, enabled=self.precision is not None):
            loss = cross_entropy(self.model(tokens)[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.losses.append(loss.item())
        return loss.detach()


def run(loop: Loop, tracker: Tracker, n_steps: int) -> None:
    with tracker:
        for _ in range(n_steps):
            tracker.step(loss=loop.step(), tokens=48)


def test_steps_losses_tokens(tmp_path, small_probe):
    loop = Loop()
    run(loop, Tracker(loop.model, small_probe, schedule=2, store=tmp_path / "mine", on_error="raise"), 5)
    store = open_store(tmp_path / "mine")
    assert store.runs() == ["mine"]
    assert store.steps("mine") == [0, 2, 4, 5]
    frame = store.to_pandas("mine")
    losses = frame[frame["metric"] == "train/loss"].set_index("step")["value"].to_dict()
    assert losses == {step: pytest.approx(loop.losses[step - 1]) for step in (2, 4, 5)}
    assert frame.groupby("step")["tokens_seen"].first().to_dict() == {0: 0, 2: 96, 4: 192, 5: 240}
    assert (tmp_path / "mine" / "figures" / "mean_over_layers.png").exists()


def test_the_learning_rate_is_stored_where_it_is_told(tmp_path, small_probe, without_figures):
    loop = Loop()
    with Tracker(loop.model, small_probe, schedule=2, store=tmp_path / "mine", on_error="raise") as tracker:
        for rate in (0.25, 0.5, None, 1.0, torch.tensor(0.75)):
            tracker.step(loss=loop.step(), learning_rate=rate)
    frame = tracker.store.to_pandas()
    rates = frame[frame["metric"] == "train/learning_rate"].set_index("step")["value"].to_dict()
    assert rates == {2: 0.5, 4: 1.0, 5: 0.75}
    assert frame.loc[frame["metric"] == "train/learning_rate", "layer"].isna().all()


def test_a_validation_loss_is_stored_once_with_the_next_measurement(tmp_path, small_probe, without_figures):
    loop = Loop()
    with Tracker(loop.model, small_probe, schedule=2, store=tmp_path / "mine", on_error="raise") as tracker:
        for validation_loss in (2.0, None, torch.tensor(1.5), None, None, None):
            tracker.step(loss=loop.step(), validation_loss=validation_loss)
    frame = tracker.store.to_pandas()
    losses = frame[frame["metric"] == "validation/loss"].set_index("step")["value"].to_dict()
    assert losses == {2: 2.0, 4: 1.5}


@pytest.mark.parametrize("precision", [None, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_the_loop_is_bit_identical(tmp_path, small_probe, precision, compiled, without_figures):
    def make() -> Loop:
        torch.manual_seed(1)
        model = HandWritten()
        return Loop(torch.compile(model, backend="eager") if compiled else model, precision)  # type: ignore[arg-type]

    plain, tracked = make(), make()
    torch.manual_seed(2)
    for _ in range(4):
        plain.step()
    drawn = torch.rand(1)
    torch.manual_seed(2)
    run(tracked, Tracker(tracked.model, small_probe, schedule=1, store=tmp_path, on_error="raise"), 4)
    assert tracked.losses == plain.losses
    assert torch.equal(torch.rand(1), drawn)
    for expected, found in zip(plain.model.parameters(), tracked.model.parameters(), strict=True):
        assert torch.equal(expected, found)
    assert tracked.scaler.get_scale() == plain.scaler.get_scale()


def test_a_training_that_goes_on_goes_on_in_its_store(tmp_path, small_probe, without_figures):
    loop = Loop()
    run(loop, Tracker(loop.model, small_probe, schedule=2, store=tmp_path / "mine"), 3)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    run(loop, Tracker(loop.model, small_probe, schedule=2, store=tmp_path / "mine", start=3, tokens_seen=144), 3)
    store = open_store(tmp_path / "mine")
    assert store.steps("mine") == [0, 2, 3, 4, 6]
    assert {path: path.stat().st_mtime_ns for path in written} == written
    assert store.to_pandas("mine")["tokens_seen"].max() == 288


def test_a_new_training_does_not_write_over_another(tmp_path, small_probe, without_figures):
    run(Loop(), Tracker(HandWritten(), small_probe, store=tmp_path / "mine"), 1)
    with pytest.raises(ValueError, match=r"already holds steps of 'mine'; resume it, or choose another run= or store="):
        run(Loop(), Tracker(HandWritten(), small_probe, store=tmp_path / "mine"), 1)
    run(Loop(), Tracker(HandWritten(), small_probe, store=tmp_path / "mine", run="second"), 1)
    assert open_store(tmp_path / "mine").runs() == ["mine", "second"]


def test_measured_where_a_checkpoint_is_saved(tmp_path, small_probe, without_figures):
    loop = Loop()
    with Tracker(loop.model, small_probe, schedule="checkpoints", store=tmp_path / "mine") as tracker:
        for _ in range(4):
            tracker.step(loss=loop.step())
            if tracker.now == 3:
                tracker.measure()
                tracker.measure()
    assert tracker.store.steps("mine") == [0, 3, 4]
    assert tracker.store.to_pandas()["tokens_seen"].isna().sum() > 0  # they were not told


@pytest.mark.parametrize("ends", [KeyboardInterrupt, ZeroDivisionError])
def test_what_was_measured_is_kept_when_a_training_breaks_off(
    tmp_path, small_probe, ends, capsys, caplog, quick_images
):
    loop = Loop()
    tracker = Tracker(loop.model, small_probe, schedule=2, store=tmp_path / "mine", on_error="raise")

    def break_off() -> None:
        with tracker:
            for _ in range(3):
                tracker.step(loss=loop.step())
            raise ends

    with pytest.raises(ends):
        break_off()
    assert tracker.store.steps("mine") == [0, 2]  # what broke off is not measured
    assert "figures" not in capsys.readouterr().out
    assert "repdyn figures " in caplog.text


def test_loggers_hear_of_it(tmp_path, small_probe, without_figures):
    loop, logger = Loop(), CSVLogger(tmp_path, name="logs", version="0")
    run(loop, Tracker(loop.model, small_probe, schedule=2, store=tmp_path / "mine", loggers=[logger]), 2)
    logger.save()
    assert "two_nn/mean" in (tmp_path / "logs" / "0" / "metrics.csv").read_text()


def test_loggers_get_the_loss_on_the_probe(tmp_path, small_probe, without_figures):
    loop, logger = Loop(), CSVLogger(tmp_path, name="logs", version="0")
    given = {"schedule": 2, "store": tmp_path / "mine", "loggers": [logger], "on_error": "raise"}
    run(loop, Tracker(loop.model, small_probe, probe_loss=True, **given), 2)
    logger.save()
    logged = pd.read_csv(tmp_path / "logs" / "0" / "metrics.csv").set_index("step")["probe/loss"].dropna()
    stored = open_store(tmp_path / "mine").to_pandas().query("metric == 'probe/loss'").set_index("step")["value"]
    assert logged.to_dict() == pytest.approx(stored.to_dict())
    assert list(stored.index) == [0, 2]


def test_encoder_with_a_forward_of_its_own(tmp_path, without_figures):
    class Classifier(nn.Module):
        """Takes embeddings, as models inside others do."""

        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Embedding(50, 16)
            layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2)

        def forward(self, embedded: Tensor, padding: Tensor) -> Tensor:
            return self.encoder(embedded, src_key_padding_mask=padding)

    model = Classifier()
    mask = (torch.arange(9)[None, :] < torch.tensor([9, 4, 7, 9, 3, 8, 9, 5, 6, 9])[:, None]).long()
    probe = Probe.from_tokens(random_tokens(10, 9), mask, max_vectors=56)
    forward = lambda model, batch: model(model.token(batch.input_ids), batch.attention_mask == 0)  # noqa: E731
    with Tracker(model, probe, store=tmp_path / "mine", forward=forward, on_error="raise") as tracker:
        pass
    frame = tracker.store.to_pandas()
    assert frame["layer"].max() == 2
    # the 55 tokens hold fewer than 28 of the 50 vectors that there are
    without = frame[frame["value"].isna()]
    assert set(without["layer"]) <= {0}
    assert all("distinct" in reason or "nearly the same" in reason for reason in without["reason"])
    assert set(frame["causal"]) == {False}


def test_the_commands_are_named_if_the_end_cannot_be_measured(tmp_path, small_probe, caplog):
    calls = []

    def forward(model, batch):
        calls.append(1)
        if len(calls) > 5:
            raise ZeroDivisionError("no such luck")
        return model(batch.input_ids)

    tracker = Tracker(HandWritten(), small_probe, 10, store=tmp_path / "mine", on_error="raise", forward=forward)

    def train() -> None:
        with tracker:
            tracker.step()

    with pytest.raises(ZeroDivisionError):
        train()
    assert f"repdyn figures {tmp_path}/mine" in caplog.text


def test_another_probe_is_refused_where_a_training_goes_on(tmp_path, small_probe, without_figures):
    run(Loop(), Tracker(HandWritten(), small_probe, store=tmp_path / "mine"), 1)
    other = Probe.from_tokens(random_tokens(24, 12, seed=5), max_vectors=192, batch_vectors=96)
    with pytest.raises(
        ValueError,
        match=f"expected the probe that the resumed run was measured on, {small_probe.hash}, got {other.hash}",
    ):
        run(Loop(), Tracker(HandWritten(), other, store=tmp_path / "mine", start=1), 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metrics": ["twonn"]}, "expected the name of a metric, got 'twonn'; did you mean 'two_nn'"),
        ({"on_error": "ignore"}, 'expected on_error "warn" or "raise", got \'ignore\''),
        ({"layers": "layers.*"}, r"'layers.\*' matches none; lists of blocks in it: \"blocks.\*\""),
        ({"schedule": "hourly"}, "expected a schedule: .* got 'hourly'"),
        ({"start": -1}, "expected start >= 0, the optimizer steps taken before, got -1"),
    ],
    ids=["metric", "on_error", "layers", "schedule", "start"],
)
def test_what_cannot_work_is_refused_at_once(small_probe, settings, message):
    with pytest.raises(ValueError, match=message):
        Tracker(HandWritten(), small_probe, **settings)


def test_a_loss_with_its_graph_is_stored_without_a_warning(tmp_path, small_probe, without_figures, recwarn):
    loop = Loop()
    with Tracker(loop.model, small_probe, schedule=1, store=tmp_path / "mine", on_error="raise") as tracker:
        tracker.step(loss=loop.step().requires_grad_())
    assert not [warning for warning in recwarn if "requires_grad" in str(warning.message)]
