"""Capture: each layer's states of any model, at the sampled tokens and nowhere else.

Layer 0 is what enters the first block (the embedding output); layer l is what block l puts out. For every family
alike the last layer is therefore the last block's output *before* a final normalisation, the same residual stream
as the layers below it. To measure the normalised output too, name its module in ``layers``. Where a block carries
several vectors for each token (the streams of hyper-connections), a layer's vector is all of them, end to end; where
it passes on its branch and the residual stream in two parts, for the next one to add, it is the first part alone. Each
stack of an encoder-decoder has its own layers, from 0 on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn

from repdyn.capture import model_checks as model_checks
from repdyn.capture.blocks import Block, LayerPatterns, find_blocks, listing, unwrapped
from repdyn.capture.branches import find_branches
from repdyn.capture.embeddings import EmbeddingSearch
from repdyn.capture.exchange import exchanged, rows_in
from repdyn.capture.forward import (
    Forward,
    all_in_base,
    call_with_tokens,
    check_no_prompt_tuning,
    device_of,
    evaluation_mode,
    held,
    pads_right,
    smallest_with,
)
from repdyn.capture.fsdp import class_name, inside_fsdp_root
from repdyn.capture.model_checks import Trial
from repdyn.capture.recorder import Recorder
from repdyn.capture.states import STATES_BYTES, Buffers, CaptureKind, States
from repdyn.capture.token_states import TokenPositions, split_where_square
from repdyn.probe import Probe, ProbeBatch
from repdyn.utils.distributed import ALONE, Ranks


def no_progress(share: float) -> None:
    """Progress that nobody watches."""


def capture(
    model: nn.Module,
    probe: Probe,
    subsets: Sequence[str],
    layers: LayerPatterns = None,
    *,
    captures: Collection[CaptureKind] = (),
    forward: Forward | None = None,
    token_positions: TokenPositions | None = None,
    causal: bool = False,
    tokens_per_forward: int = 8192,
    states_bytes: int = STATES_BYTES,
    progress: Callable[[float], None] = no_progress,
    root_module: nn.Module | None = None,
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
            :func:`repdyn.capture.blocks.find_blocks`.
        captures: what to bring beside each layer's own states, of :data:`repdyn.capture.states.CaptureKind`.
        forward: ``forward(model, batch)`` runs the model on a :class:`repdyn.probe.ProbeBatch`; None calls it with
            ``input_ids`` and, where it takes one, ``attention_mask``; see
            :func:`repdyn.capture.forward.call_with_tokens`.
        token_positions: which positions of the states are the tokens', in a model with learned vectors among them; see
            :data:`repdyn.capture.token_states.TokenPositions`.
        causal: whether no position sees a later one: then no window is read past its last sampled token. A window
            without sampled tokens is never read.
        tokens_per_forward: bounds the size of one forward pass.
        states_bytes: how much the states may take in memory, all layers together, on the model's device; layers beyond
            wait in the system's temporary folder (TMPDIR).
        progress: called after each forward pass with the share of the probe that has run.
        root_module: what the model is a part of, where that is sharded as a whole; None for the model itself.
        ranks: processes that hold the same model, or shards of it, and share the work: each runs its share of the
            probe, in the batches that one process would run, and is given the whole of every size-th layer.

    Raises:
        ValueError: the blocks cannot be told (the message lists the candidates), or the model does not tell padding
            from tokens.
        RuntimeError: a block did not run, its output is not one vector for each token, blocks that were found do not
            pass states from one to the next; or another rank failed.
        OSError: the temporary folder has too little space.
    """
    sampled = list(dict.fromkeys(np.concatenate([probe.sample(subset).ravel() for subset in subsets]).tolist()))
    rows = np.full(len(probe.tokens), -1)
    rows[sampled] = np.arange(len(sampled))
    settings: dict[str, Any] = {"forward": forward, "states_bytes": states_bytes, "root_module": root_module}
    settings["token_positions"] = token_positions
    with ranks.sync_errors():
        if forward is None:
            _check_padding_independence(model, probe, layers, **settings)
        read = probe.tokens_needed(np.array(sampled), causal and _takes_cut_windows(model, probe, layers, **settings))
    whole = probe.batches(max(1, tokens_per_forward // int(read.max())), read)
    batches = [batch for each in whole for batch in split_where_square(each, token_positions)]
    settings |= {"captures": captures, "first": next(probe.batches(1)) if "after_attention" in captures else None}
    if ranks.size == 1:
        return _run(model, _watched(batches, progress), rows, layers, **settings)
    places = [rows_in(ranks.shard(batches, rank), rows) for rank in range(ranks.size)]
    mine = np.full_like(rows, -1)
    mine[[sampled[row] for row in places[ranks.rank]]] = np.arange(len(places[ranks.rank]))
    with ranks.sync_errors():
        # A model in shards takes all ranks for every forward pass: who has none left runs one for the others' sake.
        share = [*ranks.shard(batches), batches[-1]][: -(-len(batches) // ranks.size)]
        parts = _run(model, _watched(share, progress), mine, layers, **settings)
    return exchanged(parts, rows, places, captures, Buffers(states_bytes, len(parts.layers)), ranks)


def _watched(batches: Sequence[ProbeBatch], progress: Callable[[float], None]) -> Iterator[ProbeBatch]:
    for number, batch in enumerate(batches, start=1):
        yield batch
        progress(number / len(batches))


def causality(
    model: nn.Module,
    probe: Probe,
    layers: LayerPatterns = None,
    *,
    forward: Forward | None = None,
    token_positions: TokenPositions | None = None,
    states_bytes: int = STATES_BYTES,
    root_module: nn.Module | None = None,
) -> dict[str | None, bool | None]:
    """Whether no position of a stack sees a later one.

    The second part of a sequence is changed, and the states of its first part are compared. Of several stacks each is
    tried by itself, with what the others put out held as it was: the decoder of an encoder-decoder is told of the
    change by its own input alone. A decoder whose positions see all of a prefix, later ones too, is taken for
    causal where that prefix is shorter than half of the probe's longest sequence, or than 31 tokens.

    Args: as for :func:`capture`.

    Returns:
        By name of the stack (None where there is one): True for a decoder, False for an encoder, None where it cannot
        be told (states that are not finite, a probe of one and the same token, blocks that do not mix positions).
    """
    blocks = find_blocks(unwrapped(model), layers)
    settings: dict[str, Any] = {"forward": forward, "states_bytes": states_bytes, "root_module": root_module}
    settings["token_positions"] = token_positions
    told: dict[str | None, bool | None] = dict.fromkeys(block.stack for block in blocks)
    for stack in told:
        others = [block for block in blocks if block.stack != stack]
        states = _run_check(model, model_checks.of_causality(probe), layers, others, **settings)
        if states is not None:
            told[stack] = model_checks.is_causal(states[stack])
    return told


def _check_padding_independence(model: nn.Module, probe: Probe, layers: LayerPatterns, **settings: Any) -> None:
    """Run a padded sequence with other tokens in its padding: the states of its own tokens must not tell."""
    states = _run_check(model, model_checks.of_padding(probe), layers, **settings)
    if states is not None and any(map(model_checks.padding_is_seen, states.values())):
        raise ValueError(
            "expected states that do not depend on what stands in the padding, but those of "
            f"{class_name(unwrapped(model))} do: something in its forward pass does not heed attention_mask (nonzero "
            "at tokens); give sequences of one length, or say how to run it with forward=lambda model, batch: ..."
        )


def _takes_cut_windows(model: nn.Module, probe: Probe, layers: LayerPatterns, **settings: Any) -> bool:
    """Whether the model runs on windows shorter than the probe's, which one of a fixed length does not."""
    whole = next(probe.batches(1))
    for length in {whole.input_ids.shape[1] - 1, whole.input_ids.shape[1] // 2}:
        if length < 2:
            return False
        ids, mask = whole.input_ids[:, :length], whole.attention_mask[:, :length]
        cut = ProbeBatch(ids, mask, whole.positions[:length], whole.tokens[:length])
        try:
            _run(model, [cut], np.arange(len(probe.tokens)), layers, **settings)
        except Exception:  # what is wrong with the model itself shows again on whole windows
            return False
    return True


def _run_check(
    model: nn.Module, tried: Iterable[Trial], layers: LayerPatterns, others: Sequence[Block] = (), **settings: Any
) -> dict[str | None, Tensor] | None:
    """The last states of each stack, (2, n_sequences, n_tokens, dim), in the first trial that the model can run.

    Args:
        others: blocks whose output is held as it was for the first batch.
    """
    remaining = list(tried)
    for trial in remaining:
        shape = len(trial), *trial[0].input_ids.shape[:1], -1
        rows = np.arange(sum(len(batch.positions) for batch in trial))
        try:
            with held(list(others)) as hold:
                states = _run(model, hold(trial), rows, layers, **settings)
        except Exception:  # a model may want the probe's own length; what else is wrong shows there again
            if trial is remaining[-1]:
                raise
        else:
            last = {layer.stack: layer.states for layer in states.layers}
            return {stack: found.double().unflatten(0, shape) for stack, found in last.items()}
    return None


def _run(
    model: nn.Module,
    batches: Iterable[ProbeBatch],
    rows: np.ndarray,
    layers: LayerPatterns,
    *,
    forward: Forward | None,
    token_positions: TokenPositions | None,
    states_bytes: int,
    root_module: nn.Module | None,
    captures: Collection[CaptureKind] = (),
    first: ProbeBatch | None = None,
) -> States:
    """
    Args:
        first: a sequence to learn on where each block's attention puts out what it adds, where that is asked for.
    """
    outer = model if root_module is None else root_module
    model = unwrapped(model)
    check_no_prompt_tuning(model, token_positions)
    blocks = find_blocks(model, layers)
    body = model if forward else smallest_with(blocks, model)
    call = forward or partial(call_with_tokens, logits=not all_in_base(blocks, model))
    n_layers = len(blocks) + len({block.stack for block in blocks})
    told = {"token_positions": token_positions, "pads_right": pads_right(model), "lists": listing(model)}
    recorder_of = partial(Recorder, blocks, chained=layers is None, **told)
    device = device_of(model, outer)
    search = EmbeddingSearch(model, len({block.stack for block in blocks})) if "embeddings" in captures else None
    with evaluation_mode(model, device), inside_fsdp_root(outer, body) as run:

        def pass_through(batch: ProbeBatch) -> None:
            ids, mask = batch.input_ids.to(device), batch.attention_mask.to(device)
            run(partial(call, body, replace(batch, input_ids=ids, attention_mask=mask)))

        branches = None
        if first is not None:
            whole = recorder_of(np.arange(len(first.positions)), Buffers(states_bytes, n_layers))
            branches = find_branches(blocks, whole, first, pass_through)
        n_buffers = n_layers if branches is None else n_layers + len(branches)
        recorder = recorder_of(rows, Buffers(states_bytes, n_buffers), branches=branches)
        with recorder.attached(), search.attached() if search else nullcontext():
            for batch in batches:
                with recorder.expecting(batch), search.expecting(batch) if search else nullcontext():
                    pass_through(batch)
    states = recorder.states()
    return states if search is None else replace(states, embeddings=search.table())
