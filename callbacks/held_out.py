"""Take a probe from a trainer's own data where the user gave none.

Held-out data first: Lightning's validation data, the Trainer's ``eval_dataset``; else the data that
is trained on, which is said. The data set and its collate function are read anew, in order: no
loader, worker or random state of the training has a part in it (:mod:`repdyn.probe.datasets`).
"""

from __future__ import annotations

import copy
import inspect
import random
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from types import FrameType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from repdyn.capture.calls import takes_padding
from repdyn.capture.forward_errors import ForwardError
from repdyn.probe import Probe
from repdyn.store import Store, store_at
from repdyn.tracking.origin import Origin
from repdyn.tracking.training import TrackedTraining
from repdyn.utils.caller_state import isolated_rng
from repdyn.utils.printing import print_above_bars

DEPTH = 5
"""The depth to which the attributes of a data set are searched for random generators."""
MOST_ITEMS = 64
"""The longest list that is searched for them: a longer one holds rows, not transforms."""
_GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
_LEAVES = (Tensor, np.ndarray, str, bytes, int, float, type, ModuleType, nn.Module)


class HeldOut(NamedTuple):
    """Data of a trainer that a probe may be taken from."""

    name: str
    """The name under which the trainer's user knows the data."""
    data: Any


class Cut(NamedTuple):
    """Says to how many tokens the windows of a probe are cut, since a model did not run on more."""

    to: int
    too_long: int


def begun_with_taken_probe(
    begin: Callable[[Probe], TrackedTraining],
    candidates: Iterable[HeldOut],
    model: nn.Module,
    tokenizer: Any,
    *,
    tracker: str,
    calls_it: bool = True,
    is_silent: bool = False,
) -> TrackedTraining:
    """Begin a tracking on a probe of the first data that there are, and print what was taken.

    A row may be longer than what the model reads at once: by a token where it holds inputs and
    targets in one, or by many where each batch is cut. The probe is then cut as well.

    Args:
        begin: begins the tracking; raises ForwardError where the model does not run on the probe.
        candidates: data of the trainer, held-out ones first.
        model: the model that is measured; batches of other inputs are restricted to its forward's
            arguments.
        tokenizer: the tokenizer of the training, if it is known.
        tracker: the class whose ``probe=`` replaces this probe.
        calls_it: True if the model is called by its own signature, and not by ``forward=``. If that
            signature has no mask, all windows have one length.
        is_silent: True if another process prints.

    Raises:
        ValueError: none of the data can be read as a probe; with the two lines to write.
    """
    equal_lengths = calls_it and not takes_padding(model)
    take = partial(_first_taken, list(candidates), model, tokenizer, tracker)
    probe = take(equal_lengths=equal_lengths)
    try:
        tracked = begin(probe)
    except ForwardError as error:
        too_long = int(probe.lengths.max())
        if probe.inputs is not None or too_long < 3:
            raise
        equal_lengths |= len(probe.lengths.unique()) == 1
        cut = Cut(error.longest or too_long - 1, too_long)
        probe = take(equal_lengths=equal_lengths, cut=cut)
        try:
            tracked = begin(probe)
        except ForwardError:
            raise error from None
    if not is_silent:
        what = "inputs" if probe.inputs is not None else "windows"
        tokens = "" if probe.inputs is not None else f" of {len(probe.tokens):,} tokens"
        print_above_bars(
            f"repdyn: measured on {probe.name}: {len(probe.lengths):,} {what}{tokens}, "
            f"{probe.n_batches * probe.batch_vectors:,} vectors; probe= replaces it"
        )
    return tracked


def _first_taken(
    candidates: list[HeldOut],
    model: nn.Module,
    tokenizer: Any,
    tracker: str,
    *,
    equal_lengths: bool,
    cut: Cut | None = None,
) -> Probe:
    """Return a probe of the first data that there are; ValueError where it cannot be taken."""
    reason = "no validation or training data"
    for candidate in candidates:
        try:
            return _taken(
                candidate,
                model,
                tokenizer if callable(tokenizer) else None,
                equal_lengths=equal_lengths,
                cut=cut,
            )
        # a data set of the user may raise anything
        except Exception as error:
            # the next candidate is not tried: training data in place of held-out ones that cannot
            # be read would surprise
            reason = f"{candidate.name} without one ({type(error).__name__}: {error})"
            break
    raise ValueError(  # without any candidate as well
        f"expected data to take a probe from, got {reason}; write\n"
        "    probe = repdyn.Probe.from_dataset(data, tokenizer)  # held-out texts or token ids\n"
        f"    tracker = {tracker}(probe)"
    )


def probe_of_run(origin: Origin | None, store: Store | None) -> Probe | None:
    """Return the probe of the run that a training goes on from; None where it is not stored."""
    if origin is None:
        return None
    stores = [store] if store is not None else []
    # begin_run reports a store that is out of reach
    with suppress(OSError, ValueError, KeyError, TypeError):
        if origin.store is not None:
            stores.append(store_at(origin.store, refresh=False))
        for folder in stores:
            run = folder.find_run(origin.run_id)
            content = None if run is None else run.configuration.get("probe")
            if content is not None:
                return Probe.load(folder.probe_path(content))
    return None


def of_lightning(trainer: Any) -> Iterator[HeldOut]:
    """Yield the data of a Lightning trainer: of its first validation loader, then of its training
    loader.
    """
    loaders = trainer.val_dataloaders
    if loaders is None:
        # Lightning makes these loaders only before the first validation
        source = getattr(trainer.fit_loop.epoch_loop.val_loop, "_data_source", None)
        if source is not None and source.instance is not None and source.is_defined():
            with isolated_rng():
                loaders = source.dataloader()
    for name, loader in (
        ("the validation data", loaders),
        ("the training data, as there are no validation data", trainer.train_dataloader),
    ):
        if (first := _first_loader(loader)) is not None:
            yield HeldOut(name, first)


def of_trainer(callback: Any, others: Mapping[str, Any]) -> Iterator[HeldOut]:
    """Yield the data of the Trainer of transformers that calls a callback: ``eval_dataset``, then
    ``train_dataset``.

    No callback is told of the trainer: it is looked up among the callers.
    """
    trainer = next(trainers_of(callback), None)
    collate_fn = getattr(trainer, "data_collator", None)
    evaluated = getattr(trainer, "eval_dataset", None)
    if isinstance(evaluated, Mapping):
        evaluated = next(iter(evaluated.values()), None)
    trained = getattr(trainer, "train_dataset", None)
    for name, data in (
        ("eval_dataset", evaluated),
        ("train_dataset, as there is no eval_dataset", trained),
    ):
        if data is not None:
            yield HeldOut(name, _Loader(data, collate_fn))
    # a trainer that overrides get_eval_dataloader may have no data set
    for name in ("eval_dataloader", "train_dataloader"):
        if (loader := others.get(name)) is not None:
            yield HeldOut(name, loader)


class _Loader(NamedTuple):
    """Holds what :meth:`repdyn.Probe.from_dataset` reads of a loader."""

    dataset: Any
    collate_fn: Callable[[list[Any]], Any] | None
    batch_size: int = 1
    batch_sampler: None = None


def trainers_of(callback: Any) -> Iterator[Any]:
    """Yield the trainers of transformers among the callers that have a callback."""
    frame: FrameType | None = sys._getframe()
    # by the callback itself: another trainer may be further up, which trains in turn
    while frame is not None:
        caller = frame.f_locals.get("self")
        handler = getattr(caller, "callback_handler", None)
        if handler is not None and callback in getattr(handler, "callbacks", ()):
            yield caller
        frame = frame.f_back


def _first_loader(loaders: Any) -> Any:
    """Return the first of the loaders that Lightning has; None where there is none.

    A list is either one of loaders, or a loader itself: a list of batches.
    """
    if hasattr(loaders, "flattened"):  # CombinedLoader
        loaders = loaders.flattened
    if isinstance(loaders, Mapping):
        loaders = list(loaders.values())
    if not isinstance(loaders, list | tuple):
        return loaders
    if not loaders:
        return None
    is_of_loaders = len(loaders) == 1 or any(hasattr(loader, "dataset") for loader in loaders)
    return _first_loader(loaders[0]) if is_of_loaders else loaders


def _taken(
    candidate: HeldOut,
    model: nn.Module,
    tokenizer: Any,
    *,
    equal_lengths: bool,
    cut: Cut | None,
) -> Probe:
    """Return a probe of some data, whose name tells what was taken."""
    data = _own_copy(candidate.data)
    rows = getattr(data, "dataset", data)
    is_stream = not hasattr(rows, "__len__")
    collate_fn = getattr(data, "collate_fn", None)
    with (
        _generators_kept(rows, collate_fn),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        probe = Probe.from_dataset(
            data,
            tokenizer,
            name=candidate.name,
            accepted=_arguments(model),
            equal_lengths=equal_lengths,
            sequence_length=None if cut is None else cut.to,
        )
    size = "its first rows" if is_stream else f"{len(rows):,} rows"
    is_cut = any("are cut into windows" in str(warning.message) for warning in caught)
    how = ", long ones cut into windows" if is_cut else ""
    if is_cut and equal_lengths:
        how = f", in windows of {int(probe.lengths[0])} tokens, as the model takes no mask"
    if cut is not None:
        how = f", in windows of {cut.to} tokens, as the model does not run on {cut.too_long}"
    return replace(probe, name=f"{candidate.name} ({size}{how})")


def _own_copy(data: Any) -> Any:
    """Return data that can be read without a trace: a stream as a copy, which begins anew.

    Raises:
        ValueError: the data can be read only once, which is for the training.
    """
    rows = getattr(data, "dataset", data)
    if hasattr(rows, "__next__"):
        raise ValueError(f"{type(rows).__name__} can be read once")
    if hasattr(rows, "__len__") and not isinstance(rows, IterableDataset):
        return data
    copied = copy.deepcopy(rows)
    return copied if rows is data else _Loader(copied, data.collate_fn, data.batch_size)


def _arguments(model: nn.Module) -> list[str]:
    """Return the names of a forward's arguments, without ``*args`` and ``**kwargs``."""
    parameters = inspect.signature(model.forward).parameters.values()
    variadic = {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}
    return [parameter.name for parameter in parameters if parameter.kind not in variadic]


@contextmanager
def _generators_kept(*holders: Any) -> Iterator[None]:
    """Restore the random generators that objects hold, such as those of augmentations."""
    # by identity: one generator may be reached on several ways
    generators = {
        id(generator): generator for holder in holders for generator in _generators(holder, DEPTH)
    }
    states = [(generator, _state_of(generator)) for generator in generators.values()]
    try:
        yield
    finally:
        for generator, state in states:
            _restore(generator, state)


def _generators(holder: Any, depth: int) -> Iterator[Any]:
    """Yield the random generators inside an object, not deeper than ``depth`` attributes."""
    if isinstance(holder, _GENERATORS):
        yield holder
        return
    if depth == 0 or isinstance(holder, _LEAVES):
        return
    values: list[Any] = []
    if isinstance(holder, Mapping | list | tuple | set) and len(holder) <= MOST_ITEMS:
        values += holder.values() if isinstance(holder, Mapping) else holder
    values += getattr(holder, "__dict__", {}).values()
    values.append(getattr(holder, "__self__", None))  # of a bound method
    for value in values:
        yield from _generators(value, depth - 1)


def _state_of(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return copy.deepcopy(generator.bit_generator.state)
    return generator.get_state()


def _restore(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)
