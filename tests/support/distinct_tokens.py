"""A probe in which all tokens are distinct."""

import torch

from repdyn import Probe


def make_probe(**settings) -> Probe:
    """Return a probe of 40 sequences of 30 distinct tokens with three batches."""
    return Probe.from_tokens(
        torch.arange(1200).view(40, 30), **{"max_vectors": 900, "batch_vectors": 300} | settings
    )


def first_tokens(count: int) -> torch.Tensor:
    return torch.arange(1200) < count
