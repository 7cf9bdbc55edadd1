"""Measure a model: probe and metrics in, rows out. Live tracking and offline sweeps share this
path.

- :func:`measure`: the public function, for a model that is measured once.
- :func:`prepare_for` and :func:`measure_with`: its two halves. A training measures the same model
  many times, so that it keeps what the first half has found out.
- :class:`Profile`: what a measurement returns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

import torch.distributed as dist
from torch import Tensor, nn

from repdyn.capture.attention import attention_weights
from repdyn.capture.blocks import LayerPatterns
from repdyn.capture.capture import capture, causality, check_padding, no_progress
from repdyn.capture.model import RunnableModel
from repdyn.capture.output_head import find_final_norm, find_output_head
from repdyn.capture.shadow import own_names
from repdyn.capture.states import States
from repdyn.capture.trial import prepare
from repdyn.capture.wrappers import class_name, is_sharded, unwrapped
from repdyn.measurement.options import Measurement, MeasurementArguments, MeasurementOptions
from repdyn.measurement.probe_loss import ProbeLoss
from repdyn.measurement.rows import OnError, part_of, rows_of_layer
from repdyn.metrics import (
    DEFAULT_METRICS,
    BlockWeights,
    CheckpointContext,
    LayerView,
    MetricLike,
)
from repdyn.metrics.metric import WEIGHT_CAPTURES
from repdyn.probe import Probe
from repdyn.store.schema import Checkpoint, Row, to_table
from repdyn.store.state_cache import StateCache
from repdyn.utils.caller_state import plain_state
from repdyn.utils.distributed import ALONE, Ranks
from repdyn.utils.mistyped import options_of

if TYPE_CHECKING:
    import pandas as pd


# their weights have more dimensions than two: see _weights
_CONVOLUTIONS = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)


Progress: TypeAlias = Callable[[str, float], None]


@dataclass(frozen=True)
class Profile:
    """The geometry of one checkpoint, layer by layer."""

    rows: list[Row]
    checkpoint: Checkpoint
    """What was measured, with its class, size and device filled in."""
    scalars: list[Row]
    """The loss on the probe and what belongs to it, if it was requested; rows without a layer."""
    forward_seconds: float
    """Wall-clock time of running the model over the probe."""
    kernel_seconds: float
    """Wall-clock time of computing the metrics."""

    def to_pandas(self) -> pd.DataFrame:
        """Return one line for each layer, metric and subset; columns as in
        :class:`repdyn.store.schema.Row`.
        """
        from repdyn.store.frame import to_pandas  # with pandas, which no training waits for

        return to_pandas(to_table(self.rows))

    def __repr__(self) -> str:
        n_layers = len({(row.stack, row.layer) for row in self.rows})
        metrics = ", ".join(sorted({row.metric for row in self.rows}))
        return (
            f"Profile({self.checkpoint.model}, step {self.checkpoint.step}, {n_layers} layers: "
            f"{metrics})"
        )


def measure(
    model: nn.Module,
    probe: Probe,
    metrics: str | Sequence[MetricLike] = DEFAULT_METRICS,
    layers: LayerPatterns = None,
    *,
    checkpoint: Checkpoint | None = None,
    on_error: OnError = "raise",
    progress: Progress = no_progress,
    ranks: Ranks = ALONE,
    state_cache: StateCache | None = None,
    **options: Unpack[MeasurementArguments],
) -> Profile:
    """Measure the geometry of every layer of a model on a probe.

    The model runs in evaluation mode, in the precision of its own weights, and is left as it was
    found. Where a value is undefined, the row has NaN and the reason.

    Args:
        model: a Hugging Face model or any module built of a list of blocks.
        probe: the tokens, and which of their vectors are taken.
        metrics, layers: as in :class:`repdyn.measurement.options.MeasurementOptions`.
        checkpoint: identifies what is measured in the rows; class, size and device of the model are
            filled in.
        on_error: what to do when a kernel fails (out of memory, say): "raise", or "record" NaN with
            the error's text.
        progress: called with "forward", "masked forward" (of an encoder whose loss is measured) or
            "kernels" and the completed share of it, in [0, 1]: after each forward pass and before
            each batch of each metric; what it raises breaks the measurement off.
        ranks: processes that measure together, ``Ranks.of_job()`` in a distributed job. All of them
            call this function and get the whole profile; forward passes and layers are shared out.
            Needed for a sharded model.
        state_cache: states of earlier checkpoints, for metrics that compare with them; those of
            this one are added.
        options: as in :class:`repdyn.measurement.options.MeasurementArguments`.

    Returns:
        A profile with one row for each layer (0 is the embedding output), metric and subset, stack
        after stack; metrics of attention heads have one for each head too.

    Raises:
        TypeError: the model is no ``nn.Module``, or the probe no Probe.
        ValueError: an unknown metric, blocks that cannot be identified, states that depend on the
            padding, layers on several devices, or ranks that differ.
        RuntimeError: a block that did not run, or does not output one vector for each token; found
            blocks that do not pass states from one to the next; or a rank that failed.
        OSError: the temporary folder has too little space for the states beyond ``states_bytes``.
    """
    chosen = options_of(MeasurementOptions, measure, metrics=metrics, layers=layers, **options)
    measurement = Measurement(probe=probe, options=chosen)
    return measure_with(
        prepare_for(model, measurement, ranks=ranks),
        measurement,
        checkpoint=checkpoint,
        on_error=on_error,
        progress=progress,
        ranks=ranks,
        state_cache=state_cache,
    )


@plain_state()
def prepare_for(
    model: nn.Module,
    measurement: Measurement,
    *,
    root_module: nn.Module | None = None,
    parameters: Mapping[str, Tensor] | None = None,
    ranks: Ranks = ALONE,
    former: RunnableModel | None = None,
) -> RunnableModel:
    """Check that a model can be measured, and find out what its measurements need to know of it.

    Args:
        model, ranks: as for :func:`measure`.
        measurement: what will be measured, and how.
        root_module: the module that the model is a part of, if that is sharded as a whole (FSDP);
            None for the model.
        parameters: by name, what to measure in place of the model's own parameters and buffers,
            such as averages of them; the model keeps its own.
        former: what an earlier call returned for this model; it is taken over while its modules and
            hooks are the same.

    Raises:
        TypeError, ValueError, RuntimeError: as :func:`measure` does.
    """
    probe = measurement.probe
    options = measurement.options
    root = model if root_module is None else root_module
    # a model that is measured in place and then restored cannot run with other parameters
    fits = (
        former is not None and former.fits(root) and not (parameters and former.way == "restored")
    )
    # all ranks take part, also one that has nothing from before: the others would wait for it
    if not all(ranks.all_gather(fits)):
        former = None
        _check(model, root, measurement, ranks)
    with ranks.sync_errors():
        if former is not None and parameters:
            prepared = replace(former, parameters=own_names(former.module, parameters))
        elif former is not None:
            prepared = former
        else:
            prepared = prepare(
                model,
                probe,
                options.layers,
                forward=options.forward,
                root_module=root_module,
                parameters=parameters,
                keep_hooks=options.keep_hooks,
            )
        if not prepared.causal and prepared.forward is None and probe.inputs is None:
            check_padding(prepared, probe)
        # undecidable: blocks that begin as the identity
        if not prepared.causal or None in prepared.causal.values():
            prepared = replace(prepared, causal=causality(prepared, probe))
    return prepared


@plain_state()
def measure_with(
    prepared: RunnableModel,
    measurement: Measurement,
    *,
    checkpoint: Checkpoint | None = None,
    on_error: OnError = "raise",
    progress: Progress = no_progress,
    ranks: Ranks = ALONE,
    state_cache: StateCache | None = None,
    last_step: BlockWeights | None = None,
) -> Profile:
    """Measure a model that :func:`prepare_for` has prepared for this measurement.

    In this order:

    1. The requests say what has to be captured beside the states of the layers.
    2. What all layers share is found: the output head, the final norm, the weights.
    3. An encoder runs over the probe with masked tokens, if its loss is measured.
    4. The model runs over the probe, and its states are kept: on several ranks, each gets every
       size-th layer.
    5. Layer after layer, each request becomes rows, and the layer's states are freed.
    6. The ranks exchange their rows, so that each returns all of them.

    Args:
        prepared: the model, as :func:`prepare_for` returns it.
        measurement: what is measured, how, and on which tokens.
        last_step: gradients of the training step before, and the weights that it changed; None
            outside of a training.
        checkpoint, on_error, progress, ranks, state_cache: as for :func:`measure`.
    """
    start = time.perf_counter()
    steps = _Steps(prepared=prepared, measurement=measurement, ranks=ranks, progress=progress)
    name = checkpoint.model if checkpoint is not None else ""
    checkpoint = replace(checkpoint or Checkpoint(), **prepared.description)
    checkpoint = replace(checkpoint, model=name or checkpoint.model)
    if "previous_checkpoint" not in measurement.captures:
        # no metric reads them, and the states of all layers are large files
        state_cache = None
    if state_cache is not None:
        # states that a killed process left at this step do not count as long as it is not complete
        state_cache.begin(checkpoint.step)
    context = steps.context(checkpoint, state_cache, last_step)
    # before the states, so that those of the masked probe are freed before these are made
    loss = steps.prepare_loss(checkpoint, context) if measurement.options.probe_loss else None
    states = steps.states(context)
    forward_done = time.perf_counter()
    rows_by_layer = steps.rows_by_layer(states, context, checkpoint, loss, on_error)
    if state_cache is not None:
        state_cache.complete(checkpoint.step)
    rows = _of_all_ranks(rows_by_layer, ranks)
    return Profile(
        rows=[row for row in rows if row.layer is not None],
        checkpoint=checkpoint,
        scalars=[row for row in rows if row.layer is None],
        forward_seconds=forward_done - start,
        kernel_seconds=time.perf_counter() - forward_done,
    )


@dataclass(frozen=True, kw_only=True)
class _Steps:
    """The steps of :func:`measure_with`, and what they share."""

    prepared: RunnableModel
    measurement: Measurement
    ranks: Ranks
    progress: Progress

    def context(
        self,
        checkpoint: Checkpoint,
        state_cache: StateCache | None,
        last_step: BlockWeights | None,
    ) -> CheckpointContext:
        """Find what the metrics of all layers share, as far as any of them needs it."""
        context = CheckpointContext(
            state_cache=state_cache,
            step=checkpoint.step,
            n_neighbours=self.measurement.n_neighbours,
        )
        with self.ranks.sync_errors():
            if self.measurement.needs_output_head:
                context.output_head = find_output_head(self.prepared, self._a_batch())
            if self.measurement.needs_final_norm:
                context.final_norm = find_final_norm(self.prepared, self._a_batch())
        if self.measurement.captures & WEIGHT_CAPTURES:
            context.weights = _weights(self.prepared, last_step)
        return context

    def prepare_loss(self, checkpoint: Checkpoint, context: CheckpointContext) -> ProbeLoss:
        """Return what computes the loss on the probe once the states of the last layer are there.

        An encoder is run here, over the probe with masked tokens: what it predicts for them cannot
        be read from states that have seen them.
        """

        def states_of(masked_probe: Probe) -> States:
            progress = partial(self.progress, "masked forward")
            return self._capture(masked_probe, ["all"], progress=progress)

        return ProbeLoss(
            probe=self.measurement.probe,
            causal=checkpoint.causal,
            head=context.output_head or "",
            capture=states_of,
        )

    def states(self, context: CheckpointContext) -> States:
        """Run the model over the probe, and return the states of its layers; its attention weights
        go to the context, if a metric needs them.
        """
        measurement = self.measurement
        states = self._capture(
            measurement.probe,
            measurement.subsets,
            captures=measurement.captures,
            progress=partial(self.progress, "forward"),
        )
        if "attention_weights" in measurement.captures:
            with self.ranks.sync_errors():
                context.attention = attention_weights(self.prepared, measurement.probe)
        return states

    def rows_by_layer(
        self,
        states: States,
        context: CheckpointContext,
        checkpoint: Checkpoint,
        loss: ProbeLoss | None,
        on_error: OnError,
    ) -> list[list[Row]]:
        """Return the rows of each layer of this rank; those of the loss are with the last layer."""
        rows_by_layer = []
        n_layers = len(states.layers)
        measurement = self.measurement
        # the metrics of a layer do not communicate: an error waits for the end of all ranks' layers
        with self.ranks.sync_errors():
            for number in range(n_layers):
                view = LayerView(
                    layer=states.take(), states=states, probe=measurement.probe, context=context
                )
                layer = view.layer
                rows = rows_of_layer(
                    view,
                    measurement.requests,
                    # of an encoder-decoder, the decoder alone is causal
                    replace(checkpoint, causal=self.prepared.causal[layer.stack]),
                    measurement.options.choice,
                    on_error,
                    part_of(partial(self.progress, "kernels"), number, n_layers),
                )
                # the last stack is the decoder of an encoder-decoder: the output head reads it
                if loss is not None and layer.is_last and layer.stack == self.prepared.stacks[-1]:
                    rows += loss.rows(layer, states, checkpoint, on_error)
                rows_by_layer.append(rows)
                # the layer's vectors are freed before those of the next one are made
                del view, layer
            self.progress("kernels", 1.0)
        return rows_by_layer

    def _capture(self, probe: Probe, subsets: Sequence[str], **options: Any) -> States:
        return capture(
            self.prepared,
            probe,
            subsets,
            tokens_per_forward=self.measurement.options.tokens_per_forward,
            states_bytes=self.measurement.options.states_bytes,
            ranks=self.ranks,
            **options,
        )

    def _a_batch(self) -> Tensor:
        # the smallest forward pass: one window shows whether a head or a norm is the right one
        return next(self.measurement.probe.batches(1)).input_ids


def _of_all_ranks(rows_by_layer: list[list[Row]], ranks: Ranks) -> list[Row]:
    """Return the rows of all layers in their order; the layers are dealt to the ranks in turn."""
    if ranks.size == 1:
        return [row for rows in rows_by_layer for row in rows]
    by_rank = ranks.all_gather(rows_by_layer)
    n_layers = sum(map(len, by_rank))
    return [
        row
        for number in range(n_layers)
        for row in by_rank[number % ranks.size][number // ranks.size]
    ]


def _weights(prepared: RunnableModel, last_step: BlockWeights | None) -> BlockWeights | str:
    """Return the model's weights by name, or why they are not known."""
    if is_sharded(prepared.root_module):
        return "the weights are sharded"
    # tied weights have a name in each module that uses them
    now = dict(prepared.module.named_parameters(remove_duplicate=False)) | dict(prepared.parameters)
    for name, module in prepared.module.named_modules():
        if isinstance(module, _CONVOLUTIONS) and (weight := f"{name}.weight") in now:
            # a kernel is one matrix of outputs by inputs; other weights of three dimensions are
            # stacks of matrices, one for each expert
            now[weight] = now[weight].flatten(1)
    return BlockWeights(now) if last_step is None else replace(last_step, now=now)


def _check(model: nn.Module, root: nn.Module, measurement: Measurement, ranks: Ranks) -> None:
    """Check what is given to :func:`prepare_for`, and that all ranks are given the same."""
    probe = measurement.probe
    check_model(model)
    check_probe(probe)
    if measurement.requests and measurement.options.probe_loss and probe.inputs is not None:
        raise ValueError(
            "expected a probe of tokens for probe_loss=True, got one of other inputs; leave it out"
        )
    if ranks.size == 1 and dist.is_initialized() and dist.get_world_size() > 1 and is_sharded(root):
        # it would wait for the others forever
        raise ValueError(
            f"expected all {dist.get_world_size()} ranks to measure this sharded "
            f"{class_name(unwrapped(root))} together, got one; call measure(..., "
            "ranks=Ranks.of_job()) on each of them"
        )
    if ranks.size > 1:
        what = {
            "probe": probe.hash,
            "metrics": measurement.identity,
            "tokens_per_forward": measurement.options.tokens_per_forward,
        }
        ranks.require_same("what is measured", what)


def check_model(model: object) -> None:
    """Raise TypeError unless a model is a module of torch."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"expected the model as a torch.nn.Module, got {type(model).__name__}; pass the module "
            "that is trained, and a function that calls it in a way of its own as forward="
        )


def check_probe(probe: object) -> None:
    """Raise TypeError unless a probe is one."""
    if isinstance(probe, Probe):
        return
    # a test set, say: the error names the constructor that takes it
    how = (
        "Probe.from_tokens(tokens)"
        if isinstance(probe, Tensor | list)
        else "Probe.from_texts(texts, tokenizer)"
    )
    # so Hydra passes on a dataclass that is a keyword argument
    if type(probe).__name__ == "DictConfig":
        how = f"{how}, and give it to Hydra by position: instantiate(config, probe)"
    raise TypeError(f"expected a repdyn.Probe, got {type(probe).__name__}; make one with {how}")
