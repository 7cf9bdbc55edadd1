"""measure: model + probe + metrics -> rows. The one path that live tracking and offline sweeps share."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import pandas as pd
import torch
import torch.distributed as dist
from torch import nn

from repdyn.capture.attention import attention_weights
from repdyn.capture.blocks import LayerPatterns, pattern_list, unwrapped
from repdyn.capture.capture import capture, causality
from repdyn.capture.forward import Forward
from repdyn.capture.fsdp import check_no_tensor_parallelism, class_name, count_parameters, is_sharded
from repdyn.capture.prepared_model import PreparedModel, prepare
from repdyn.capture.states import STATES_BYTES, CaptureKind
from repdyn.capture.token_states import TokenPositions, positions_name
from repdyn.measurement.rows import OnError, rows_of_layer
from repdyn.metrics import DEFAULT_METRICS, CheckpointContext, LayerView, MetricLike, resolve
from repdyn.probe import Probe
from repdyn.probe.content import token_subset
from repdyn.store.schema import Checkpoint, Row, to_pandas, to_table
from repdyn.store.state_cache import StateCache
from repdyn.utils.distributed import ALONE, Ranks

Progress: TypeAlias = Callable[[str, float], None]


def no_progress(what: str, share: float) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True)
class Profile:
    """The geometry of one checkpoint, layer by layer."""

    rows: list[Row]
    checkpoint: Checkpoint
    """What was measured, with what the model told of itself."""
    forward_seconds: float
    """Wall-clock time of running the model over the probe."""
    kernel_seconds: float
    """Wall-clock time of computing the metrics."""

    def to_pandas(self) -> pd.DataFrame:
        """One line for each layer, metric and subset; columns as in :class:`repdyn.store.schema.Row`."""
        return to_pandas(to_table(self.rows))


def measure(
    model: nn.Module,
    probe: Probe,
    metrics: str | Sequence[MetricLike] = DEFAULT_METRICS,
    layers: LayerPatterns = None,
    *,
    forward: Forward | None = None,
    token_positions: TokenPositions | None = None,
    tokens_per_forward: int = 8192,
    states_bytes: int = STATES_BYTES,
    checkpoint: Checkpoint | None = None,
    on_error: OnError = "raise",
    progress: Progress = no_progress,
    root_module: nn.Module | None = None,
    ranks: Ranks = ALONE,
    state_cache: StateCache | None = None,
) -> Profile:
    """Measure the geometry of every layer of a model on a probe.

    The model runs in evaluation mode, in the precision of its own weights, and is left as it was found. What a
    kernel cannot define is NaN in the row, with the reason beside it.

    Args:
        model: a Hugging Face model or any module built of a list of blocks.
        probe: the tokens, and which of their vectors are taken.
        metrics: names in :data:`repdyn.metrics.METRICS`, with settings and a token subset where others than the usual
            ones are wanted ("two_nn", "two_nn@no_sink", "two_nn[discard=0.8]"), or Metric objects; "all" for every
            metric that the probe has what it takes for.
        layers: name pattern of the blocks ("model.layers.*"), or several; patterns by name of the stack,
            ``{"encoder": "encoder.layers.*", "decoder": "decoder.layers.*"}``, where a model has several stacks; None
            finds them, both stacks of a Hugging Face encoder-decoder too.
        forward: ``forward(model, batch)`` runs the model on a :class:`repdyn.probe.ProbeBatch`; None calls it with
            ``input_ids`` and, where it takes one, ``attention_mask``. The decoder of an encoder-decoder is given the
            same tokens as its encoder.
        token_positions: which positions of the states are the tokens', in a model that puts learned vectors among them
            (meta tokens, a tuned prompt, registers): a slice of the positions, ``slice(k, None)`` where k vectors stand
            before the tokens; or a function from states (n_sequences, n_positions, dim) and the ProbeBatch to the
            states of its tokens, (n_sequences, length, dim). None where each position is a token's.
        tokens_per_forward: bounds the size of one forward pass.
        states_bytes: how much the layers' states may take in memory, all together, on the model's device; what is
            beyond waits in the system's temporary folder (TMPDIR), with the same values in the end.
        checkpoint: names what is measured in the rows; what the model itself tells (class, size, device) is filled in.
        on_error: what to do when a kernel fails (out of memory, say): "raise", or "record" it as NaN with the error as
            the reason and go on with the rest.
        progress: called with "forward" or "kernels" and the share of it that is done, in [0, 1].
        root_module: what the model is a part of, where that is sharded as a whole (FSDP); None for the model itself.
        ranks: processes that measure together, ``Ranks.of_job()`` in a job of several. All of them call, and all get
            the whole profile; the forward passes and the layers are shared out. Needed for a sharded model.
        state_cache: keeps the states of the previous checkpoints, for metrics that compare with them, and of
            this one.

    Returns:
        A profile with one row for each layer (0 is the embedding output), metric and token subset, stack after stack;
        and one for each attention head, where a metric has a value for each.

    Raises:
        ValueError: an unknown metric, blocks that cannot be told, states that depend on what stands in a padded probe's
            padding, layers that lie on several devices, or ranks that differ.
        RuntimeError: a block that did not run, or does not pass one vector for each token; found blocks that do not
            pass states from one to the next; or a rank that failed.
        OSError: the temporary folder has too little space for the states beyond ``states_bytes``.
    """
    pairs = resolve(metrics, probe)
    captures: frozenset[CaptureKind] = frozenset().union(*(metric.captures for metric, _ in pairs))
    _check_sharding(model if root_module is None else root_module, ranks)
    asked_for = metric_set(metrics, layers, probe, token_positions=token_positions)
    ranks.require_same(
        "what is measured",
        {"probe": probe.hash, "metrics": asked_for, "tokens_per_forward": tokens_per_forward},
    )
    with ranks.sync_errors():
        prepared = prepare(model, layers, forward=forward, token_positions=token_positions, root_module=root_module)
        causal = causality(prepared, probe, states_bytes=states_bytes)
    measured = _described(checkpoint or Checkpoint(), model, prepared, _agreed(causal))
    kept = state_cache if "previous_checkpoint" in captures else None
    if kept is not None:
        kept.begin(measured.step)
    start = time.perf_counter()
    states = capture(
        prepared,
        probe,
        sorted(
            {token_subset(subset) for _, subset in pairs} | ({"all"} if "previous_checkpoint" in captures else set())
        ),
        captures=captures,
        causal=measured.causal is True,
        tokens_per_forward=tokens_per_forward,
        states_bytes=states_bytes,
        progress=partial(progress, "forward"),
        ranks=ranks,
    )
    attention = None
    if "attention_weights" in captures:
        with ranks.sync_errors():
            attention = attention_weights(prepared, probe)
    captured = time.perf_counter()
    asked: dict[str, Any] = {
        "n_neighbours": max(2, *(metric.n_neighbours for metric, _ in pairs)),
        "whole_spectrum": any(metric.whole_spectrum for metric, _ in pairs),
        "context": CheckpointContext(attention, kept, measured.step),
    }
    choice = choice_of(layers, token_positions)
    of_layers = []
    n_layers = len(states.layers)
    with ranks.sync_errors():
        for done in range(n_layers):
            progress("kernels", done / n_layers)
            named = replace(measured, causal=causal[states.layers[0].stack])
            # the layer has no name here, so that it is let go before the next one is taken
            of_layers.append(
                rows_of_layer(LayerView(states.take(), states, probe, model, **asked), pairs, named, choice, on_error)
            )
        progress("kernels", 1.0)
    if kept is not None:
        kept.seal(measured.step)
    return Profile(
        _of_all(of_layers, ranks),
        measured,
        forward_seconds=captured - start,
        kernel_seconds=time.perf_counter() - captured,
    )


def _check_sharding(model: nn.Module, ranks: Ranks) -> None:
    """One rank that runs its shard alone would wait for the others for ever."""
    check_no_tensor_parallelism(model)
    if ranks.size == 1 and dist.is_initialized() and dist.get_world_size() > 1 and is_sharded(model):
        raise ValueError(
            f"expected all {dist.get_world_size()} ranks to measure this sharded {class_name(unwrapped(model))} "
            "together, got one; call measure(..., ranks=Ranks.of_job()) on each of them"
        )


def _of_all(of_layers: list[list[Row]], ranks: Ranks) -> list[Row]:
    """The rows of all layers in their order, from those of the layers that were dealt to each rank."""
    if ranks.size == 1:
        return [row for rows in of_layers for row in rows]
    told = ranks.all_gather([[asdict(row) for row in rows] for rows in of_layers])
    in_order = (told[number % ranks.size][number // ranks.size] for number in range(sum(map(len, told))))
    return [Row(**row) for rows in in_order for row in rows]


def metric_set(
    metrics: str | Sequence[MetricLike],
    layers: LayerPatterns = None,
    probe: Probe | None = None,
    dtype: str = "auto",
    *,
    token_positions: TokenPositions | None = None,
) -> str:
    """8 hexadecimal digits naming what is measured: metrics, their settings and subsets, the layers, the positions.

    Args:
        metrics, layers, probe, token_positions: as for :func:`measure`.
        dtype: precision the weights were turned into; "auto" for their own.
    """
    chosen = sorted((metric.name, metric.settings_json, subset) for metric, subset in resolve(metrics, probe))
    turned = [] if dtype == "auto" else [dtype]
    return hashlib.sha256(json.dumps([chosen, choice_of(layers, token_positions), *turned]).encode()).hexdigest()[:8]


def choice_of(layers: LayerPatterns, token_positions: TokenPositions | None = None) -> str:
    """The choice of layers as rows record it: patterns as JSON, "" where the blocks are to be found.

    A choice of token positions is recorded with it: what is measured at other positions does not compare.

    >>> choice_of(None), choice_of("blocks.*"), choice_of({"encoder": "encoder.layers.*"})
    ('', '["blocks.*"]', '{"encoder": ["encoder.layers.*"]}')
    >>> choice_of("blocks.*", slice(2, None))
    '{"layers": ["blocks.*"], "token_positions": "2:"}'

    Raises:
        ValueError: patterns or positions that are none.
    """
    if token_positions is not None:
        patterns = choice_of(layers)
        blocks = json.loads(patterns) if patterns else None
        return json.dumps({"layers": blocks, "token_positions": positions_name(token_positions)})
    if layers is None:
        return ""
    if isinstance(layers, Mapping):
        return json.dumps({stack: pattern_list(patterns) for stack, patterns in layers.items()}, sort_keys=True)
    return json.dumps(pattern_list(layers))


def _agreed(causal: Mapping[str | None, bool | None]) -> bool | None:
    """What all stacks have in common; None where they differ, as an encoder and a decoder do."""
    return next(iter(causal.values())) if len(set(causal.values())) == 1 else None


def _described(checkpoint: Checkpoint, model: nn.Module, prepared: PreparedModel, causal: bool | None) -> Checkpoint:
    """The checkpoint with what its model tells of itself."""
    device = prepared.device
    return replace(
        checkpoint,
        model=checkpoint.model or class_name(model),
        causal=causal,
        parameters=count_parameters(model, prepared.root_module),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        attention=getattr(getattr(model, "config", None), "_attn_implementation", None),
    )
