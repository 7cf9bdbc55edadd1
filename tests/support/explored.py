"""A sentence for the explorer, and what a model predicts for it."""

from __future__ import annotations

import torch

SENTENCE = "The £1 coin"


def logits(loaded, ids):
    with torch.no_grad():
        return loaded.with_head(torch.tensor([ids])).logits[0].double()
