"""Loops as nanoGPT and minGPT have them: tracked by the documented lines, and not changed in a bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from loops_of_others import CONTEXT, GPT, VOCABULARY, CallbackTrainer, Windows, run_script

from repdyn import Probe, Tracker, measure, open_store

TOKENS = torch.randint(0, VOCABULARY, (4000,), generator=torch.Generator().manual_seed(0))
PROBE = Probe.from_tokens(TOKENS[:2048].unflatten(0, (-1, CONTEXT)), max_vectors=512, batch_vectors=256)


def script(tmp_path, tracker):
    """nanoGPT: a loop at the top level of a script, which calls the tracker after its optimizer."""
    TOKENS[2048:].numpy().astype(np.uint16).tofile(tmp_path / "train.bin")
    return lambda model: run_script(model, tmp_path / "train.bin", lambda loss: tracker and tracker.step(loss=loss))


def trainer(tmp_path, tracker):
    """minGPT: a trainer that owns the loop, and takes a callback."""

    def train(model):
        trainer = CallbackTrainer(model, Windows(TOKENS[2048:]))
        if tracker is not None:
            trainer.add_callback("on_batch_end", lambda trainer: tracker.step(loss=trainer.loss))
        trainer.run()
        return trainer.losses

    return train


@pytest.mark.parametrize("loop", [script, trainer], ids=["nanoGPT", "minGPT"])
def test_a_loop_is_tracked_and_not_changed(loop, tmp_path, without_figures):
    torch.manual_seed(1)
    plain = GPT()
    losses = loop(tmp_path, None)(plain)
    after = torch.get_rng_state()

    torch.manual_seed(1)
    model = GPT()
    tracker = Tracker(model, PROBE, schedule=2, store=tmp_path / "store", report=False).start()
    assert loop(tmp_path, tracker)(model) == losses
    tracker.finish()
    assert torch.equal(torch.get_rng_state(), after)
    assert model.training
    for (name, weight), same in zip(model.state_dict().items(), plain.state_dict().values(), strict=True):
        assert torch.equal(weight, same), name

    frame = open_store(tmp_path / "store").to_pandas()
    frame = frame[frame["layer"].notna()]
    assert sorted(frame["step"].unique().tolist()) == [0, 2, 4]
    assert (set(frame["layer"].astype(int)), set(frame["causal"]), set(frame["dtype"])) == (
        {0, 1, 2, 3},
        {True},
        {"float32"},
    )
    offline = {(row.layer, row.metric, row.subset): row.value for row in measure(model, PROBE).rows}
    last = frame[(frame["step"] == 4) & frame["value"].notna()]
    assert len(last) >= 9
    for row in last.itertuples():
        assert row.value == offline[row.layer, row.metric, row.subset]
