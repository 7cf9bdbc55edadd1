"""The input embedding of any model: the ``nn.Embedding`` that is called with exactly the tokens of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from repdyn.capture.library_classes import is_dtensor
from repdyn.probe import ProbeBatch

NONE_FOUND = "no nn.Embedding of the model is given the token ids"
NOT_IN_MEMORY = "the weights of the input embedding are not in this process's memory"
SEVERAL = "the stacks have input embeddings of their own, and which is whose is not known"
NOT_A_TABLE = "the input embedding is not stored as one row of numbers for each token"


class EmbeddingSearch:
    """Hooks on every ``nn.Embedding`` of a model that find the first one called with the ``input_ids`` of a batch.

    Args:
        model: the model without wrappers.
        n_stacks: stacks of blocks in the model; several may have several embeddings.
        check: called with each that is found, before it runs.
    """

    def __init__(
        self, model: nn.Module, n_stacks: int = 1, *, check: Callable[[nn.Embedding], None] | None = None
    ) -> None:
        self._several_stacks = n_stacks > 1
        self._check = check
        self._several = False
        self._candidates = [module for module in model.modules() if isinstance(module, nn.Embedding)]
        self._ids: Tensor | None = None
        self.found: nn.Embedding | None = None

    @contextmanager
    def attached(self) -> Iterator[None]:
        with ExitStack() as hooks:
            for module in self._candidates:
                hooks.enter_context(module.register_forward_pre_hook(self._enter, prepend=True, with_kwargs=True))
            yield

    @contextmanager
    def watching(self, batch: ProbeBatch) -> Iterator[None]:
        """Compare with the tokens of one batch, which runs inside."""
        self._ids = batch.input_ids
        yield
        self._ids = None

    def table(self) -> Tensor | str:
        """Return the rows, (vocabulary, dim), without copy or gradient; or why there are none.

        Shards of FSDP2 are gathered, so all ranks must call.
        """
        if self.found is None:
            return NONE_FOUND
        if self._several:
            return SEVERAL
        weight = self.found.weight.detach()
        if is_dtensor(weight):
            weight = weight.full_tensor()
        if weight.is_floating_point() and not _is_in_memory(weight):
            return NOT_IN_MEMORY
        return weight if weight.ndim == 2 and weight.is_floating_point() else NOT_A_TABLE

    def _enter(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        wanted = self.found is None or self._several_stacks
        if wanted and isinstance(module, nn.Embedding) and self._ids is not None:
            tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
            if any(_same(ids, self._ids) or _same(ids.mT, self._ids) for ids in tensors if ids.ndim == 2):
                # BART's position embedding gets the ids too, for their shape
                is_of_positions = "position" in type(module).__name__.lower()
                if self._check is not None and not is_of_positions:
                    self._check(module)
                self.found = module if self.found is None else self.found
                self._several |= module.weight is not self.found.weight and not is_of_positions


def _is_in_memory(weight: Tensor) -> bool:
    """Return whether it is whole: accelerate loads weights when they are needed, FSDP1 keeps flat pieces."""
    if weight.device.type == "meta" or weight.ndim == 1:
        return False
    return weight.untyped_storage().nbytes() >= weight.numel() * weight.itemsize


def _same(ids: Tensor, others: Tensor) -> bool:
    return ids.shape == others.shape and torch.equal(ids.to(others), others)
