"""The fingerprint tells one step's weights from another's, and asks nothing of weights that do not
show themselves.
"""

from __future__ import annotations

import torch
from torch import nn

from repdyn import Tracker
from repdyn.tracking.weights import fingerprint


class Opaque(torch.Tensor):
    """As quantised weights of some libraries: an operation that was not foreseen is an error."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in {torch.Tensor.flatten, torch.flatten}:
            raise NotImplementedError("no flatten for this kind of weight")
        return super().__torch_function__(func, types, args, kwargs or {})


def test_one_changed_weight_is_seen(hand_written):
    hand_written.poles = nn.Parameter(
        torch.ones(3, dtype=torch.cfloat)
    )  # as in a linear recurrent unit
    for weight, change in ((hand_written.blocks[1].norm.bias, 1e-7), (hand_written.poles, 1e-5j)):
        before = fingerprint(hand_written)
        assert fingerprint(hand_written) == before
        with torch.no_grad():
            weight += change
        assert fingerprint(hand_written) != before


def test_weights_that_do_not_show_their_values_stop_nothing(
    hand_written, small_probe, tmp_path, without_figures
):
    before = fingerprint(hand_written)
    hidden = hand_written.head.weight.detach().clone().as_subclass(Opaque)
    hand_written.head.weight = nn.Parameter(hidden, requires_grad=False)
    assert fingerprint(hand_written) != before
    with Tracker(
        hand_written, small_probe, schedule=1, store=tmp_path, run="opaque", on_error="raise"
    ) as tracker:
        tracker.step()
    assert tracker.store.steps("opaque") == [0, 1]


def test_a_fingerprint_that_fails_costs_the_step_alone(
    hand_written, small_probe, tmp_path, monkeypatch, without_figures
):
    monkeypatch.setattr("repdyn.tracking.run.fingerprint", lambda *_, **__: 1 / 0)
    with Tracker(hand_written, small_probe, schedule=1, store=tmp_path, run="broken") as tracker:
        tracker.step()
    assert set(tracker.store.to_pandas()["reason"]) == {"ZeroDivisionError: division by zero"}
