"""A trial of a model on a few windows of a probe: how it is called, and what to do where it does not run."""

from __future__ import annotations

import inspect
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from repdyn.capture.after_attention import outputs_by_slot
from repdyn.capture.capture import record
from repdyn.capture.forward import call_with_dict, call_with_ids, call_with_inputs, call_with_tokens, parameters_of
from repdyn.capture.fsdp import class_name
from repdyn.capture.library_classes import is_pretrained_model
from repdyn.capture.prepared_model import PreparedModel
from repdyn.capture.states import STATES_BYTES
from repdyn.capture.token_states import split_where_square
from repdyn.probe import Probe, ProbeBatch
from repdyn.probe.content import padded_batches
from repdyn.probe.input_batches import first_input

_PACKAGE = Path(__file__).parents[1]
_TIMED_SHARE = 8
"""A trial times at most one in so many of a probe's windows."""
_VALUES = {
    "attention_mask": "batch.attention_mask",
    "mask": "batch.attention_mask",
    "labels": "batch.input_ids",
    "targets": "batch.input_ids",
}


@dataclass(frozen=True)
class Expected:
    """Expected time of running a model on a probe, and the vectors that it gives."""

    forward_seconds: float
    """About how long all forward passes take; windows that a causal model reads in part are counted in full."""
    vectors: list[Tensor]
    """(dim,) one vector of each layer."""


def choose_way(model: PreparedModel, probe: Probe) -> PreparedModel:
    """Return the model with the way to call it that works on a window, where its signature leaves that open.

    With ``input_ids`` and what else the forward names; with the ids alone; with one dictionary of both. Where none
    works, the first, whose error then says why. On a probe of inputs, with these.
    """
    if probe.inputs is not None:
        if model.token_positions is not None:
            raise ValueError(
                "expected token_positions= of a probe of tokens, got a probe of inputs; use its positions="
            )
        prepared = replace(model, way=call_with_inputs, takes_inputs=True)
        return replace(prepared, positions_first=_has_positions_first(prepared, probe))
    if model.forward is not None or not _leaves_open(model):
        return model
    batch = _windows(probe)
    for way in (call_with_tokens, call_with_ids, call_with_dict):
        tried = replace(model, way=way)
        try:
            with tried.evaluating() as run:
                run(batch)
        except Exception:  # the error of the first way appears again
            continue
        return tried
    return model


def _has_positions_first(model: PreparedModel, probe: Probe) -> bool:
    """Return whether states of a single input are (n_positions, 1, dim), as in few models."""
    shapes: list[torch.Size] = []
    first = first_input(next(probe.batches(1)))
    try:
        with ExitStack() as hooks, model.evaluating() as run:
            for block in model.blocks:
                keep = partial(_keep_shapes, shapes)
                hooks.enter_context(block.module.register_forward_hook(keep))
            run(first)
    except Exception:  # whatever it is appears again on a whole batch
        return False
    return any(shape[1] == 1 < shape[0] for shape in shapes) and not any(shape[0] == 1 < shape[1] for shape in shapes)


def _keep_shapes(shapes: list[torch.Size], _module: nn.Module, _args: tuple, output: Any) -> None:
    parts = outputs_by_slot(output).values()
    shapes += [part.shape for part in parts if isinstance(part, Tensor) and part.ndim == 3]


def try_model(model: PreparedModel, probe: Probe) -> None:
    """Run a model on up to three windows of a probe that ask most of it; it is left as it was.

    Raises:
        ValueError: the forward pass fails; with the ``forward=`` to write, or the length that the model can read.
        RuntimeError: the blocks do not run, or do not pass on states of the tokens.
        OSError, MemoryError, torch.OutOfMemoryError: what the machine lacks, which another configuration may not mend.
    """
    batch = _windows(probe)
    model = choose_way(model, probe)
    try:
        _record(model, batch)
    except (OSError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if _is_own(error):
            raise
        raise ValueError(_explain(model, batch, error)) from error


def expect(model: PreparedModel, probe: Probe, tokens_per_forward: int) -> Expected:
    """Run a model on one batch such as a measurement runs, and return what a whole probe takes."""
    model = choose_way(model, probe)
    n_windows = len(probe.lengths)
    size = min(max(1, tokens_per_forward // int(probe.lengths.max())), -(-n_windows // _TIMED_SHARE))
    batch = split_where_square(next(probe.batches(size)), model.token_positions)[0]
    seconds, rows = 0.0, np.full(len(batch.tokens), -1)
    rows[0] = 0  # a single vector shows the size of all

    def timed() -> Iterator[ProbeBatch]:
        nonlocal seconds
        start = time.perf_counter()
        yield batch
        if model.device.type != "cpu" and torch.accelerator.is_available():
            torch.accelerator.synchronize(model.device)
        seconds = time.perf_counter() - start

    layers = record(model, timed(), rows, STATES_BYTES).layers
    return Expected(seconds * n_windows / len(batch.input_ids), [layer.states[0] for layer in layers])


def _leaves_open(model: PreparedModel) -> bool:
    """Return whether a forward could take the tokens in several ways: any keywords, or one thing of no known type."""
    if is_pretrained_model(model.module):
        return False
    parameters = list(parameters_of(model.module).values())
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return True
    required = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    return len(required) == 1 and "Tensor" not in str(required[0].annotation) and required[0].name != "input_ids"


def _windows(probe: Probe) -> ProbeBatch:
    """Return the windows of a probe that ask most of a model: the longest, that of the largest id, and the shortest.

    Of a probe of inputs it is the first batch.
    """
    if probe.inputs is not None:
        return next(probe.batches(1))
    windows = probe.tokens.split(probe.lengths.tolist())
    largest = int(probe.window_of(probe.tokens.argmax().numpy()))
    numbers = [int(probe.lengths.argmax()), largest, int(probe.lengths.argmin())]
    chosen = [windows[number] for number in dict.fromkeys(numbers)]
    lengths = torch.tensor([len(window) for window in chosen])
    return next(padded_batches(torch.cat(chosen), lengths, probe.pad_id, len(chosen)))


def _record(model: PreparedModel, batch: ProbeBatch) -> None:
    record(model, [batch], np.arange(len(batch.tokens)), STATES_BYTES)


def _is_own(error: Exception) -> bool:
    """Return whether an error was raised by this package, whose messages say what to do, rather than by the model."""
    # operations of the model pass through modes of this package
    frames = [each for each in traceback.extract_tb(error.__traceback__) if each.name != "__torch_function__"]
    return _PACKAGE in Path(frames[-1].filename).resolve().parents if frames else False


def _explain(model: PreparedModel, batch: ProbeBatch, error: Exception) -> str:
    name, length = class_name(model.module), batch.input_ids.shape[1]
    failure = f"{type(error).__name__}: {error}"
    if model.takes_inputs:
        how = "forward= to run" if model.forward is not None else "the inputs to run"
        return (
            f"expected {how} {name}.forward{_signature(model)}, got {failure}; name the inputs as the forward does, "
            "give them as a tuple in its order, or run the model with forward=lambda model, batch: model(batch.inputs)"
        )
    if (known := _largest_known_id(model, batch)) is not None:
        return (
            f"expected token ids that the model knows, got a probe whose ids go up to {int(batch.input_ids.max())}, of "
            f"which {name} runs on those up to {known} ({failure}); is it the model's tokenizer that made the probe?"
        )
    # of the smallest id, so that both faults are found one after the other
    readable = _longest_that_runs(model, _of_one_id(batch, int(batch.input_ids.min())))
    if readable:
        return (
            f"expected windows that the model can read, got windows of {length} tokens, of which {name} reads "
            f"{readable} ({failure}); make the probe with sequence_length={readable}, or of sequences of that length"
        )
    if model.forward is not None:
        return f"expected forward= to run {name} on a ProbeBatch of shape {tuple(batch.input_ids.shape)}, got {failure}"
    return (
        f"expected {name}.forward{_signature(model)} to run on token ids up to "
        f"{int(batch.input_ids.max())} of shape {tuple(batch.input_ids.shape)}, got {failure}; where it takes "
        f"something else, say how to run it: forward={_example(model)}"
    )


def _largest_known_id(model: PreparedModel, batch: ProbeBatch) -> int | None:
    """Return the largest token id of which the model runs on a whole window; None if the ids are not why it fails."""
    smallest, largest = int(batch.input_ids.min()), int(batch.input_ids.max())

    def runs_on(token: int) -> bool:
        return _runs(model, _of_one_id(batch, token), batch.input_ids.shape[1])

    if smallest == largest or runs_on(largest) or not runs_on(smallest):
        return None
    known, unknown = smallest, largest
    while unknown - known > 1:
        middle = (known + unknown) // 2
        known, unknown = (middle, unknown) if runs_on(middle) else (known, middle)
    return known


def _of_one_id(batch: ProbeBatch, token: int) -> ProbeBatch:
    return replace(batch, input_ids=torch.full_like(batch.input_ids, token))


def _longest_that_runs(model: PreparedModel, batch: ProbeBatch) -> int:
    """Return the largest number of tokens of the first window that the model runs on; 0 if there is none."""
    longest, tried = 0, batch.input_ids.shape[1]
    for length in _halves(tried):
        if _runs(model, batch, length):
            longest = length
            break
        tried = length
    while longest and tried - longest > 1:
        middle = (longest + tried) // 2
        longest, tried = (middle, tried) if _runs(model, batch, middle) else (longest, middle)
    return longest


def _halves(length: int) -> Iterator[int]:
    while (length := length // 2) > 1:
        yield length


def _runs(model: PreparedModel, batch: ProbeBatch, length: int) -> bool:
    ids, mask = batch.input_ids[:1, :length], batch.attention_mask[:1, :length]
    numbers = np.arange(length)
    try:
        with model.evaluating() as run:
            run(ProbeBatch(ids, mask, numbers, numbers))
    except Exception:  # whatever it is, the model does not run
        return False
    return True


def _signature(model: PreparedModel) -> str:
    return f"({', '.join(parameters_of(model.module))})"


def _example(model: PreparedModel) -> str:
    """Return a function for ``forward=`` as source, with a value for each argument that the forward requires."""
    required = [p.name for p in parameters_of(model.module).values() if p.default is p.empty and p.kind < p.VAR_KEYWORD]
    first, *others = required or ["input_ids"]
    if not others and first in {"batch", "inputs", "features", "sample"}:
        return 'lambda model, batch: model({"input_ids": batch.input_ids, "attention_mask": batch.attention_mask})'
    values = ["batch.input_ids", *(f"{name}={_VALUES.get(name, '...')}" for name in others)]
    return f"lambda model, batch: model({', '.join(values)})"
