"""Capture: each layer's states of any model, at the sampled tokens and nowhere else.

Layer 0 is what enters the first block (the embedding output); layer l is the output of block l. The last layer of
every family is therefore the last block's output *before* a final normalisation, the same residual stream as the
layers below it. To measure the normalised output too, name its module in ``layers``. Where a block carries several
vectors for each token (the streams of hyper-connections), a layer's vector is their concatenation; where it returns
its branch and the residual stream separately, for the next block to add, it is the first part alone. Each stack of an
encoder-decoder has its own layers, from 0 on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain

import numpy as np
from torch import Tensor

from repdyn.capture import model_checks
from repdyn.capture.branches import find_branches
from repdyn.capture.embeddings import EmbeddingSearch
from repdyn.capture.forward import frozen_outputs
from repdyn.capture.fsdp import class_name
from repdyn.capture.model_checks import Trial
from repdyn.capture.prepared_model import PreparedModel
from repdyn.capture.recorder import Recorder
from repdyn.capture.states import STATES_BYTES, Buffers, CaptureKind, States, exchange_layers, rows_of_batches
from repdyn.capture.token_states import split_where_square
from repdyn.probe import Probe, ProbeBatch
from repdyn.utils.caller_state import plain_state
from repdyn.utils.distributed import ALONE, Ranks


def no_progress(share: float) -> None:
    """Ignore progress."""


@plain_state()
def capture(
    model: PreparedModel,
    probe: Probe,
    subsets: Sequence[str],
    *,
    captures: Collection[CaptureKind] = (),
    causal: bool = False,
    tokens_per_forward: int = 8192,
    states_bytes: int = STATES_BYTES,
    progress: Callable[[float], None] = no_progress,
    ranks: Ranks = ALONE,
) -> States:
    """Run the probe through the model once and keep the vectors that the subsets sample.

    The model is left unchanged: training flags module by module, hooks, gradients, RNG state, and whatever it
    changes in itself when it runs.

    Args:
        model: made by :func:`repdyn.capture.prepared_model.prepare`.
        probe: the tokens.
        subsets: whose samples to keep. Rows are ordered by the first one's sample, whose metric batches are thereby
            slices; tokens that only the others sample follow, then those of ``probe.whole_windows`` if captured.
        captures: what to capture in addition to each layer's own states, of :data:`repdyn.capture.states.CaptureKind`.
        causal: whether no position sees a later one: then no window is read past its last sampled token. A window
            without sampled tokens is never read.
        tokens_per_forward: bounds the size of one forward pass.
        states_bytes: how much memory the states may take, all layers together, on the model's device; further layers
            are kept in the system's temporary folder (TMPDIR).
        progress: called after each forward pass with the share of the probe that has run.
        ranks: processes that hold the same model, or shards of it, and share the work: each runs its share of the
            probe, in the batches that one process would run, and gets the whole of every size-th layer.

    Raises:
        ValueError: the model's states depend on the content of the padding.
        RuntimeError: a block did not run, its output is not one vector for each token, blocks that were found do not
            pass states from one to the next; or another rank failed.
        OSError: the temporary folder has too little space.
    """
    model = model.on(probe)
    whole_windows = chain.from_iterable(probe.whole_windows if "whole_windows" in captures else ())
    of_subsets = [probe.tokens_of(subset) for subset in subsets]
    sampled = list(dict.fromkeys(np.concatenate([*of_subsets, *whole_windows]).tolist()))
    rows = np.full(len(probe.tokens) + len(probe.lengths), -1)
    rows[sampled] = np.arange(len(sampled))
    with ranks.sync_errors():
        batches = _batches(model, probe, np.array(sampled), causal, tokens_per_forward, states_bytes)
    if rows[len(probe.tokens) :].max(initial=-1) >= 0:
        batches = [replace(batch, means=probe.index_of_mean(batch.first_tokens)) for batch in batches]
    first = next(probe.batches(1)) if "after_attention" in captures else None
    if ranks.size == 1:
        return record(model, _reporting(batches, progress), rows, states_bytes, captures, first)
    places = [rows_of_batches(ranks.shard(batches, rank), rows) for rank in range(ranks.size)]
    own = np.full_like(rows, -1)
    own[[sampled[row] for row in places[ranks.rank]]] = np.arange(len(places[ranks.rank]))
    with ranks.sync_errors():
        # A sharded model needs all ranks for every forward pass: a rank without a batch left runs one for the others.
        share = [*ranks.shard(batches), batches[-1]][: -(-len(batches) // ranks.size)]
        parts = record(model, _reporting(share, progress), own, states_bytes, captures, first)
    return exchange_layers(parts, rows, places, captures, Buffers(states_bytes, len(parts.layers)), ranks)


def _batches(
    model: PreparedModel, probe: Probe, sampled: np.ndarray, causal: bool, tokens_per_forward: int, states_bytes: int
) -> list[ProbeBatch]:
    """Return the batches that the model runs; those of a probe of inputs are given."""
    if probe.inputs is not None:
        return list(probe.batches(1))
    if model.forward is None:
        _check_padding_independence(model, probe, states_bytes)
    needed = probe.tokens_needed(sampled, causal and model.any_length)
    whole = probe.batches(max(1, tokens_per_forward // int(needed.max())), needed)
    return [part for batch in whole for part in split_where_square(batch, model.token_positions)]


@plain_state()
def causality(model: PreparedModel, probe: Probe, *, states_bytes: int = STATES_BYTES) -> dict[str | None, bool | None]:
    """Return for each stack whether no position sees a later one.

    The second part of a sequence is changed, and the states of its first part are compared. Each of several stacks is
    tried separately while the outputs of the others are frozen: the decoder of an encoder-decoder sees the change in
    its own input alone. A decoder whose positions see all of a prefix, later ones too, counts as causal where that
    prefix is shorter than half of the probe's longest sequence, or than 31 tokens.

    Args: as for :func:`capture`.

    Returns:
        By name of the stack (None where there is one): what a probe of inputs states; else True for a decoder, False
        for an encoder, None where it is undecidable (states that are not finite, a probe of one repeated token, blocks
        that do not mix positions).
    """
    model = model.on(probe)
    if probe.inputs is not None:
        return {stack: probe.inputs.is_causal(stack) for stack in model.stacks}
    found: dict[str | None, bool | None] = {}
    for stack in model.stacks:
        states = _run_trial(model, model_checks.causality_trials(probe), states_bytes, of_stack=stack)
        found[stack] = None if states is None else model_checks.is_causal(states[stack])
    return found


def _check_padding_independence(model: PreparedModel, probe: Probe, states_bytes: int) -> None:
    """Check that the states of a padded sequence do not change with the tokens in its padding."""
    states = _run_trial(model, model_checks.padding_trials(probe), states_bytes)
    if states is not None and any(map(model_checks.depends_on_padding, states.values())):
        raise ValueError(
            "expected states that do not depend on the tokens in the padding, but those of "
            f"{class_name(model.module)} do: something in its forward pass ignores attention_mask (nonzero at tokens); "
            "use sequences of one length, or run the model with forward=lambda model, batch: ..."
        )


def _run_trial(
    model: PreparedModel, trials: Iterable[Trial], states_bytes: int, *, of_stack: str | None = None
) -> dict[str | None, Tensor] | None:
    """Return the last states of each stack, (2, n_sequences, n_tokens, dim), in the first trial that the model can run.

    Args:
        of_stack: a stack, so that the blocks of the others put out the same for the second batch as for the first.
    """
    remaining = list(trials)
    for trial in remaining:
        shape = len(trial), *trial[0].input_ids.shape[:1], -1
        rows = np.arange(sum(len(batch.positions) for batch in trial))
        try:
            states = record(model, trial, rows, states_bytes, only_changing=of_stack)
        except Exception:  # a model may need the probe's own length; any other error appears there again
            if trial is remaining[-1]:
                raise
        else:
            last = {layer.stack: layer.states for layer in states.layers}
            return {stack: found.double().unflatten(0, shape) for stack, found in last.items()}
    return None


def record(
    model: PreparedModel,
    batches: Iterable[ProbeBatch],
    rows: np.ndarray,
    states_bytes: int,
    captures: Collection[CaptureKind] = (),
    first: ProbeBatch | None = None,
    *,
    only_changing: str | None = None,
) -> States:
    """Run batches through the model and return the recorded states.

    Args:
        rows: (n_tokens,) the row of each token in the states, -1 where it is not sampled.
        first: one sequence, on which to learn where each block adds its attention's output, if that is captured.
        only_changing: the stack whose states may change from the first batch to the others; None for all.
    """
    n_layers = len(model.blocks) + len(model.stacks)
    with model.evaluating() as run:
        search = EmbeddingSearch(run.model.module, len(model.stacks)) if "embeddings" in captures else None
        branches = {}
        if first is not None:
            learning = Recorder(run.model, np.arange(len(first.positions)), Buffers(states_bytes, n_layers))
            branches = find_branches(run.model.blocks, learning, first, run)
        recorder = Recorder(run.model, rows, Buffers(states_bytes, n_layers + len(branches)), branches)
        others = [block for block in run.model.blocks if only_changing not in {None, block.stack}]
        with recorder.attached(), search.attached() if search else nullcontext(), frozen_outputs(others) as each:
            for batch in each(batches):
                with recorder.recording(batch), search.watching(batch) if search else nullcontext():
                    run(batch)
    states = recorder.states(model.learned.autocast)
    return states if search is None else replace(states, embeddings=search.table())


def _reporting(batches: Sequence[ProbeBatch], progress: Callable[[float], None]) -> Iterator[ProbeBatch]:
    for number, batch in enumerate(batches, start=1):
        yield batch
        progress(number / len(batches))
