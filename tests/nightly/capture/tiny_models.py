"""Tiny models of known families, and sequences of different lengths."""

import torch
from small import random_tokens

from repdyn.models import build_model

RAGGED_IDS = random_tokens(10, 9)
RAGGED_MASK = (torch.arange(9)[None, :] < torch.tensor([9, 4, 7, 9, 3, 8, 9, 5, 6, 9])[:, None]).long()


def tiny(family: str, **changes):
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 16, "n_layers": 3, "n_heads": 2, "context_length": 16, "dropout": 0.1}
    return build_model(family, **sizes | changes, pad_token_id=1)
