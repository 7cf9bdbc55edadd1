"""From a loaded model to what is found: a sentence through its layers, and a text."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from repdyn.capture.blocks import LayerPatterns
from repdyn.capture.capture import capture, causality
from repdyn.capture.states import LayerStates
from repdyn.text.source import load_corpus
from repdyn.hub.errors import model_errors
from repdyn.kernels import Undefined, full_precision
from repdyn.kernels.vocabulary import Vocabulary
from repdyn.probe import Probe
from repdyn.probe.design import DENSE
from repdyn.studies.anatomy.lookups import find_lookups
from repdyn.studies.models import LoadedModel
from repdyn.studies.tokens.sentence import LayerVectors, State, Trajectories, trajectories
from repdyn.studies.tokens.text import class_lines, common_direction, density

CLASSES = ("function", "content")
BESIDES = ("after_attention", "embeddings")


_SENTENCE = "sentence"


@dataclass(frozen=True, eq=False)
class OfText:
    """What a text shows."""

    name: str
    """Of the text."""
    classes: pd.DataFrame
    """Columns of :func:`repdyn.studies.tokens.text.class_lines`, after stack, layer and state."""
    density: pd.DataFrame
    """As :func:`repdyn.studies.tokens.text.density` gives it."""
    steps: pd.DataFrame
    """One line for each layer but the last: stack, layer, within, between; see ``common_direction``."""


@dataclass(frozen=True, eq=False)
class Reading:
    """The tokens of a sentence in every state of a model."""

    ids: tuple[int, ...]
    vectors: tuple[LayerVectors, ...]
    """Layer by layer, after the attention (where there is such a state) and after the block."""
    table: Tensor | str
    """The input embeddings, or why there are none."""
    reasons: tuple[str, ...]
    """Why some layers have no state after their attention."""


def ids_of(subject: LoadedModel, sentence: str) -> list[int]:
    """The tokens of a sentence as the model takes them, special ones included.

    Raises:
        ValueError: fewer than two, or more than the model takes.
    """
    ids: list[int] = subject.tokenizer(sentence)["input_ids"]
    if not 2 <= len(ids) <= subject.context:
        most = f" to {subject.context}" if len(ids) > 1 else " or more"
        raise ValueError(f"expected a sentence of 2{most} tokens for {subject.name}, got {len(ids)}")
    return ids


def sentence_probe(ids: Sequence[int]) -> Probe:
    """A probe of one sentence, all of whose tokens, from 0 on, are in the class "sentence"."""
    # copies, so that the subsets that every probe has are large enough whatever the length
    n_sampled = 2 * len(ids)
    probe = Probe.from_tokens([ids] * 4, max_vectors=n_sampled, batch_vectors=n_sampled)
    return probe.with_classes({_SENTENCE: torch.arange(len(probe.tokens)) < n_sampled})


def sentence_of(subject: LoadedModel, options: argparse.Namespace) -> tuple[Trajectories, list[str]]:
    """The tokens of the sentence against the vocabulary; and why some layers have no state after their attention.

    Args:
        subject: the model.
        options: sentence, nearest, positions, layers; as on the command line.

    Raises:
        ValueError, CheckpointError: as :func:`read_sentence` and :func:`against_vocabulary`.
    """
    reading = read_sentence(subject, options.sentence, options.layers)
    found = against_vocabulary(subject, reading, k=options.nearest, with_positions=options.positions)
    return found, list(reading.reasons)


def read_sentence(subject: LoadedModel, sentence: str, layers: LayerPatterns = None) -> Reading:
    """Run the model once on a sentence and keep the states of all its tokens.

    Raises:
        ValueError: a sentence of fewer than two tokens, or of more than the model takes.
        CheckpointError: the model cannot be run.
    """
    ids = ids_of(subject, sentence)
    with model_errors(f"{subject.name} cannot be measured"):
        states = capture(subject.model, sentence_probe(ids), (_SENTENCE,), layers, captures=BESIDES)
    rows = states.rows_of(np.arange(len(ids)))
    vectors, reasons = [], []
    while states.layers:
        layer = states.take()
        vectors += [
            LayerVectors(layer.stack, layer.index, state, found[rows].to(layer.device))
            for state, found in _states_of(layer)
        ]
        reasons += [_reason(layer)] if isinstance(layer.after_attention, str) else []
    return Reading(tuple(ids), tuple(vectors), states.embeddings, tuple(reasons))


def against_vocabulary(
    subject: LoadedModel, reading: Reading, *, k: int, with_positions: bool = False, place: int | None = None
) -> Trajectories:
    """The tokens of a sentence against the rows of the model's input embedding.

    Args:
        subject: the model.
        reading: what it made of the sentence.
        k: nearest rows of each vector.
        with_positions: add the embedding of each token's position to every row.
        place: of the one token that is looked at; None for all of them. A token's numbers do not depend on it.

    Raises:
        ValueError: no state that can be compared with the input embeddings, or no table of positions where they are
            asked for.
    """
    table, ids = _table(subject, reading.table), list(reading.ids)
    positions = position_rows(subject, table, len(ids)) if with_positions else None
    table = table * embedding_scale(subject.model, table, ids) if with_positions else table
    kept = slice(None) if place is None else slice(place, place + 1)
    vectors = [replace(layer, vectors=layer.vectors[kept].to(table.device)) for layer in reading.vectors]
    positions = None if positions is None else positions[kept]
    with _comparable(subject), full_precision(table.device):
        return trajectories(vectors, ids[kept], table, subject.tokenizer, k=k, positions=positions)


def text_of(subject: LoadedModel, options: argparse.Namespace) -> OfText:
    """Function words and content words of a text against the vocabulary, and whether its tokens move together.

    Args:
        subject: the model.
        options: text, sequence_length, max_vectors, layers; as on the command line.

    Raises:
        ValueError, OSError: a text that is too short, or cannot be had; states that cannot be compared.
        CheckpointError: the model cannot be run.
    """
    probe = _probe(subject, options)
    with model_errors(f"{subject.name} cannot be measured"):
        states = capture(subject.model, probe, ("no_sink", *CLASSES), options.layers, captures=BESIDES)
    vocabulary = Vocabulary(_table(subject, states.embeddings))
    tokens = np.unique(np.concatenate([probe.sample(name).ravel() for name in CLASSES]))
    rows, ids = states.rows_of(tokens), probe.tokens[tokens]
    members = {n: torch.from_numpy(np.searchsorted(tokens, np.sort(probe.sample(n).ravel()))) for n in CLASSES}
    moving = probe.sample("no_sink").ravel()
    sequences = torch.arange(len(probe.lengths)).repeat_interleave(probe.lengths)[moving]
    lines, steps = [], []
    with _comparable(subject), tqdm(total=len(states.layers), desc=subject.name, leave=False) as bar:
        while states.layers:
            layer = states.take()
            about = {"stack": layer.stack, "layer": layer.index}
            for state, found in _states_of(layer):
                given = found[rows].to(layer.device), ids.to(layer.device), vocabulary, members
                lines += [{**about, "state": state, **line} for line in class_lines(*given)]
            if not layer.is_last:
                at = states.rows_of(moving)
                both = common_direction(layer.states[at], states.following(layer)[at], sequences)
                steps.append({**about, "within": both[0], "between": both[1]})
            bar.update()
    crowded = density(vocabulary, ids, probe.classes["function"][torch.from_numpy(tokens)])
    return OfText(probe.name, pd.DataFrame(lines), crowded, pd.DataFrame(steps))


@contextmanager
def without_causal_mask(subject: LoadedModel, sentence: str) -> Iterator[None]:
    """Within it every token of a decoder sees all others: ``is_causal`` of the configuration, which transformers heeds.

    Args:
        subject: a decoder, put back on leaving.
        sentence: something it reads, to see whether it obeys.

    Raises:
        ValueError: it is no decoder, has several stacks, or does not obey.
    """
    model, probe = subject.model, sentence_probe(ids_of(subject, sentence))
    before = causality(model, probe)
    if before != {None: True}:
        raise ValueError(
            f"expected a decoder with --no-causal-mask, got {subject.name}, whose positions see later ones already or "
            "cannot be told to; leave the option out"
        )
    config: dict = vars(model.config)
    had = {"is_causal": config["is_causal"]} if "is_causal" in config else {}
    config["is_causal"] = False
    try:
        if _obeyed(model, probe) != {None: False}:
            raise ValueError(
                f"expected a decoder whose causal mask transformers can take off, but {subject.name} keeps it; leave "
                "--no-causal-mask out"
            )
        yield
    finally:
        config.pop("is_causal")
        config.update(had)


def position_rows(subject: LoadedModel, table: Tensor, n_tokens: int) -> Tensor:
    """The embeddings of the first positions, (n_tokens, dim), from the table that the model looks them up in.

    Raises:
        ValueError: no such table or several, one of other dimensions, or one that is too short.
    """
    ordinary = sorted(set(range(len(table))) - set(subject.tokenizer.all_special_ids))
    tried = np.random.RandomState(0).permutation(ordinary)[:16].tolist()
    found = [lookup for lookup in find_lookups(subject.model, tried) if lookup.kind == "position"]
    if len(found) != 1 or found[0].weight.shape[1] != table.shape[1]:
        about = ", ".join(f"{lookup.parameter} {tuple(lookup.weight.shape)}" for lookup in found) or "none"
        raise ValueError(
            f"expected one table of positions with {table.shape[1]} dimensions for --positions, got {about} in "
            f"{subject.name}; leave the option out"
        )
    first = found[0].first_row
    rows = found[0].weight[first : first + n_tokens]
    if len(rows) < n_tokens:
        raise ValueError(f"expected at most {len(rows)} tokens, the positions of {subject.name}, got {n_tokens}")
    return rows.to(table.device)


def embedding_scale(model: PreTrainedModel, table: Tensor, ids: Sequence[int]) -> float:
    """What the model's embedding multiplies its rows by, as the scaled ones of some families do; 1 for most."""
    with torch.no_grad():
        put_out = model.get_input_embeddings()(torch.tensor([ids], device=table.device))[0].double()
    rows = table[torch.tensor(ids, device=table.device)].double()
    scale = float((put_out * rows).sum() / rows.square().sum())
    return 1.0 if abs(scale - 1) < 1e-6 else scale


def _obeyed(model: PreTrainedModel, probe: Probe) -> dict[str | None, bool | None]:
    try:
        return causality(model, probe)
    except Exception:  # code of a family that does not reckon with it
        return {}


def _probe(subject: LoadedModel, options: argparse.Namespace) -> Probe:
    settings = {
        "sequence_length": min(options.sequence_length, subject.context),
        "max_vectors": options.max_vectors,
        "design": DENSE,  # means over tokens, whose intervals come from the sequences themselves
        "classes": CLASSES,
    }
    if options.text == "enwik8":
        return Probe.enwik8(subject.tokenizer, **settings)
    corpus = load_corpus(options.text)
    return Probe.from_texts([corpus.data.decode(errors="replace")], subject.tokenizer, name=corpus.name, **settings)


def _table(subject: LoadedModel, found: Tensor | str) -> Tensor:
    if isinstance(found, str):
        raise ValueError(f"expected a model with a table of input embeddings, got {subject.name}: {found}")
    return found


def _states_of(layer: LayerStates) -> list[tuple[State, Tensor]]:
    after = layer.after_attention
    return [*([("attention", after)] if isinstance(after, Tensor) else []), ("block", layer.states)]


def _reason(layer: LayerStates) -> str:
    of_stack = f"{layer.stack} " if layer.stack else ""
    return f"{of_stack}layer {layer.index}: {layer.after_attention}"


@contextmanager
def _comparable(subject: LoadedModel) -> Iterator[None]:
    try:
        yield
    except Undefined as undefined:
        raise ValueError(
            f"expected vectors that can be compared with the input embeddings of {subject.name}, but {undefined.reason}"
        ) from undefined
