"""Capture: each layer's states of any model, at the sampled tokens and nowhere else.

Layer 0 is what enters the first block (the embedding output); layer l is what block l puts out. For every family
alike the last layer is therefore the last block's output *before* a final normalisation, the same residual stream
as the layers below it. To measure the normalised output too, name its module in ``layers``. Where a block carries
several vectors for each token (the streams of hyper-connections), a layer's vector is all of them, end to end. Each
stack of an encoder-decoder has its own layers, from 0 on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from repdyn.layers.blocks import Layers, find_blocks, listing, unwrapped
from repdyn.layers.forward import (
    Forward,
    call_with_tokens,
    device_of,
    held,
    pads_right,
    refuse_prompts,
    smallest_with,
    undisturbed,
)
from repdyn.layers.recorder import Recorder
from repdyn.layers.sharding import through
from repdyn.layers.states import STATES_BYTES, Buffers, States
from repdyn.probe import Probe, ProbeBatch
from repdyn.ranks import ALONE, Ranks


def capture(
    model: nn.Module,
    probe: Probe,
    subsets: Sequence[str],
    layers: Layers = None,
    *,
    forward: Forward | None = None,
    tokens_per_forward: int = 8192,
    states_bytes: int = STATES_BYTES,
    progress: Callable[[float], None] | None = None,
    within: nn.Module | None = None,
    ranks: Ranks = ALONE,
) -> States:
    """Run the probe through the model once and keep the vectors that the subsets sample.

    The model is left as it was found: training flags module by module, hooks, gradients, RNG state, and what it changes
    of itself when it runs.

    Args:
        model: a Hugging Face model or any module built of a list of blocks.
        probe: the tokens.
        subsets: whose samples to keep. Rows stand in the order of the first one's sample, whose metric batches are
            thereby slices; what only the others sample follows.
        layers: name pattern of the blocks, ``*`` standing for one part of a dotted name ("model.layers.*"), or
            several; patterns by name of the stack where there are several stacks; None finds them. See
            :func:`repdyn.layers.blocks.find_blocks`.
        forward: ``forward(model, batch)`` runs the model on a :class:`repdyn.probe.ProbeBatch`; None calls it with
            ``input_ids`` and, where it takes one, ``attention_mask``; see
            :func:`repdyn.layers.forward.call_with_tokens`.
        tokens_per_forward: bounds the size of one forward pass.
        states_bytes: how much the states may take in memory, all layers together, on the model's device; layers beyond
            wait in the system's temporary folder (TMPDIR).
        progress: called after each forward pass with the share of the probe that has run.
        within: what the model is a part of, where that is sharded as a whole; None for the model itself.
        ranks: processes that hold the same model, or shards of it, and share the work: each runs its share of the
            probe, in the batches that one process would run, and is given the whole of every size-th layer.

    Raises:
        ValueError: the blocks cannot be told; the message lists the candidates.
        RuntimeError: a block did not run, or its output is not one vector for each token; or another rank failed.
        OSError: the temporary folder has too little space.
    """
    sampled = list(dict.fromkeys(np.concatenate([probe.sample(subset).ravel() for subset in subsets]).tolist()))
    rows = np.full(len(probe.tokens), -1)
    rows[sampled] = np.arange(len(sampled))
    batches = list(probe.batches(max(1, tokens_per_forward // int(probe.lengths.max()))))
    if ranks.size == 1:
        return _run(model, _watched(batches, progress), rows, layers, forward, states_bytes, within)
    places = [_rows_in(ranks.deal(batches, rank), rows) for rank in range(ranks.size)]
    mine = np.full_like(rows, -1)
    mine[[sampled[row] for row in places[ranks.rank]]] = np.arange(len(places[ranks.rank]))
    with ranks.together():
        # A model in shards takes all ranks for every forward pass: who has none left runs one for the others' sake.
        share = [*ranks.deal(batches), batches[-1]][: -(-len(batches) // ranks.size)]
        parts = _run(model, _watched(share, progress), mine, layers, forward, states_bytes, within)
    return _exchanged(parts, rows, places, Buffers(states_bytes, len(parts.layers)), ranks)


def _rows_in(batches: Iterable[ProbeBatch], rows: np.ndarray) -> np.ndarray:
    """The rows of the states that come from the tokens of these batches, ascending."""
    tokens = [np.arange(batch.first_token, batch.first_token + len(batch.positions)) for batch in batches]
    found = rows[np.concatenate([np.array([], dtype=int), *tokens])]
    return np.sort(found[found >= 0])


def _exchanged(parts: States, rows: np.ndarray, places: Sequence[np.ndarray], buffers: Buffers, ranks: Ranks) -> States:
    """From every rank's rows of all layers to all rows of every size-th layer, one layer after the other."""
    whole = []
    for number in range(len(parts.layers)):
        part = parts.take()
        states = ranks.assemble(part.states, places, partial(buffers.new, like=part.states), number % ranks.size)
        if states is not None:
            whole.append(replace(part, states=states))
    return States(whole, rows)


def _watched(batches: Sequence[ProbeBatch], progress: Callable[[float], None] | None) -> Iterator[ProbeBatch]:
    for number, batch in enumerate(batches, start=1):
        yield batch
        if progress:
            progress(number / len(batches))


def causality(
    model: nn.Module,
    probe: Probe,
    layers: Layers = None,
    *,
    forward: Forward | None = None,
    states_bytes: int = STATES_BYTES,
    within: nn.Module | None = None,
) -> dict[str | None, bool | None]:
    """Whether no position of a stack sees a later one.

    The second half of a sequence is changed, and the states of its first half are compared. Of several stacks each is
    tried by itself, with what the others put out held as it was: the decoder of an encoder-decoder is told of the
    change by its own input alone.

    Args: as for :func:`capture`.

    Returns:
        By name of the stack (None where there is one): True for a decoder, False for an encoder, None where it cannot
        be told (states that are not finite, a probe of one and the same token, blocks that do not mix positions).
    """
    blocks = find_blocks(unwrapped(model), layers)
    trial = _trial(probe)
    told: dict[str | None, bool | None] = dict.fromkeys(block.stack for block in blocks)
    if trial is None:
        return told
    rows = np.arange(sum(len(batch.positions) for batch in trial))
    for stack in told:
        with held([block for block in blocks if block.stack != stack]) as hold:
            states = _run(model, hold(trial), rows, layers, forward, states_bytes, within)
        last = [layer for layer in states.layers if layer.stack == stack][-1]
        told[stack] = _is_causal(last.states.double().unflatten(0, (len(trial), *trial[0].input_ids.shape)))
    return told


def _trial(probe: Probe) -> list[ProbeBatch] | None:
    """A sequence four times; and then as it is, with its second half changed, with its first changed, and as it is.

    Both batches have one shape, so that equal inputs meet the same arithmetic.
    """
    longest = int(probe.lengths.argmax())
    # An odd length: windows and chunks of attention do not end in its middle.
    tokens = probe.tokens.split(probe.lengths.tolist())[longest][:63]
    vocabulary = probe.tokens.unique()
    length, half = len(tokens), len(tokens) // 2
    if len(vocabulary) == 1 or length < 2:
        return None
    others = vocabulary[(torch.searchsorted(vocabulary, tokens) + 1) % len(vocabulary)]
    later, earlier = torch.cat([tokens[:half], others[half:]]), torch.cat([others[:half], tokens[half:]])
    controls = [tokens] * (2 if length == 4 else 1)  # no batch is square
    sequences = [torch.stack([tokens, *tried, *controls]) for tried in ((tokens, tokens), (later, earlier))]
    positions = np.arange(sequences[0].numel())
    return [
        ProbeBatch(ids, torch.ones_like(ids), positions, first_token=i * len(positions))
        for i, ids in enumerate(sequences)
    ]


def _is_causal(states: Tensor) -> bool | None:
    """From the last layer's states (2, n_sequences, length, dim) of the two batches of :func:`_trial`."""
    if not bool(states.isfinite().all()):
        return None
    before, after = states
    half = before.shape[1] // 2
    moved = (after - before).abs().amax(dim=-1)
    by_later, by_earlier = moved[1, :half], moved[2, half:]
    # Tokens that are sorted into batches of their own, as experts do, are rounded differently when others change, and a
    # few go to another expert. The sequences that stay as they are show how much.
    rounding = 4 * moved[[0, -1]].mean(dim=1).max()
    least = torch.maximum(rounding, 1e-7 * before.square().mean().sqrt())
    # The positions next to the change see it if any do; where there is rounding, one alone may be an accident.
    seen = by_later[-8:].median() if rounding > 0 else by_later.max()
    if bool(seen > least):
        return False
    # Blocks that begin as the identity, as some are initialised, let no position see any other.
    return True if bool(by_earlier.max() > least) else None


def _run(
    model: nn.Module,
    batches: Iterable[ProbeBatch],
    rows: np.ndarray,
    layers: Layers,
    forward: Forward | None,
    states_bytes: int,
    within: nn.Module | None = None,
) -> States:
    outer = model if within is None else within
    model = unwrapped(model)
    refuse_prompts(model)
    blocks = find_blocks(model, layers)
    body = model if forward else smallest_with(blocks, model)
    call = forward or call_with_tokens
    n_layers = len(blocks) + len({block.stack for block in blocks})
    recorder = Recorder(
        blocks, rows, Buffers(states_bytes, n_layers), pads_right=pads_right(model), lists=listing(model)
    )
    device = device_of(model, outer)
    with undisturbed(model), recorder.attached(), through(outer, body) as run:
        for batch in batches:
            on_device = replace(
                batch, input_ids=batch.input_ids.to(device), attention_mask=batch.attention_mask.to(device)
            )
            with recorder.expecting(batch):
                run(partial(call, body, on_device))
    return recorder.states()
