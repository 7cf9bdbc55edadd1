"""Capture: each layer's states of any model, at the sampled tokens and nowhere else.

Layer 0 is what enters the first block (the embedding output); layer l is the output of block l. The
last layer of every family is therefore the last block's output *before* a final normalisation, the
same residual stream as the layers below it. To measure the normalised output too, name its module
in ``layers``. Where a block carries several vectors for each token (the streams of
hyper-connections), a layer's vector is their concatenation; where it returns its branch and the
residual stream separately, for the next block to add, it is the first part alone. Each stack of an
encoder-decoder has its own layers, from 0 on.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from repdyn.capture.branches import find_branches
from repdyn.capture.heads import QueriesAndKeys
from repdyn.capture.model import Passes, RunnableModel
from repdyn.capture.states import STATES_BYTES, Buffers, CaptureKind, LayerStates, Recorder, States
from repdyn.capture.token_states import EmbeddingSearch
from repdyn.capture.wrappers import class_name
from repdyn.probe import Probe, ProbeBatch
from repdyn.probe.content import padded_batches
from repdyn.utils.caller_state import plain_state
from repdyn.utils.distributed import ALONE, Ranks

_SHORT = 64
"""Tokens of a trial: more cost more and show no more. Models that need a certain length get the
probe's.
"""


def no_progress(*_: object) -> None:
    """Ignore progress."""


@plain_state()
def capture(
    model: RunnableModel,
    probe: Probe,
    subsets: Sequence[str],
    *,
    captures: Collection[CaptureKind] = (),
    tokens_per_forward: int | None = None,
    states_bytes: int = STATES_BYTES,
    progress: Callable[[float], None] = no_progress,
    ranks: Ranks = ALONE,
) -> States:
    """Run the probe through the model once and keep the vectors that the subsets sample.

    A window without sampled tokens is not read, and one of a causal model not past its last sampled
    token. The model is left unchanged: training flags module by module, hooks, gradients, RNG
    state, and whatever it changes in itself when it runs.

    Args:
        model: made by :func:`repdyn.capture.trial.prepare`.
        probe: the tokens.
        subsets: whose samples to keep. Rows are ordered by the first one's sample, whose metric
            batches are thereby slices; tokens that only the others sample follow, then those of
            ``probe.whole_windows`` if captured.
        captures: what to capture in addition to each layer's own states, of
            :data:`repdyn.capture.states.CaptureKind`.
        tokens_per_forward: bounds the size of one forward pass; None for 2,048 tokens on a CPU,
            whose cache has room for their states, and 8,192 elsewhere.
        states_bytes: how much memory the states may take, all layers together, on the model's
            device; further layers are kept in the system's temporary folder (TMPDIR).
        progress: called after each forward pass with the share of the probe that has run.
        ranks: processes that hold the same model, or shards of it, and share the work: each runs
            its share of the probe, in the batches that one process would run, and gets the whole of
            every size-th layer.

    Raises:
        ValueError: the model's states depend on the content of the padding.
        RuntimeError: a block did not run, its output is not one vector for each token; or another
            rank failed.
        OSError: the temporary folder has too little space.
    """
    with ranks.sync_errors():
        if not model.causal and model.forward is None and probe.inputs is None:
            check_padding(model, probe)
    is_cut = model.is_causal is True and model.any_length
    key = (tuple(subsets), "whole_windows" in captures, tokens_per_forward, is_cut)
    passes_by_key = model.passes.setdefault(probe, {})
    if key not in passes_by_key:
        passes_by_key[key] = _passes(model, probe, *key)
    sampled, rows, batches = passes_by_key[key]
    first = next(probe.batches(1)) if "after_attention" in captures else None
    if ranks.size == 1:
        return record(model, batches, rows, states_bytes, captures, first, progress=progress)
    places = [rows_of_batches(ranks.shard(batches, rank), rows) for rank in range(ranks.size)]
    own_rows = np.full_like(rows, -1)
    own_rows[[sampled[row] for row in places[ranks.rank]]] = np.arange(len(places[ranks.rank]))
    with ranks.sync_errors():
        # A sharded model needs all ranks for every forward pass: a rank without a batch left runs
        # one for the others.
        share = [*ranks.shard(batches), batches[-1]][: -(-len(batches) // ranks.size)]
        parts = record(model, share, own_rows, states_bytes, captures, first, progress=progress)
    return exchange_layers(parts, rows, places, captures, Buffers(states_bytes), ranks)


def _passes(
    model: RunnableModel,
    probe: Probe,
    subsets: Sequence[str],
    whole_windows: bool,
    tokens_per_forward: int | None,
    is_cut: bool,
) -> Passes:
    """Return the forward passes of a probe, with the means over sequences that are sampled; those
    of a probe of inputs are given.

    ``is_cut`` says whether each window ends with its last sampled token.
    """
    of_windows = chain.from_iterable(probe.whole_windows if whole_windows else ())
    of_subsets = [probe.tokens_of(subset) for subset in subsets]
    numbers = np.concatenate([*of_subsets, *of_windows])
    sampled = np.array(list(dict.fromkeys(numbers.tolist())))
    rows = np.full(len(probe.tokens) + len(probe.lengths), -1)
    rows[sampled] = np.arange(len(sampled))
    if probe.inputs is not None:
        batches = list(probe.batches(1))
    else:
        needed = probe.tokens_needed(sampled, is_cut)
        n_tokens = tokens_per_forward or (2048 if model.device.type == "cpu" else 8192)
        batches = list(probe.batches(max(1, n_tokens // int(needed.max())), needed))
    if sampled.max(initial=-1) >= len(probe.tokens):
        batches = [
            replace(batch, means=probe.index_of_mean(_first_tokens(batch))) for batch in batches
        ]
    return Passes(sampled, rows, batches)


def rows_of_batches(batches: Iterable[ProbeBatch], rows: np.ndarray) -> np.ndarray:
    """Return the rows of the states that come from the tokens, or from means, of these batches,
    ascending.
    """
    none = np.array([], dtype=int)
    parts = [
        numbers_of_batch
        for batch in batches
        for numbers_of_batch in (batch.tokens, none if batch.means is None else batch.means)
    ]
    numbers = rows[np.concatenate([none, *parts])]
    is_selected = numbers >= 0
    return np.sort(numbers[is_selected])


def _first_tokens(batch: ProbeBatch) -> np.ndarray:
    """Return the index in the probe of the first token of each sequence of a batch."""
    is_first = batch.positions % batch.input_ids.shape[1] == 0
    return batch.tokens[is_first]


def exchange_layers(
    parts: States,
    rows: np.ndarray,
    places: Sequence[np.ndarray],
    captures: Collection[CaptureKind],
    buffers: Buffers,
    ranks: Ranks,
) -> States:
    """Turn every rank's rows of all layers into all rows of every size-th layer, and of those it is
    compared with.

    ``rows`` and ``places`` are the rows, in the whole states, of each token and of each rank.
    """
    whole = States([], rows, embeddings=parts.embeddings)
    failure = None

    def gather(states_of_rank: Tensor, owner: int) -> Tensor | None:
        nonlocal failure
        pieces = ranks.gather(states_of_rank, max(map(len, places)), owner=owner)
        if pieces is None or failure:
            return None
        try:
            states = buffers.new(sum(map(len, places)), states_of_rank)
            for piece, of_rank in zip(pieces, places, strict=True):
                states[torch.from_numpy(of_rank)] = piece[: len(of_rank)].to(states.device)
            return states
        except Exception as error:
            # too little memory or disk here: the others still wait for what this rank has
            failure = error

    for number in range(len(parts.layers)):
        layer = parts.layers.pop(0)
        owner = number % ranks.size
        gathered = _gathered(layer, partial(gather, owner=owner))
        if gathered is not None:
            whole.layers.append(gathered)
        # the ranks besides its owner that compare layers of their own with it: all, or that of the
        # layer before
        comparing = set(range(ranks.size)) if "last" in captures and layer.is_last else set()
        if "following" in captures and layer.index > 0:
            comparing.add((owner - 1) % ranks.size)
        for other in sorted(comparing - {owner}):
            states = gather(layer.states, other)
            if states is not None:
                whole.references.append(
                    replace(layer, states=states, after_attention=None, queries_and_keys=None)
                )
    with ranks.sync_errors():
        if failure:
            raise failure
    return whole


def _gathered(layer: LayerStates, gather: Callable[[Tensor], Tensor | None]) -> LayerStates | None:
    """Return a layer with the rows of all ranks, None on a rank that gets none; all ranks call."""
    states = gather(layer.states)
    after = layer.after_attention
    after = gather(after) if isinstance(after, Tensor) else after
    heads = layer.queries_and_keys
    if isinstance(heads, QueriesAndKeys):
        queries = gather(heads.queries)
        keys = gather(heads.keys)
        if queries is not None and keys is not None:
            heads = replace(heads, queries=queries, keys=keys)
    if states is None:
        return None
    return replace(layer, states=states, after_attention=after, queries_and_keys=heads)


@plain_state()
def causality(model: RunnableModel, probe: Probe) -> dict[str | None, bool | None]:
    """Return for each stack whether no position sees a later one; None where it is undecidable.

    The second part of a sequence is changed, and the states of its first part are compared. Each of
    several stacks is tried separately while the outputs of the others are frozen: the decoder of an
    encoder-decoder sees the change in its own input alone. A decoder whose positions see all of a
    prefix, later ones too, counts as causal where that prefix is shorter than half of the probe's
    longest sequence, or than 31 tokens. A probe of inputs states it.
    """
    if probe.inputs is not None:
        return {stack: probe.inputs.is_causal(stack) for stack in model.stacks}
    tokens = probe.tokens.split(probe.lengths.tolist())[int(probe.lengths.argmax())]
    tokens = tokens[: _SHORT if model.any_length else None]
    vocabulary = probe.tokens.unique()
    if len(vocabulary) == 1 or len(tokens) < 2:
        return dict.fromkeys(model.stacks)
    # odd: windows, chunks and blocks of attention do not end there
    split = (len(tokens) // 2 - 1) | 1
    others = vocabulary[(torch.searchsorted(vocabulary, tokens) + 1) % len(vocabulary)]
    changed = [
        torch.cat([tokens[:split], others[split:]]),
        torch.cat([others[:split], tokens[split:]]),
    ]
    is_causal_by_stack: dict[str | None, bool | None] = {}
    for stack in model.stacks:
        states = _try(model, tokens, changed, torch.ones_like(tokens), of_stack=stack)[stack]
        is_causal_by_stack[stack] = is_causal(states, split)
    return is_causal_by_stack


def is_causal(states: Tensor, split: int) -> bool | None:
    """Return whether no position sees a later one; None if undecidable.

    Args:
        states: (2, n_sequences, length, dim), the last layer's of a trial of two changes: of the
            tokens from a position on, and of those before it.
        split: that position.
    """
    if not bool(states.isfinite().all()):
        return None
    moved, rounding = _movement(states)
    by_later = moved[1, :split]
    by_earlier = moved[2, split:]
    if rounding > 0:  # those next to the change see it if any do
        by_later = by_later[-8:]
        by_earlier = by_earlier[:8]
    if _has_moved(by_later, states, rounding):
        return False
    # Blocks that are initialised as the identity let no position see any other.
    return True if _has_moved(by_earlier, states, rounding) else None


def check_padding(model: RunnableModel, probe: Probe) -> None:
    """Raise ValueError where the states of a padded sequence, the shortest, change with the tokens
    in its padding.
    """
    tokens = probe.tokens.split(probe.lengths.tolist())[int(probe.lengths.argmin())]
    padding = torch.full((int(probe.lengths.max()) - len(tokens),), probe.pad_id)
    padding = padding[: _SHORT if model.any_length else None]
    vocabulary = probe.tokens.unique()
    is_other = vocabulary != probe.pad_id
    others = vocabulary[is_other]
    if not len(padding) or not len(others):
        return
    changed = torch.cat([tokens, others[torch.arange(len(padding)) % len(others)]])
    now = torch.cat([tokens, padding])
    mask = (torch.arange(len(changed)) < len(tokens)).long()
    for states in _try(model, now, [changed], mask).values():
        moved, rounding = _movement(states)
        if _has_moved(moved[1], states, rounding):
            raise ValueError(
                "expected states that do not depend on the tokens in the padding, but those of "
                f"{class_name(model.module)} do: something in its forward pass ignores "
                "attention_mask (nonzero at tokens); use sequences of one length, as "
                "Probe.from_dataset(data, equal_lengths=True) cuts them, or run the model with "
                "forward=lambda model, batch: ..."
            )


def leaves_out_masked(model: RunnableModel, tokens: Tensor, every: Tensor) -> bool:
    """Return whether the states of a sequence stay finite and the same while tokens in its middle
    change that its mask leaves out; also True where there is one token alone, which shows nothing.

    Args:
        tokens: (length,) the sequence.
        every: the tokens of the probe.
    """
    vocabulary = every.unique()
    n = len(tokens) // 3
    if len(vocabulary) == 1 or not n:
        return True
    others = vocabulary[(torch.searchsorted(vocabulary, tokens) + 1) % len(vocabulary)]
    changed = torch.cat([tokens[:n], others[n : 2 * n], tokens[2 * n :]])
    mask = torch.ones_like(tokens)
    mask[n : 2 * n] = 0
    for states in _try(model, tokens, [changed], mask).values():
        moved, rounding = _movement(states)
        if not states.isfinite().all() or _has_moved(moved[1], states, rounding):
            return False
    return True


def _try(
    model: RunnableModel,
    now: Tensor,
    changed: Sequence[Tensor],
    mask: Tensor,
    *,
    of_stack: str | None = None,
) -> dict[str | None, Tensor]:
    """Return the last states of each stack, (2, n_sequences, n_tokens, dim), for a sequence and
    changed ones.

    They are those of two batches of one shape, so that equal inputs go through the same arithmetic.
    In the second, all sequences but the first and the last are changed. Where these are rounded
    differently all the same, they show by how much. Other stacks than ``of_stack`` give the same
    states for both, if it is not None.
    """
    n = len(changed) + 2
    controls = [now, now] if n == len(now) else [now]  # no batch is square
    masks = mask.repeat(n - 1 + len(controls), 1)
    positions = np.flatnonzero(masks.numpy())
    rows = np.arange(2 * len(positions)).reshape(2, -1)
    unchanged = [now for _ in changed]
    sequences = [torch.stack([now, *middle, *controls]) for middle in (unchanged, changed)]
    trial = [
        ProbeBatch(input_ids=ids, attention_mask=masks, positions=positions, tokens=numbers)
        for ids, numbers in zip(sequences, rows, strict=True)
    ]
    states = record(model, trial, rows.ravel(), only_changing=of_stack)
    last = {layer.stack: layer.states for layer in states.layers}
    return {
        stack: found.double().unflatten(0, (2, len(masks), -1)) for stack, found in last.items()
    }


def _movement(states: Tensor) -> tuple[Tensor, Tensor]:
    """Return how far each vector moved, (n_sequences, length), and how far it may by rounding
    alone.

    Tokens that are sorted into batches of their own, as experts do, are rounded differently when
    others change, and a few go to another expert.
    """
    moved = (states[1] - states[0]).abs().amax(dim=-1)
    return moved, 4 * moved[[0, -1]].mean(dim=1).max()


def _has_moved(moved: Tensor, states: Tensor, rounding: Tensor) -> bool:
    """Return whether vectors moved: any one of them, or half of them where one alone may be an
    accident.
    """
    least = torch.maximum(rounding, 1e-7 * states[0].square().mean().sqrt())
    return bool((moved.median() if rounding > 0 else moved.max()) > least)


def record(
    model: RunnableModel,
    batches: Sequence[ProbeBatch],
    rows: np.ndarray,
    states_bytes: int = STATES_BYTES,
    captures: Collection[CaptureKind] = (),
    first: ProbeBatch | None = None,
    *,
    only_changing: str | None = None,
    progress: Callable[[float], None] = no_progress,
) -> States:
    """Run batches through the model and return the recorded states.

    Args:
        rows: (n_tokens,) the row of each token in the states, -1 where it is not sampled.
        first: one sequence, on which to learn where each block adds its attention's output, if that
            is captured.
        only_changing: the stack whose states may change from the first batch to the second; None
            for all.
    """
    # what the blocks of other stacks put out for the first batch, and again for the next
    frozen: deque[Any] = deque()
    number = 0

    def freeze(_module: nn.Module, _args: Any, output: Any) -> Any:
        if number > 0:
            return frozen.popleft()
        frozen.append(output)
        return None

    branches = None if first is None else find_branches(model, first)
    with model.evaluating() as run, ExitStack() as hooks:
        recorder = Recorder(
            run.model,
            rows,
            Buffers(states_bytes),
            branches=branches,
            with_heads="queries_and_keys" in captures,
        )
        search = (
            EmbeddingSearch(run.model.module, len(model.stacks))
            if "embeddings" in captures
            else None
        )
        for block in run.model.blocks if only_changing is not None else ():
            if block.stack != only_changing:
                hooks.enter_context(block.module.register_forward_hook(freeze))
        for number, batch in enumerate(batches):
            with recorder.recording(batch), search.during(batch) if search else nullcontext():
                run(batch)
            run.guard.rest()
            progress((number + 1) / len(batches))
    found = recorder.states(run.guard.autocast)
    return replace(found, embeddings=search.table()) if search else found


@plain_state()
def try_model(model: RunnableModel, probe: Probe) -> None:
    """Run a model on up to three windows of a probe that ask most of it; errors as for
    :func:`capture`.
    """
    if probe.inputs is not None:
        batch = next(probe.batches(1))
    else:  # the longest, that of the largest id, and the shortest
        windows = probe.tokens.split(probe.lengths.tolist())
        largest = int(probe.window_of(probe.tokens.argmax().numpy()))
        numbers = [int(probe.lengths.argmax()), largest, int(probe.lengths.argmin())]
        chosen = [windows[number] for number in dict.fromkeys(numbers)]
        lengths = torch.tensor([len(window) for window in chosen])
        batch = next(padded_batches(torch.cat(chosen), lengths, probe.pad_id, len(chosen)))
    record(model, [batch], np.arange(len(batch.tokens)))
