"""A trial of a model on one sequence of a probe: how it is called, what its blocks hand on, which
of its hooks act.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from repdyn.capture.blocks import Block, LayerPatterns, silent_blocks
from repdyn.capture.calls import (
    Forward,
    MaskedCall,
    as_batch,
    call_with_inputs,
    call_with_tokens,
    ways_to_call,
)
from repdyn.capture.capture import leaves_out_masked
from repdyn.capture.forward_errors import ForwardError
from repdyn.capture.hooks import KeepHooks, acting_hooks, changing_hooks, doubtful_hooks
from repdyn.capture.model import (
    ReportedState,
    RunnableModel,
    body_of,
    locate,
    structure_of,
)
from repdyn.capture.shadow import ShadowError, check_can_be_copied
from repdyn.capture.streams import Streams, chain_of, refusal_of_several
from repdyn.capture.token_states import EmbeddingSearch, Slot, TokenStates, by_slot, watched
from repdyn.capture.wrappers import class_name, is_a
from repdyn.probe import Probe, ProbeBatch
from repdyn.probe.inputs import first_input
from repdyn.utils.caller_state import plain_state

_SHORT = 63
"""Tokens of the sequence on which a model shows how it is run; odd, and one that needs a certain
length gets all.
"""


@plain_state()
def prepare(
    model: nn.Module,
    probe: Probe | ProbeBatch,
    layers: LayerPatterns = None,
    *,
    forward: Forward | None = None,
    root_module: nn.Module | None = None,
    parameters: Mapping[str, Tensor] | None = None,
    keep_hooks: KeepHooks = (),
) -> RunnableModel:
    """Find the blocks of a model, and how it runs on a probe, which one sequence of it shows.

    It shows how the model is called where its signature leaves that open (with ``input_ids`` and
    what else the forward names, with the ids alone, with one dictionary of both); whether the
    blocks pass states from one to the next; which of its hooks act. Where a Hugging Face model has
    no blocks that pass states on, its layers are the hidden states that it reports.

    Args:
        model, layers, forward, root_module, parameters: as for
            :func:`repdyn.capture.model.locate`.
        probe: what the model will run on, or a batch of it.
        keep_hooks: forward hooks of the user's own that act, see :mod:`repdyn.capture.hooks`.

    Raises:
        ValueError: as :func:`repdyn.capture.model.locate` does; the forward pass fails,
            with the ``forward=`` to write; token ids that the model does not know; or no blocks
            were found.
        RuntimeError: the blocks that were found do not pass states from one to the next.
        OSError, MemoryError, torch.OutOfMemoryError: what the machine lacks.
    """
    located = locate(model, layers, forward=forward, root_module=root_module, parameters=parameters)
    untried = RunnableModel(
        **vars(located),
        way="shadow",
        call=call_with_tokens,
        acting=acting_hooks(located.module, keep_hooks),
    )
    try:
        tried = _with_hooks(untried, probe)
    except ShadowError as reason:
        if located.parameters:
            raise ValueError(
                "expected a model that parameters= can stand in for, got a "
                f"{class_name(located.module)} that has no copy: {reason}; measure a second model "
                "that has them"
            ) from reason
        tried = _tried(replace(untried, way="restored"), probe)
    return replace(tried, structure=structure_of(located.root_module))


def _with_hooks(model: RunnableModel, probe: Probe | ProbeBatch) -> RunnableModel:
    """Return the model as a trial shows it, with the hooks that make a difference."""
    check_can_be_copied(model.module)
    tried = _tried(model, probe)
    doubtful = doubtful_hooks(model.module, model.acting)
    if not doubtful:
        return tried
    batch = one_sequence(probe)
    changing = changing_hooks(
        doubtful, lambda some: _outputs(replace(tried, acting={*model.acting, *some}), batch)
    )
    if not changing:
        return tried
    return _tried(replace(model, acting={*model.acting, *changing}), probe)


def _outputs(model: RunnableModel, batch: ProbeBatch) -> list[Tensor]:
    """Return what the blocks and the model put out for a batch."""
    tensors: list[Tensor] = []

    def keep(_block: Block | None, returned: Mapping[Slot, Any]) -> None:
        tensors.extend(part.clone() for part in returned.values() if isinstance(part, Tensor))

    with model.evaluating() as running, watched(running.model.blocks, leave=keep):
        keep(None, by_slot(running(batch)))
    return tensors


def _tried(model: RunnableModel, probe: Probe | ProbeBatch) -> RunnableModel:
    """Return the model as a pass over one sequence shows it, called in the first way that works."""
    if isinstance(probe, Probe) and probe.inputs is not None:
        return _on_inputs(model, one_sequence(probe))
    tokens = one_sequence(probe).input_ids[0]
    every = probe.tokens if isinstance(probe, Probe) else probe.input_ids
    is_open = model.forward is None and not is_a(model.module, "transformers.PreTrainedModel")
    calls = ways_to_call(model.module) if is_open else [call_with_tokens]
    failures: list[Exception] = []
    for length in sorted({max(2, min(_SHORT, len(tokens) - 1)), len(tokens)}):
        failures = []
        batch = as_batch(tokens[None, :length])
        for call in calls:
            is_guess = isinstance(call, MaskedCall)
            try:
                tried = _linked(replace(model, call=call), batch, int(every.max()))
                if not is_guess or leaves_out_masked(tried, batch.input_ids[0], every):
                    return replace(tried, any_length=length < len(tokens))
            except ShadowError:
                raise
            except (ValueError, RuntimeError) as error:
                # of a guess: another one is right, or a call without the mask says what is wrong
                if is_guess:
                    continue
                if not isinstance(error, ForwardError):
                    # it runs in this way, but not from block to block
                    failures = [error]
                    break
                failures.append(error)
    raise failures[0]


def _on_inputs(model: RunnableModel, batch: ProbeBatch) -> RunnableModel:
    if model.unfound:
        raise ValueError(model.unfound)
    model = replace(model, call=call_with_inputs)
    shapes: list[torch.Size] = []

    def keep_shapes(_block: Block, returned: Mapping[Slot, Any]) -> None:
        tensors = [part for part in returned.values() if isinstance(part, Tensor)]
        shapes.extend(tensor.shape for tensor in tensors if tensor.ndim == 3)

    with model.evaluating() as running, watched(running.model.blocks, leave=keep_shapes):
        streams = _streams(running.model, None)
        with streams.watching():
            running(batch)
    model = _of_streams(model, streams)
    first = any(s[1] == 1 < s[0] for s in shapes) and not any(s[0] == 1 < s[1] for s in shapes)
    return replace(model, positions_first=first)


def _linked(model: RunnableModel, batch: ProbeBatch, largest: int) -> RunnableModel:
    """Return the model as a pass over one sequence shows it; ``largest`` is the largest id of the
    probe.
    """
    search = model.token_states()
    search.batch = batch
    with model.evaluating() as running:
        streams = _streams(running.model, search)
        embeddings = EmbeddingSearch(running.model.module, largest=largest)
        with streams.watching(), embeddings.during(batch):
            try:
                running(batch)
            except ForwardError:
                if streams.failure and not model.blocks_named:
                    raise RuntimeError(streams.failure) from None
                raise
    if model.unfound:
        reason: ValueError | RuntimeError | None = ValueError(model.unfound)
    elif model.blocks_named:
        reason = None
    else:
        failure = streams.failure or silent_blocks(model.module, model.blocks, streams.called)
        reason = RuntimeError(failure) if failure else None
    if reason is None:
        return _of_streams(model, streams)
    reporting = _reporting(model, batch)
    if reporting is None:
        raise reason
    return reporting


def _reporting(model: RunnableModel, batch: ProbeBatch) -> RunnableModel | None:
    """Return a Hugging Face model whose layers are the hidden states that it reports; None where it
    reports none.
    """
    if model.forward is not None or model.way != "shadow" or model.whole is None:
        return None
    body, needs_logits = body_of(model.module, model.whole, [])
    model = replace(model, reports_states=True, blocks=[], body=body, needs_logits=needs_logits)
    with model.evaluating() as running:
        names = list(running.reported_states(running(batch), batch))[1:]
    if not names:
        return None
    return replace(model, blocks=[Block(name, ReportedState()) for name in names], slots={})


def _streams(model: RunnableModel, search: TokenStates | None) -> Streams:
    """Return what watches the blocks in a pass; of named ones, the whole list that they are from.

    One stream must go through those of one stack, but for models of a library, whose layers are
    what their configuration counts.
    """
    is_chosen = any(block.slot is not None for block in model.blocks)
    is_one = len(model.stacks) == 1 and (model.whole is None or is_chosen)
    chain = None
    if is_one and model.blocks_named:
        chain = chain_of(model.module, model.blocks)
        is_one = chain is not None or is_chosen
    return Streams(
        model.module,
        chain or model.blocks,
        search,
        strict=search is not None and not model.blocks_named,
        is_one=is_one,
    )


def _of_streams(model: RunnableModel, streams: Streams) -> RunnableModel:
    """Return the model with the stream that a pass has shown; an error where that is not one, and
    none was chosen."""
    slots = {stack: of.slots for stack, of in streams.by_stack.items() if of.slots is not None}
    chosen = next((block.slot for block in model.blocks if block.slot is not None), None)
    if not streams.is_one:
        if chosen is not None:
            raise ValueError(
                'expected a part of what blocks return, such as "blocks.*:1", in layers= of '
                f"one stack, got {len(model.stacks)} stacks; measure them one by one"
            )
        return replace(model, slots=slots)
    stack = model.stacks[0]
    stream = streams.by_stack[stack]
    if chosen is not None:
        if chosen not in stream.links:
            raise ValueError(
                f"expected part {chosen} of what {model.blocks[0].name!r} returns to be states "
                f"that the next block takes, got {', '.join(map(str, stream.links)) or 'none'}"
            )
        return replace(model, slots={stack: (stream.links[chosen], chosen)})
    # a stack that has a name was told apart on purpose
    if stack is None and streams.failure:
        raise RuntimeError(streams.failure)
    if stream.summed is not None:
        return replace(model, slots=slots, sums={stack: stream.summed})
    if stack is None and len(stream.moving) > 1:
        raise RuntimeError(refusal_of_several(stream.moving, model.blocks))
    return replace(model, slots=slots)


def one_sequence(probe: Probe | ProbeBatch) -> ProbeBatch:
    """Return the longest sequence of a probe, or the first of a batch or of a probe of inputs."""
    if isinstance(probe, ProbeBatch):
        return as_batch(probe.input_ids[:1].cpu())
    if probe.inputs is not None:
        return first_input(next(probe.batches(1)))
    return as_batch(probe.tokens.split(probe.lengths.tolist())[int(probe.lengths.argmax())][None])
