"""The states of the sampled tokens in all layers, recorded as the blocks of a model run.

They are in memory up to a limit and in temporary files beyond it. A tensor in a file is read and
written like any other; the system keeps as much of it in RAM as it can. The file has no name: its
space is freed with the tensor's last view, or with the process, however it ends.
"""

import errno
import mmap
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from tempfile import TemporaryFile, gettempdir
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from repdyn.capture.blocks import Block, silent_blocks
from repdyn.capture.heads import QueriesAndKeys, QueriesAndKeysRecorder
from repdyn.capture.model import RunnableModel
from repdyn.capture.streams import SUM
from repdyn.capture.token_states import Slot, exact_device, watched
from repdyn.probe import ProbeBatch

STATES_BYTES = 2 << 30

CaptureKind: TypeAlias = Literal[
    "following",
    "last",
    "after_attention",
    "attention_weights",
    "queries_and_keys",
    "embeddings",
    "output_head",
    "previous_checkpoint",
    "weights",
    "gradients",
    "weights_before",
    "whole_windows",
]
"""What can be captured in addition to a layer's own states: the next and the last layer's, the
states between a block's attention and its feed-forward part, attention weights, the queries and
keys that the attention compares, the input embeddings, the output head; the states of the previous
checkpoint; the weights of the blocks, at a step of a live training their gradients, and what they
were before it; all tokens of some windows of the probe."""


@dataclass(frozen=True)
class LayerStates:
    """One layer's vectors of the sampled tokens."""

    index: int
    depth: float
    module: str
    states: Tensor
    """(n_sampled, dim), on ``device`` or in a file, rows as in ``States.rows_of``."""
    device: torch.device
    """Where the model had them; the CPU where that device has no float64."""
    stack: str | None = None
    """Name of the stack it belongs to, in a model that has several."""
    after_attention: Tensor | str | None = None
    """(n_sampled, dim) the block's input plus its attention's output, or why there is none; None
    where it was not captured."""
    queries_and_keys: QueriesAndKeys | str | None = None
    """What the block's attention compares, or why it is not known; None where it was not captured.
    """
    precision: str = ""
    """The precision in which the states were computed, such as "float32", or "bfloat16 autocast"
    where the model's own forward pass entered it."""

    @property
    def is_last(self) -> bool:
        """Return whether it is the last layer of its stack."""
        return self.depth == 1.0


@dataclass(frozen=True)
class States:
    """The layers' vectors of the sampled tokens, from one pass over the probe."""

    layers: list[LayerStates]
    """Those that have not been taken yet."""
    rows: np.ndarray
    """(n_tokens,) each token's row in the states of every layer, -1 where it is not sampled."""
    references: list[LayerStates] = field(default_factory=list)
    """Layers that other ranks measure and that layers of this rank are compared with."""
    embeddings: Tensor | str = "the input embeddings were not captured"
    """(vocabulary, dim) the model's input embedding; or why it is not known."""
    taken: list[int] = field(default_factory=list, repr=False)
    """Indices of the layers that were taken, which are freed."""

    def __iter__(self) -> Iterator[LayerStates]:
        """Take one layer after the other; raise ValueError where all of them were taken before."""
        # a second loop would find nothing, and say nothing
        if self.taken and not self.layers:
            raise ValueError(
                "expected states that were not read before, got those whose layers were all taken, "
                "and so freed; keep them, layers = list(states), or call layer_states again"
            )
        while self.layers:
            yield self.take()

    def take(self) -> LayerStates:
        """Remove and return the next layer, its states on its device."""
        layer = self.layers.pop(0)
        self.taken.append(layer.index)
        self.references[:] = [
            other
            for other in self.references
            if other.is_last or other.stack != layer.stack or other.index > layer.index
        ]
        return replace(layer, states=layer.states.to(layer.device))

    def following(self, layer: LayerStates) -> Tensor:
        """Return the states of the layer after one that was taken, (n_sampled, dim), on
        any device.
        """
        return self._of(layer.stack, lambda other: other.index == layer.index + 1)

    def last(self, layer: LayerStates) -> Tensor:
        """Return the states of the last layer in the stack of one that was taken, which must not be
        the last itself.
        """
        return self._of(layer.stack, lambda other: other.is_last)

    def _of(self, stack: str | None, matches: Callable[[LayerStates], bool]) -> Tensor:
        return next(
            other.states
            for other in (*self.layers, *self.references)
            if other.stack == stack and matches(other)
        )

    def rows_of(self, tokens: np.ndarray) -> slice | Tensor:
        """Return the rows of the given tokens in each layer's states, as a slice (a view, no copy)
        where possible.
        """
        rows = self.rows[tokens]
        if (rows < 0).any():
            raise ValueError(
                f"expected tokens that were sampled, got {(rows < 0).sum()} of {len(rows)} that "
                "were not; name their subset in capture(..., subsets)"
            )
        return (
            slice(rows[0], rows[-1] + 1) if (np.diff(rows) == 1).all() else torch.from_numpy(rows)
        )


@dataclass
class Buffers:
    """An allocator of buffers: they take memory while bytes are ``left`` of it; further ones are in
    files.
    """

    left: int

    def new(self, n_rows: int, like: Tensor) -> Tensor:
        """Return (n_rows, dim), uninitialised: dim and dtype of ``like`` (any, dim), in memory or
        in a file.
        """
        n_bytes = n_rows * like.shape[1] * like.itemsize
        if n_bytes <= self.left:
            self.left -= n_bytes
            return like.new_empty(n_rows, like.shape[1], device=exact_device(like.device))
        with TemporaryFile(prefix="repdyn-states-") as file:
            try:
                _reserve(file.fileno(), n_bytes)
            except OSError as error:
                file.truncate(0)  # frees what was reserved
                free = shutil.disk_usage(gettempdir()).free
                raise OSError(
                    f"expected {n_bytes / 1e9:.1f} GB of free space in {gettempdir()} for the "
                    f"states of each layer beyond states_bytes, got {free / 1e9:.1f} GB "
                    f"({error.strerror}); set TMPDIR to a folder with more, take a probe of fewer "
                    "vectors, or raise states_bytes"
                ) from error
            mapped = mmap.mmap(file.fileno(), n_bytes)
        return torch.frombuffer(mapped, dtype=like.dtype).view(n_rows, like.shape[1])


def _reserve(file: int, n_bytes: int) -> None:
    """Reserve a file's space on the disk: a disk found full on writing would kill the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, n_bytes)
    elif shutil.disk_usage(gettempdir()).free < n_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    else:
        os.truncate(file, n_bytes)


LayerKey: TypeAlias = tuple[str | None, int]
"""A stack and a layer."""


@dataclass(frozen=True)
class Branch:
    """The attention's output that a block adds to its input."""

    module: str
    """The name of the module that returns it."""
    slot: Slot
    """Which part of the module's output it is."""
    call: int
    """Which of the module's calls within the block, from 0 on."""
    dtype: torch.dtype
    """Data type of the sum."""
    scale: float = 1.0
    """The factor by which the block multiplies it."""


Branches: TypeAlias = Mapping[LayerKey, Branch | str]
"""By stack and layer: the branch, or the reason why there is none."""


class Recorder:
    """Copies the inputs of the first block and the outputs of every block, stack by stack, as the
    blocks run.

    Blocks may take and return more than the states. The states are what one block returns and the
    next takes, as the model's first pass has shown; else the first part with one vector for each
    token.

    Sums of a block's input and its attention's branch are recorded beside them. A branch is written
    straight to its rows of the buffer, and the block's input is added when the batch has passed:
    only then are the states of the previous layer identified. So no whole batch is held in memory.

    Args:
        rows: (n_tokens,) the row of each token in the layers' buffers, -1 where it is not sampled;
            with those of means over sequences behind them, for batches that have ``means``.
        branches: of the layers whose states after the attention are recorded.
        with_heads: whether the queries and keys of each block's attention are recorded.
    """

    def __init__(
        self,
        model: RunnableModel,
        rows: np.ndarray,
        buffers: Buffers,
        branches: Branches | None = None,
        *,
        with_heads: bool = False,
    ) -> None:
        self._model = model
        self._rows = rows
        self._n_rows = int(rows.max()) + 1
        self._buffers = buffers
        self.token_states = model.token_states()
        self._stacks = {block.stack: _Stack() for block in model.blocks}
        # of the batch that runs now; set anew by recording()
        self._target = torch.empty(0, dtype=torch.int64)
        """The rows of the buffers that the batch fills: of its sampled tokens, then of means."""
        self._source = torch.empty(0, dtype=torch.int64)
        """The positions of the sampled tokens in the batch."""
        self._averaged = torch.empty(0, dtype=torch.int64)
        """The numbers of the batch's sequences whose means are recorded."""
        self._calls: Counter[tuple[LayerKey, str]] = Counter()
        """How often each module has run within a block."""
        self._branches = {
            key: branch for key, branch in (branches or {}).items() if isinstance(branch, Branch)
        }
        self._after_attention: dict[LayerKey, Tensor | str] = {
            key: reason for key, reason in (branches or {}).items() if isinstance(reason, str)
        }
        self._heads = None
        if with_heads:
            self._heads = QueriesAndKeysRecorder(
                rows_of=self.token_states.rows_of,
                select=self._select,
                new_buffer=partial(buffers.new, self._n_rows),
            )

    @contextmanager
    def recording(self, batch: ProbeBatch) -> Iterator[None]:
        """Record a batch, which runs inside.

        Raises:
            RuntimeError: a block did not run, or they ran in another order than for the first
                batch.
        """
        rows = self._rows[batch.tokens]
        mean_rows = (
            np.empty(0, dtype=rows.dtype) if batch.means is None else self._rows[batch.means]
        )
        is_selected = rows >= 0
        has_mean = mean_rows >= 0
        self._target = torch.from_numpy(np.concatenate([rows[is_selected], mean_rows[has_mean]]))
        # of a batch without samples all tokens are looked at, to learn which part of an output has
        # the states; none is recorded
        self._source = torch.from_numpy(
            batch.positions[is_selected] if len(self._target) else batch.positions
        )
        self._averaged = torch.from_numpy(np.flatnonzero(has_mean))
        self.token_states.batch = batch
        for stack in self._stacks.values():
            stack.calls = []
            stack.n_entered = 0
        self._calls.clear()
        branching = {
            Block(branch.module, self._model.module.get_submodule(branch.module), stack)
            for (stack, _), branch in self._branches.items()
        }
        with (
            watched(self._model.blocks, self._enter, self._leave),
            watched(branching, leave=self._keep_branch),
            self._heads.begin(self._target) if self._heads else nullcontext(),
        ):
            yield
        self._check_calls()
        for (name, layer), branch in self._branches.items():
            before = self._stacks[name].layers[layer - 1].states[self._target].to(branch.dtype)
            states = self._sums((name, layer), before)
            states[self._target] += before.to(states)

    def _check_calls(self) -> None:
        """Raise RuntimeError where a block did not run, or the blocks ran in another order."""
        called = {name for stack in self._stacks.values() for name in stack.calls}
        if {block.name for block in self._model.blocks} - called:
            raise RuntimeError(silent_blocks(self._model.module, self._model.blocks, called))
        for stack in self._stacks.values():
            stack.order = stack.order or stack.calls
            if stack.calls != stack.order:
                now, before = next(
                    pair for pair in zip_longest(stack.calls, stack.order) if pair[0] != pair[1]
                )
                raise RuntimeError(
                    "expected the same blocks to run in the same order for every batch, got "
                    f"{now!r} where the first batch had {before!r}; name the blocks that always "
                    "run with layers="
                )

    def states(self, autocast: torch.dtype | None = None) -> States:
        """Return what was recorded; ``autocast`` is the precision that the model's own forward pass
        entered.
        """
        layers = []
        for name, stack in self._stacks.items():
            for index, recorded in stack.layers.items():
                dtype = recorded.states.dtype
                precision = f"{dtype}" if autocast in {None, dtype} else f"{autocast} autocast"
                layer = LayerStates(
                    index=index,
                    depth=index / (len(stack.layers) - 1),
                    module=recorded.module,
                    states=recorded.states,
                    device=recorded.device,
                    stack=name,
                    after_attention=self._after_attention.get((name, index)),
                    queries_and_keys=self._heads.of(name, index) if self._heads else None,
                    precision=precision.removeprefix("torch."),
                )
                layers.append(layer)
        return States(layers, self._rows)

    def _enter(self, block: Block, taken: Mapping[Slot, Any]) -> None:
        stack = self._stacks[block.stack]
        stack.n_entered += 1
        if stack.n_entered == 1:
            self._keep(block, 0, taken)
        if self._heads:
            self._heads.enter((block.stack, stack.n_entered))

    def _leave(self, block: Block, returned: Mapping[Slot, Any]) -> None:
        if self._heads:
            self._heads.leave()
        calls = self._stacks[block.stack].calls
        calls.append(block.name)
        if block.stack in self._model.sums:
            one, other = self._model.sums[block.stack]
            returned = {SUM: returned[one] + returned[other], **returned}
        self._keep(block, len(calls), returned)

    def _keep(self, block: Block, layer: int, parts: Mapping[Slot, Any]) -> None:
        """Keep a layer's states."""
        stack = self._stacks[block.stack]
        self.token_states.stack = block.stack
        is_known = layer in stack.layers
        # a block that runs more often than in the first batch: _check_calls raises after the batch
        if not is_known and stack.order is not None:
            return
        candidates = {stack.slots[layer]: parts.get(stack.slots[layer])} if is_known else parts
        rows_by_slot = self.token_states.rows_by_slot(candidates)
        if not rows_by_slot:
            raise RuntimeError(self.token_states.explain_mismatch(block.name, parts))
        if not is_known:
            taken, returned = self._model.slots.get(block.stack, (None, None))
            linked = returned if layer > 0 else taken
            linked = SUM if SUM in rows_by_slot else linked
            stack.slots[layer] = linked if linked in rows_by_slot else next(iter(rows_by_slot))
        states = self._select(rows_by_slot[stack.slots[layer]])
        if not is_known:
            stack.layers[layer] = _RecordedLayer(
                module=block.name,
                states=self._buffers.new(self._n_rows, states),
                device=exact_device(states.device),
            )
        buffer = stack.layers[layer].states
        buffer[self._target] = states[: len(self._target)].to(buffer)

    def _keep_branch(self, branch_part: Block, returned: Mapping[Slot, Any]) -> None:
        """Keep the sampled rows of the attention's output that a block is about to add."""
        name = branch_part.name
        stack = branch_part.stack
        key = stack, self._stacks[stack].n_entered
        branch = self._branches.get(key)
        self._calls[key, name] += 1
        if branch is None or (branch.module, branch.call) != (name, self._calls[key, name] - 1):
            return
        for rows in self.token_states.rows_by_slot(
            {branch.slot: returned.get(branch.slot)}
        ).values():
            sampled = self._select(rows)[: len(self._target)]
            sampled = sampled if branch.scale == 1 else sampled * branch.scale
            states = self._sums(key, sampled.to(branch.dtype))
            states[self._target] = sampled.to(states)

    def _sums(self, key: LayerKey, like: Tensor) -> Tensor:
        """Return the buffer of a layer's sums, which are NaN where no attention is recorded."""
        states = self._after_attention.get(key)
        if not isinstance(states, Tensor):
            states = self._buffers.new(self._n_rows, like).fill_(torch.nan)
            self._after_attention[key] = states
        return states

    def _select(self, rows: Tensor) -> Tensor:
        """Return the sampled rows of (n_sequences * length, dim), then the means over sequences
        that are kept.
        """
        sampled = rows[self._source.to(rows.device)]
        if not len(self._averaged):
            return sampled
        mask = self.token_states.batch.attention_mask != 0
        states = rows.unflatten(0, mask.shape)[self._averaged.to(rows.device)]
        mask = mask[self._averaged].unsqueeze(-1).to(rows.device)
        # in float32 at least, and without the padding, whose states may be anything
        total = states.to(torch.promote_types(rows.dtype, torch.float32)).where(mask, 0).sum(1)
        return torch.cat([sampled, (total / mask.sum(1)).to(rows.dtype)])


@dataclass(frozen=True)
class _RecordedLayer:
    """The states of one layer."""

    module: str
    """The name of the block that they enter (layer 0) or leave."""
    states: Tensor
    """(n_rows, dim): the buffer that the batches fill."""
    device: torch.device
    """The device that the block ran on, which need not be that of the buffer."""


@dataclass
class _Stack:
    """The layers recorded of one stack, and what was learned from its first batch."""

    layers: dict[int, _RecordedLayer] = field(default_factory=dict)
    slots: dict[int, Slot] = field(default_factory=dict)
    """The part of a block's arguments or output that has the states, by layer."""
    order: list[str] | None = None
    """Names of the blocks in the order in which the first batch ran them."""
    calls: list[str] = field(default_factory=list)
    n_entered: int = 0
    """How many blocks the current batch has entered."""
