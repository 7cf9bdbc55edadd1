"""Token states: which tensors in a forward pass hold one vector for each token of a batch, and the
hooks that see them.

Models that put learned vectors among the tokens (meta tokens, a tuned prompt, registers) pass more
positions through their blocks than there are tokens: they are measured on a probe of inputs, which
says what positions count.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import is_dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from repdyn.capture.blocks import Block
from repdyn.capture.wrappers import class_name, is_a
from repdyn.probe import ProbeBatch

Slot: TypeAlias = int | str | tuple
"""Position or name of states among a block's arguments or outputs, or a pair of these inside one of
them.
"""

Watched = TypeVar("Watched", Block, nn.Module)

NONE_FOUND = "no nn.Embedding of the model is given the token ids"
NOT_IN_MEMORY = "the weights of the input embedding are not in this process's memory"
SEVERAL = "the stacks have input embeddings of their own, and which is whose is not known"
NOT_A_TABLE = "the input embedding is not stored as one row of numbers for each token"


class TokenStates:
    """A search for the states of a batch's tokens among the tensors of a forward pass, in any
    layout.

    Args:
        pads_right: whether the model itself pads sequences on the right.
    """

    def __init__(self, *, pads_right: bool = False) -> None:
        self._pads_right = pads_right
        self.stack: str | None = None
        """The stack whose block runs."""
        self.batch: ProbeBatch
        """The batch that runs."""

    def rows_of(self, states: Tensor) -> Tensor | None:
        """Return states as rows (n_sequences * length, dim), several streams of one token end to
        end.

        None where they are not one or more vectors for each token.
        """
        n_sequences, length = self.batch.input_ids.shape
        if states.ndim == 3 and states.shape[:2] == (length, n_sequences):
            states = states.transpose(0, 1)
        elif states.ndim == 4 and states.shape[1:3] == (n_sequences, length):  # streams first
            states = states.permute(1, 2, 0, 3)
        elif self._pads_right and states.ndim == 3:
            states = states[:, :length]
        is_found = states.ndim in {3, 4} and states.shape[:2] == (n_sequences, length)
        return states.flatten(2).flatten(0, 1) if is_found else None

    def rows_by_slot(self, parts: Mapping[Slot, Any], *, flat: bool = False) -> dict[Slot, Tensor]:
        """Return the parts of a call that are states of the batch, as rows; if ``flat`` also those
        that already are.
        """
        rows_of_slots = {}
        for slot, value in parts.items():
            if not isinstance(value, Tensor) or not value.is_floating_point():
                continue
            if flat and value.ndim == 2 and len(value) == self.batch.input_ids.numel():
                rows = value
            else:
                rows = self.rows_of(value)
            if rows is not None:
                rows_of_slots[slot] = rows
        return rows_of_slots

    def explain_mismatch(self, name: str, parts: Mapping[Any, Any]) -> str:
        """Return an error text: that no part of a block's input or output is states, what came, and
        what to do.
        """
        tensors = [value for value in parts.values() if isinstance(value, Tensor)]
        shapes = [f"{tuple(tensor.shape)} of {tensor.dtype}" for tensor in tensors]
        received = (
            ", ".join(shapes or (type(value).__name__ for value in parts.values())) or "nothing"
        )
        n_sequences, length = self.batch.input_ids.shape
        text = (
            f"expected states of shape ({n_sequences}, {length}, dim) at {name!r}, got {received}"
        )
        candidates = [
            x.shape
            for x in tensors
            if x.is_floating_point() and x.ndim == 3 and n_sequences in x.shape[:2]
        ]
        n_more = max(
            (shape[1 if shape[0] == n_sequences else 0] - length for shape in candidates), default=0
        )
        learned = (
            f"where the model puts {n_more} learned vectors before the {length} tokens, measure it "
            f"without them, or on Probe.from_inputs(batches, positions=slice({n_more}, None)); "
            "else "
        )
        advice = "name blocks that pass one vector for each token with layers="
        return f"{text}; {learned if n_more > 0 else ''}{advice}"


def by_slot(value: Any, *, open_parts: bool = True) -> Mapping[Any, Any]:
    """Return a module's output by position or name, as its arguments; where no part is a tensor,
    what is in them.
    """
    if is_dataclass(value) and not isinstance(value, Mapping):
        value = vars(value)
    elif not isinstance(value, Mapping):
        value = dict(enumerate(value if isinstance(value, tuple | list) else [value]))
    if not open_parts or any(isinstance(nested, Tensor) for nested in value.values()):
        return value
    return {
        (slot, name): x
        for slot, nested in value.items()
        for name, x in by_slot(nested, open_parts=False).items()
    }


@contextmanager
def watched(
    modules: Iterable[Watched],
    enter: Callable[[Watched, Mapping[Slot, Any]], None] | None = None,
    leave: Callable[[Watched, Mapping[Slot, Any]], None] | None = None,
) -> Iterator[None]:
    """Call ``enter(module, taken)`` before and ``leave(module, returned)`` after each call of
    modules or of blocks.
    """
    with ExitStack() as hooks:
        for watched_module in modules:
            is_block = isinstance(watched_module, Block)
            module = watched_module.module if is_block else watched_module
            if enter:
                before = partial(_tell_taken, enter, watched_module)
                hooks.enter_context(module.register_forward_pre_hook(before, with_kwargs=True))
            if leave:
                after = partial(_tell_returned, leave, watched_module)
                hooks.enter_context(module.register_forward_hook(after))
        yield


def _tell_taken(
    enter: Callable[[Watched, Mapping[Slot, Any]], None],
    watched_module: Watched,
    _module: nn.Module,
    args: tuple,
    kwargs: dict,
) -> None:
    enter(watched_module, by_slot(dict(enumerate(args)) | kwargs))


def _tell_returned(
    leave: Callable[[Watched, Mapping[Slot, Any]], None],
    watched_module: Watched,
    _module: nn.Module,
    _args: tuple,
    output: Any,
) -> None:
    leave(watched_module, by_slot(output))


class EmbeddingSearch:
    """A search for the input embedding: the ``nn.Embedding`` that is called with exactly the tokens
    of a batch.

    Several stacks may have several. One that does not know the token id ``largest`` is an error
    before it runs.
    """

    def __init__(self, model: nn.Module, n_stacks: int = 1, *, largest: int = -1) -> None:
        self._name = class_name(model)
        self._several_stacks = n_stacks > 1
        self._largest = largest
        self._candidates = [
            module for module in model.modules() if isinstance(module, nn.Embedding)
        ]
        self._found: Any = None
        self._several = False

    def during(self, batch: ProbeBatch) -> AbstractContextManager[None]:
        """Search while a batch runs inside."""
        self._ids = batch.input_ids
        return watched(self._candidates, self._enter)

    def table(self) -> Tensor | str:
        """Return the rows, (vocabulary, dim), without gradient or copy, but from a GPU of Apple; or
        why there are none.

        Shards of FSDP2 are gathered, so all ranks must call.
        """
        if self._found is None or self._several:
            return SEVERAL if self._several else NONE_FOUND
        weight = self._found.weight.detach()
        if is_a(weight, "torch.DTensor"):
            weight = weight.full_tensor()
        # accelerate loads weights when they are needed, FSDP1 keeps flat pieces
        is_whole = weight.device.type != "meta" and weight.ndim > 1
        is_whole = (
            is_whole and weight.untyped_storage().nbytes() >= weight.numel() * weight.itemsize
        )
        if weight.is_floating_point() and not is_whole:
            return NOT_IN_MEMORY
        is_table = weight.ndim == 2 and weight.is_floating_point()
        return weight.to(exact_device(weight.device)) if is_table else NOT_A_TABLE

    def _enter(self, module: Any, taken: Mapping[Slot, Any]) -> None:
        if self._found is not None and not self._several_stacks:
            return
        matrices = [x for x in taken.values() if isinstance(x, Tensor) and x.ndim == 2]
        # BART's position embedding gets the ids too, for their shape
        is_of_positions = "position" in type(module).__name__.lower()
        if any(
            ids.shape == self._ids.shape and torch.equal(ids.to(self._ids), self._ids)
            for x in matrices
            for ids in (x, x.mT)
        ):
            if self._largest >= module.num_embeddings and not is_of_positions:
                raise ValueError(
                    f"expected token ids below {module.num_embeddings}, the vocabulary of "
                    f"{self._name}, got a probe whose ids go up to {self._largest}; make the probe "
                    "with the model's own tokenizer"
                )
            self._found = self._found or module
            self._several |= module.weight is not self._found.weight and not is_of_positions


def exact_device(device: torch.device) -> torch.device:
    """Return a device itself, or the CPU for one without float64: Apple's GPUs."""
    return torch.device("cpu") if device.type == "mps" else device


def widened(tensor: Tensor) -> Tensor:
    """Return a tensor in float64, on its device or on the CPU."""
    return tensor.to(exact_device(tensor.device)).double()


def are_equal(states: Tensor, others: Tensor) -> bool:
    """Return whether two tensors have the same values, perhaps on two devices."""
    return states.shape == others.shape and bool((states == others.to(states)).all())


def are_same_states(states: Tensor, others: Tensor) -> bool:
    """Return whether two tensors are the same states, up to device, precision and one
    scale factor.
    """
    if states.shape != others.shape:
        return False
    states = states.to(others)
    if torch.allclose(states, others, rtol=0, atol=0, equal_nan=True):
        return True
    finite = states.isfinite() & others.isfinite()
    wide = widened(states[finite])
    wide_others = widened(others[finite])
    # RWKV halves its states every few blocks against overflow
    scale = (wide * wide_others).sum() / wide.square().sum()
    rounding = 2 * torch.finfo(others.dtype).eps
    return bool(scale != 0) and torch.allclose(scale * wide, wide_others, rtol=rounding, atol=0)
