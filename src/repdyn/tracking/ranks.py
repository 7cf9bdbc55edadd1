"""The processes of a job that measure."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch.distributed as dist
from torch import nn

from repdyn.capture.blocks import is_sharded
from repdyn.utils.distributed import ALONE, Ranks

WhichRanks: TypeAlias = Literal["zero", "all"]


def measuring_ranks(model: nn.Module, which: WhichRanks) -> Ranks | None:
    """Return the processes that measure a model together with this one; None where this one has
    nothing to do. Decided without communication: the tracker may be on one rank alone."""
    if n_processes() == 1:
        return ALONE
    if which == "all" or is_sharded(model):
        return Ranks.of_job()
    return ALONE if dist.get_rank() == 0 else None


def n_processes() -> int:
    """Return how many processes the job has."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
