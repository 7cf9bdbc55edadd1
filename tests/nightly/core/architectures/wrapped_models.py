"""Measurements of wrapped models."""

from __future__ import annotations

import torch

from repdyn import measure
from repdyn.capture.capture import capture
from repdyn.capture.trial import prepare

LENGTHS = torch.tensor([9, 4, 7, 9, 3, 8, 9, 5, 6, 9])
MASK = (torch.arange(9)[None, :] < LENGTHS[:, None]).long()


def values(model, probe, layers=None, **settings):
    return [
        (r.layer, r.stack, r.module, r.causal, r.value)
        for r in measure(model, probe, ["anisotropy"], layers, **settings).rows
    ]


def last_states(model, probe):
    return capture(prepare(model, probe), probe, ["all"]).layers[-1].states
