"""Saved states for the tests of the state cache."""

import pytest
import torch

from repdyn.kernels import UndefinedError
from repdyn.store.state_cache import StateCache

IDENTITY = {"run": "run", "probe": "0123456789abcdef", "layers": ""}


class CompletedCache(StateCache):
    """A cache in which every step is complete after each saved layer."""

    def save(self, step, *args):
        super().save(step, *args)
        self.complete(step)


def states(
    seed: int = 0, shape: tuple[int, int] = (12, 5), dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def saved_files(folder):
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.name != "whole"
    )


def undefined_reason(
    state_cache: StateCache, step: int = 16, stack: str | None = None, layer: int = 1, like=None
) -> str:
    with pytest.raises(UndefinedError) as caught:
        state_cache.load_previous(step, stack, layer, states() if like is None else like)
    return caught.value.reason
