"""Inputs of any kind as a probe: images, waveforms, pairs; and which positions of a model's states
count as vectors.

How many positions an input has is only known inside the model, and differs between its layers where
it merges patches or samples down. A probe of inputs therefore takes the same number of vectors of
each input at every layer. The number of positions that count is cut into as many equal parts, and
one position of each is taken, by a number drawn once.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from repdyn.probe.bounds import MAX_WINDOWS, evenly
from repdyn.probe.content import ProbeBatch
from repdyn.probe.design import AUDIO, IMAGES, INPUTS, Design, fitting
from repdyn.utils.internals import map_tensors

InputBatch: TypeAlias = Mapping[str, Any] | tuple[Any, ...]
"""Arguments of a model's forward by name, or in their order."""
CountingRule: TypeAlias = slice | str | Callable[[Tensor, InputBatch], Tensor] | None
"""Which positions of states count: a slice of them; the name of a mask among the inputs; a function
from states (n_inputs, n_positions, dim) and the inputs to a mask (n_inputs, n_positions); None for
all."""
Positions: TypeAlias = CountingRule | Mapping[str, CountingRule]
"""A rule, or one for each stack."""
Causal: TypeAlias = bool | Mapping[str, bool | None] | None
"""Whether no position sees a later one, or that of each stack; None where it is not known."""

VECTORS_PER_INPUT = 8
"""Number of vectors that are taken of each input, unless another is requested."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """Batches of a model's inputs, and which of the positions are vectors."""

    batches: tuple[InputBatch, ...]
    """Each as it goes through the model in one forward pass."""
    positions: Positions
    causal: Causal
    vectors_per_input: int

    def rule(self, stack: str | None) -> CountingRule:
        """Return which positions of a stack count."""
        return _of_stack(self.positions, stack, "positions")

    def is_causal(self, stack: str | None) -> bool | None:
        """Return whether no position of a stack sees a later one; None where it is not known."""
        return _of_stack(self.causal, stack, "causal")

    def update_hash(self, digest: Any) -> None:
        """Add the inputs and the choice of positions to a digest."""
        digest.update(
            json.dumps(
                ["inputs", rules_as_json(self.positions, names=True), self.vectors_per_input]
            ).encode()
        )
        for batch in self.batches:
            for name, value in _items(batch):
                header = (
                    [name, list(value.shape), str(value.dtype)]
                    if isinstance(value, Tensor)
                    else [name, value]
                )
                # the shape and type too: the same bytes of another shape are another input
                digest.update(json.dumps(header).encode())
                if isinstance(value, Tensor):
                    digest.update(
                        value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
                    )


def inputs_fields(
    batches: Iterable[Any],
    positions: Positions,
    causal: Causal,
    max_vectors: int,
    batch_vectors: int | None,
    vectors_per_input: int | None,
) -> dict[str, Any]:
    """Return the fields of a probe of inputs; arguments as for :meth:`repdyn.Probe.from_inputs`."""
    if isinstance(batches, Tensor | Mapping | str):
        raise ValueError(
            f"expected several batches of inputs, got one {type(batches).__name__}; put it into a "
            "list, Probe.from_inputs([batch])"
        )
    copied = tuple(as_batch(batch) for batch in batches)
    rules_as_json(positions, names=True)  # raises for a rule that does not identify a probe
    plan = INPUTS.batch_plan(max_vectors, batch_vectors, n_tokens=0)
    size = plan["batch_vectors"]
    n_batches = plan["n_batches"]
    of_each = VECTORS_PER_INPUT if vectors_per_input is None else vectors_per_input
    copied = _evenly_spaced(copied, max(MAX_WINDOWS, n_batches * -(-size // max(of_each, 1))))
    n_inputs = sum(map(batch_size, copied))
    if n_inputs < 1 or of_each < 1:
        raise ValueError(
            f"expected at least 1 input and 1 vector of each, got {n_inputs} inputs, {of_each} of "
            "each"
        )
    # a batch takes whole inputs, so that no two share one
    filled = min(n_batches, n_inputs // max(1, -(-size // of_each))) * size
    return {
        "tokens": torch.zeros(n_inputs * of_each, dtype=torch.int64),
        "lengths": torch.full((n_inputs,), of_each, dtype=torch.int64),
        "design": _design_of(copied[0]) if copied else INPUTS,
        "inputs": Inputs(
            batches=copied, positions=positions, causal=causal, vectors_per_input=of_each
        ),
        **fitting(plan, available=filled or n_inputs * of_each),
    }


def _evenly_spaced(batches: tuple[InputBatch, ...], count: int) -> tuple[InputBatch, ...]:
    """Return batches of at most so many inputs, evenly spaced over all."""
    sizes = [*map(batch_size, batches)]
    if sum(sizes) <= count:
        return batches
    chosen = evenly(sum(sizes), count)
    smaller = []
    first = 0
    for batch, size in zip(batches, sizes, strict=True):
        within = torch.from_numpy(chosen[(chosen >= first) & (chosen < first + size)] - first)
        first += size
        if len(within):
            smaller.append(map_tensors(lambda x, rows=within: x[rows] if x.ndim else x, batch))
    return tuple(smaller)


def _design_of(batch: InputBatch) -> Design:
    """Return the design that says what inputs are, by the names that transformers gives them, or
    four dimensions.
    """
    tensors = {name: value for name, value in _items(batch) if isinstance(value, Tensor)}
    # neither masks nor what a decoder reads
    encoded = {
        name: value
        for name, value in tensors.items()
        if "mask" not in name and not name.startswith("decoder")
    }
    if all(_is_image(name, value) for name, value in encoded.items()):
        return IMAGES
    if all(name in {"input_features", "input_values"} for name in encoded):
        return AUDIO
    return INPUTS


def _is_image(name: str, value: Tensor) -> bool:
    return name.startswith("pixel") or (value.ndim == 4 and value.is_floating_point())


def as_batch(batch: Any) -> InputBatch:
    """Return a copy of a batch in memory, as a mapping or a tuple."""
    if isinstance(batch, Mapping):
        values: Any = dict(batch)
    elif isinstance(batch, list | tuple):
        values = tuple(batch)
    else:
        values = (batch,)
    items = [(name, _copied(value)) for name, value in _items(values)]
    sizes = {len(value) for _, value in items if isinstance(value, Tensor) and value.ndim}
    allowed = Tensor | bool | int | float | str | None
    is_unknown = any(not isinstance(value, allowed) for _, value in items)
    if len(sizes) != 1 or is_unknown or 0 in sizes:
        got = ", ".join(f"{name}: {_shown(value)}" for name, value in items)
        raise ValueError(
            "expected each batch as a tensor, a tuple of tensors or a dictionary of tensors, whose "
            f"first dimension is the number of inputs, got {got or 'nothing'}; give the batches as "
            "the model's forward takes them"
        )
    return dict(items) if isinstance(values, dict) else tuple(value for _, value in items)


def _shown(value: Any) -> object:
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__


def batch_size(batch: InputBatch) -> int:
    """Return the number of inputs in a batch."""
    return next(
        len(value) for _, value in _items(batch) if isinstance(value, Tensor) and value.ndim
    )


def moved(batch: InputBatch, device: torch.device, dtype: torch.dtype | None) -> InputBatch:
    """Return a copy of a batch on a device, tensors of floating type in the given precision.

    It is a copy on any device, for a forward pass that writes into its inputs: the next pass over
    the probe gets what this one got.
    """

    def copied(value: Tensor) -> Tensor:
        precision = dtype if value.is_floating_point() else None
        return value.to(device, precision, copy=True)

    return map_tensors(copied, batch)


def rules_as_json(positions: Any, *, names: bool = False) -> Any:
    """Return the choice of positions as JSON-serialisable values."""
    if isinstance(positions, Mapping):
        return {
            "stacks": {
                str(stack): rules_as_json(rule, names=names) for stack, rule in positions.items()
            }
        }
    if positions is None or isinstance(positions, str):
        return positions
    if isinstance(positions, slice):
        bounds = [positions.start, positions.stop, positions.step]
        if all(bound is None or isinstance(bound, int) for bound in bounds):
            return {"slice": bounds}
    name = getattr(positions, "__qualname__", "<lambda>")
    if callable(positions) and names and not name.endswith("<lambda>"):
        return {"function": name}
    if callable(positions) and not names:
        raise ValueError(
            "expected positions that a file can hold, a slice or the name of a mask, got the "
            f"function {name}; make the probe with Probe.from_inputs where it is needed"
        )
    raise ValueError(
        "expected positions= to be a slice, such as slice(1, None) without the first, the name of "
        "a mask among the inputs, a function defined with def, whose name distinguishes probes, or "
        f"one of these for each stack, got {positions!r}"
    )


def rules_from_json(value: Any) -> Positions:
    """Return the choice of positions that :func:`rules_as_json` wrote."""
    if not isinstance(value, dict):
        return value
    if "stacks" in value:
        stacks = value["stacks"].items()
        return {stack: rules_from_json(rule) for stack, rule in stacks}  # type: ignore[misc]
    return slice(*value["slice"])


def _of_stack(value: Any, stack: str | None, what: str) -> Any:
    if not isinstance(value, Mapping):
        return value
    if stack not in value:
        raise ValueError(
            f"expected {what}= for each stack, got {', '.join(map(repr, value))} and none for "
            f"{stack!r}; name the stacks as layers= does"
        )
    return value[stack]


def _items(batch: Any) -> list[tuple[str, Any]]:
    if isinstance(batch, Mapping):
        return list(batch.items())
    return [(str(i), value) for i, value in enumerate(batch)]


def _copied(value: Any) -> Any:
    # copies: a probe must not change with the caller's arrays
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    return value.detach().cpu().clone() if isinstance(value, Tensor) else value


def input_batches(inputs: Inputs, seed: int) -> Iterator[ProbeBatch]:
    """Yield the batches of a probe of inputs as they were given."""
    n_vectors = inputs.vectors_per_input
    sizes = [*map(batch_size, inputs.batches)]
    # the numbers in [0, 1) that choose a position in each part of each input; numpy's policy
    # freezes the stream
    draws = torch.from_numpy(np.random.RandomState(seed).random_sample((sum(sizes), n_vectors)))
    first = 0
    for batch, size in zip(inputs.batches, sizes, strict=True):
        ids = torch.zeros(size, n_vectors, dtype=torch.long)
        positions = np.arange(size * n_vectors)
        yield ProbeBatch(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            positions=positions,
            tokens=first * n_vectors + positions,
            inputs=batch,
            draws=draws[first : first + size],
            rule_of=inputs.rule,
        )
        first += size


def first_input(batch: ProbeBatch) -> ProbeBatch:
    """Return the first input of a batch of inputs as a batch of its own."""
    n = batch.input_ids.shape[1]
    return replace(
        batch,
        input_ids=batch.input_ids[:1],
        attention_mask=batch.attention_mask[:1],
        positions=batch.positions[:n],
        tokens=batch.tokens[:n],
        inputs=map_tensors(lambda value: value[:1] if value.ndim else value, batch.inputs),
        draws=batch.draws[:1],
    )


def inputs_to_tensors(inputs: Inputs) -> tuple[dict[str, Tensor], str]:
    """Return the tensors of inputs by their names in the file, and the rest as JSON."""
    tensors: dict[str, Tensor] = {}
    batches: list[dict[str, Any]] = []
    for number, batch in enumerate(inputs.batches):
        items = _items(batch)
        tensors |= {
            f"input.{number}.{name}": x.contiguous() for name, x in items if isinstance(x, Tensor)
        }
        described = [
            [str(name), None if isinstance(x, Tensor) else {"value": x}] for name, x in items
        ]
        batches.append({"named": isinstance(batch, Mapping), "values": described})
    text = {
        "positions": rules_as_json(inputs.positions),
        "causal": dict(inputs.causal) if isinstance(inputs.causal, Mapping) else inputs.causal,
        "vectors_per_input": inputs.vectors_per_input,
        "batches": batches,
    }
    return tensors, json.dumps(text)


def inputs_from_tensors(tensor: Callable[[str], Tensor], text: str) -> Inputs:
    """Return the inputs that :func:`inputs_to_tensors` described."""
    described = json.loads(text)
    batches = []
    for number, batch in enumerate(described["batches"]):
        values = {
            name: tensor(f"input.{number}.{name}") if stored is None else stored["value"]
            for name, stored in batch["values"]
        }
        batches.append(as_batch(values if batch["named"] else tuple(values.values())))
    return Inputs(
        batches=tuple(batches),
        positions=rules_from_json(described["positions"]),
        causal=described["causal"],
        vectors_per_input=described["vectors_per_input"],
    )
