"""A model is tried before a training: what does not run is refused with what to write, and nothing is changed."""

import random

import numpy as np
import pytest
import torch
from small import Block, HandWritten, random_tokens
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

import repdyn.measurement.measure as measure_module
from repdyn import Probe, Tracker, measure
from repdyn.capture import trial
from repdyn.capture.prepared_model import prepare
from repdyn.capture.trial import choose_way, try_model


class Decoder(nn.Module):
    """A model whose forward is its subclasses' own."""

    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(50, 16)
        self.blocks = nn.ModuleList(Block(16, True) for _ in range(3))
        self.runs = 0

    def states(self, ids):
        self.runs += 1
        x = self.token(ids)
        for block in self.blocks:
            x = block(x)
        return x


class TakesTargets(Decoder):
    def forward(self, tokens, targets, attention_mask):
        return self.states(tokens).sum() + targets.sum()


class TakesADict(Decoder):
    def forward(self, batch):
        return self.states(batch["input_ids"])


class TakesAnUnknownDict(Decoder):
    def forward(self, batch):
        return self.states(batch["pixels"])


class TakesAnyKeywords(Decoder):
    """As models that pass their keywords on to a layer, which knows no attention_mask."""

    def forward(self, x, **keywords):
        if keywords:
            raise TypeError(f"unexpected keywords {sorted(keywords)}")
        return self.states(x)


class RequiresTypes(Decoder):
    def forward(self, input_ids, token_type_ids, position_ids):
        assert token_type_ids.shape == position_ids.shape == input_ids.shape
        return self.states(input_ids)


def refused(model, probe, **settings):
    with pytest.raises(ValueError, match="expected") as caught, Tracker(model, probe, 1, **settings):
        raise AssertionError("the training has begun")
    return str(caught.value)


def test_a_forward_that_takes_other_arguments(tmp_path, small_probe, without_figures):
    message = refused(TakesTargets(), small_probe, store=tmp_path / "mine")
    assert "expected TakesTargets.forward(tokens, targets, attention_mask) to run on token ids up to 49" in message
    assert "missing 1 required positional argument: 'targets'" in message
    assert message.endswith(
        "forward=lambda model, batch: model(batch.input_ids, targets=batch.input_ids, "
        "attention_mask=batch.attention_mask)"
    )
    assert not (tmp_path / "mine").exists()
    forward = eval(
        message.rpartition("forward=lambda")[1].removeprefix("forward=") + message.rpartition("forward=lambda")[2]
    )
    with Tracker(TakesTargets(), small_probe, 1, store=tmp_path / "mine", forward=forward, on_error="raise"):
        pass


@pytest.mark.parametrize("make", [TakesADict, TakesAnyKeywords, RequiresTypes])
def test_forwards_that_are_accepted(tmp_path, small_probe, without_figures, make):
    model = make()
    with Tracker(model, small_probe, 1, store=tmp_path / "mine", on_error="raise") as tracker:
        pass
    expected = measure(model, small_probe, forward=lambda model, batch: model.states(batch.input_ids))
    frame = tracker.store.to_pandas().query("layer.notna()")
    np.testing.assert_array_equal(
        frame.sort_values(["metric", "subset", "layer"])["value"],
        expected.to_pandas().sort_values(["metric", "subset", "layer"])["value"],
    )


def test_a_dict_of_something_else(tmp_path, small_probe):
    message = refused(TakesAnUnknownDict(), small_probe, store=tmp_path / "mine")
    assert 'forward=lambda model, batch: model({"input_ids": batch.input_ids, "attention_mask"' in message


@pytest.mark.parametrize("hugging_face", [False, True])
def test_windows_that_are_longer_than_the_context(tmp_path, hugging_face):
    probe = Probe.from_tokens(random_tokens(10, 90), max_vectors=256)
    model = HandWritten()
    if hugging_face:
        model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=64, n_embd=16, n_layer=2, n_head=2))
    message = refused(model, probe, store=tmp_path / "mine")
    assert "got windows of 90 tokens, of which" in message
    assert "reads 64 (IndexError" in message
    assert "sequence_length=64" in message


def test_a_token_that_the_model_does_not_know(tmp_path):
    probe = Probe.from_tokens(random_tokens(10, 12, vocabulary=60), max_vectors=96)
    message = refused(HandWritten(), probe, store=tmp_path / "mine")
    assert message.startswith(
        "expected token ids that the model knows, got a probe whose ids go up to 59, of which HandWritten runs on those "
        "up to 49 (IndexError: "
    )
    assert message.endswith("is it the model's tokenizer that made the probe?")


def test_windows_too_long_and_ids_too_large_are_found_one_after_the_other(tmp_path):
    probe = Probe.from_tokens(random_tokens(10, 90, vocabulary=60), max_vectors=256)
    assert "sequence_length=64" in refused(HandWritten(), probe, store=tmp_path / "mine")
    probe = Probe.from_tokens(random_tokens(10, 64, vocabulary=60), max_vectors=256)
    assert "of which HandWritten runs on those up to 49" in refused(HandWritten(), probe, store=tmp_path / "mine")


def test_a_forward_of_the_users_own_that_fails(tmp_path, small_probe):
    message = refused(HandWritten(), small_probe, store=tmp_path / "mine", forward=lambda model, batch: model(batch))
    assert message.startswith("expected forward= to run HandWritten on a ProbeBatch of shape (2, 12), got ")


def test_the_errors_of_the_package_stay_as_they_are(tmp_path, small_probe):
    mask = torch.ones(24, 12).long()
    mask[0, 6:] = 0
    probe = Probe.from_tokens(small_probe.tokens.view(24, 12), mask, max_vectors=96)
    assert "without padding, because HandWritten.forward takes no attention_mask" in refused(HandWritten(), probe)


def test_a_trial_leaves_everything_as_it_was(small_probe):
    class Normalised(HandWritten):
        """Counts, draws and keeps running statistics as it runs."""

        def __init__(self):
            super().__init__()
            self.statistics = nn.BatchNorm1d(16)
            self.dropout = nn.Dropout(0.5)

        def forward(self, batch):
            torch.rand(1), random.random(), np.random.rand()
            return self.dropout(self.statistics(super().forward(batch)[..., :16].transpose(1, 2)))

    model = Normalised()
    model.blocks[1].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    try_model(prepare(model), small_probe)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (random.getstate(), np.random.get_state()[1].tolist())
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_nothing_is_tried_where_a_signature_says_enough(small_probe):
    class Typed(Decoder):
        def forward(self, ids: torch.Tensor):
            return self.states(ids)

    model = Typed()
    choose_way(prepare(model), small_probe)
    assert model.runs == 0


def test_out_of_memory_is_left_to_the_measurements(tmp_path, small_probe, without_figures, capsys):
    def forward(model, batch):
        raise torch.OutOfMemoryError("no memory left")

    with Tracker(HandWritten(), small_probe, 1, store=tmp_path / "mine", forward=forward) as tracker:
        tracker.step()
    assert tracker.store.steps("mine") == []
    assert "repdyn: 0 of 2 steps measured; step 0: OutOfMemoryError: no memory left" in capsys.readouterr().err


class Timed(HandWritten):
    """Takes a second for each window, on a clock that moves with nothing else."""

    def __init__(self, largest: int = 100) -> None:
        super().__init__()
        self.now, self.largest = 0.0, largest

    def forward(self, tokens):
        if len(tokens) > self.largest:
            raise torch.OutOfMemoryError("no memory left")
        self.now += len(tokens)
        return super().forward(tokens)


@pytest.mark.parametrize(("tokens_per_forward", "n_timed"), [(8192, 5), (24, 2), (1, 1)])
def test_the_time_of_a_measurement_is_that_of_a_batch_for_all_windows(monkeypatch, tokens_per_forward, n_timed):
    model, probe = Timed(), Probe.from_tokens(random_tokens(40, 12), max_vectors=96, batch_vectors=24)
    monkeypatch.setattr(trial.time, "perf_counter", lambda: model.now)
    expected = trial.expect(prepare(model), probe, tokens_per_forward)
    assert expected.forward_seconds == pytest.approx(40)
    assert [tuple(vector.shape) for vector in expected.vectors] == [(16,)] * 4
    assert model.now == 0  # a plain attribute, restored
    batches = []
    prepared = prepare(model, forward=lambda model, batch: batches.append(model(batch.input_ids)))
    trial.expect(prepared, probe, tokens_per_forward)
    assert [len(each) for each in batches] == [n_timed]


def test_a_batch_that_does_not_fit_into_memory_is_left_to_the_measurements(tmp_path, without_figures, capsys):
    probe = Probe.from_tokens(random_tokens(40, 12), max_vectors=96, batch_vectors=24)
    tracker = Tracker(Timed(largest=4), probe, 1, store=tmp_path, tokens_per_forward=48, report=False).start()
    assert "each measurement runs the model on the probe for about" in capsys.readouterr().err
    tracker.finish()
    tracker = Tracker(Timed(largest=4), probe, 1, store=tmp_path / "more", report=False).start()
    assert "each measurement" not in capsys.readouterr().err
    tracker.finish()
    assert "step 0: OutOfMemoryError: no memory left" in capsys.readouterr().err


def test_whether_positions_see_later_ones_is_tried_until_it_is_known(tmp_path, small_probe, monkeypatch):
    found = iter([{None: None}, {None: True}])  # blocks initialised as the identity at first
    monkeypatch.setattr(measure_module, "causality", lambda *args, **settings: next(found))
    tracker = Tracker(HandWritten(), small_probe, schedule=1, store=tmp_path / "mine", alerts=(), report=False)
    tracker.start()
    for _ in range(3):
        tracker.step()
    rows = tracker.store.to_pandas()
    by_step = rows.loc[rows["layer"].notna()].groupby("step")["causal"].agg(lambda values: set(values.dropna()))
    assert by_step.tolist() == [set(), {True}, {True}, {True}]
