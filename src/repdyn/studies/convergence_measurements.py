"""Measure how the tokens of a model approach their states at the last layer: cosines, by token and by class."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from repdyn.kernels import Cloud, Undefined, full_precision
from repdyn.kernels.cosines import cosines
from repdyn.probe import Probe
from repdyn.probe.design import class_names
from repdyn.reading import LayerPatterns, LayerStates, LoadedModel, Model, layer_states, no_progress
from repdyn.studies.generated_sentences import KINDS, sentence_probe
from repdyn.studies.study import progress_bar, text_probe
from repdyn.tables.style import of_stack

FALLS = (0.0, 0.01)
"""Sizes of a fall of a token's cosine from one layer to the next: shares of larger falls are reported."""
_ROUNDING = 1e-12
LONGEST = 512
"""Tokens of the longest sentence, as published."""


@dataclass(frozen=True, eq=False)
class SequenceSums:
    """Cosines of each layer to the last one, or other values of tokens, summed over the tokens of each sequence."""

    sums: np.ndarray
    """(n_sequences, L + 1)."""
    counts: np.ndarray
    """(n_sequences,) tokens in each sum; 0 for a sequence without any."""

    @property
    def n_tokens(self) -> int:
        return int(self.counts.sum())

    @property
    def over_tokens(self) -> np.ndarray:
        """(L + 1,) mean over all tokens, so that long sequences weigh more; NaN without a token."""
        if not self.n_tokens:
            return np.full(self.sums.shape[1], np.nan)
        return self.sums.sum(0) / self.n_tokens

    @property
    def means(self) -> np.ndarray:
        """(n_sequences, L + 1) mean over the tokens of each sequence; NaN for a sequence without any."""
        with np.errstate(invalid="ignore"):
            return self.sums / self.counts[:, None]


@dataclass(frozen=True, eq=False)
class ClassCosines:
    """Holds the cosines to the last layer of one class of tokens, in one stack of blocks."""

    alignment: SequenceSums
    falls: Mapping[float, SequenceSums]
    """By size: how many cosines fall by more than it at each step, and at any step in the last column."""
    of_words: np.ndarray
    """(n_words, L + 1): the mean over the tokens of each distinct word, an entry of the model's vocabulary."""


@dataclass(frozen=True, eq=False)
class ConvergenceMeasurements:
    """Cosines to the last layer of one model, or of one stack of its blocks."""

    name: str
    probe: str
    """Hash of the text's probe."""
    classes: Mapping[str, ClassCosines]
    """By subset of the text's tokens ("all" first, "rare", ...), and by kind of sentence ("simple", ...)."""

    @property
    def all_tokens(self) -> SequenceSums:
        return self.classes["all"].alignment

    @property
    def n_layers(self) -> int:
        """L + 1: the embedding output, and one for each block."""
        return self.all_tokens.sums.shape[1]


def measure_convergence(
    loaded: LoadedModel, options: Any, phrases: Mapping[str, Sequence[str]]
) -> list[ConvergenceMeasurements]:
    """Run a model over a text, and over generated sentences if there are to be any.

    Args:
        loaded: the model and its tokenizer.
        options: of the study.
        phrases: classes of words and phrases of the text, beside those that the options name.

    Returns:
        One for each stack of blocks.
    """
    classes = class_names(options.classes)
    text = text_probe(loaded, options, classes, phrases)
    found = _by_class(loaded, text, ("all", "no_sink", *classes, *phrases), options.layers, "text")
    if options.sentences:
        probe = _sentence_probe(loaded, options)
        kinds = [kind for kind in KINDS if kind in probe.classes]
        generated = _by_class(loaded, probe, kinds, options.layers, "sentences", options.long_sentences)
        found = {stack: {**classes, **generated[stack]} for stack, classes in found.items()}
    return [ConvergenceMeasurements(of_stack(loaded.name, stack), text.hash, by) for stack, by in found.items()]


def _sentence_probe(loaded: LoadedModel, options: Any) -> Probe:
    try:
        longest = min(loaded.context, LONGEST) if options.long_sentences else loaded.context
        return sentence_probe(
            loaded.tokenizer, options.sentences, sequence_length=longest, are_long=options.long_sentences
        )
    except ValueError as error:
        raise ValueError(
            f"{loaded.name} cannot read generated sentences: {error}; --sentences 0 leaves them out"
        ) from error


def _by_class(
    loaded: LoadedModel,
    probe: Probe,
    subsets: Sequence[str],
    layers: str | None,
    what: str,
    by_length: bool = False,
) -> dict[str | None, dict[str, ClassCosines]]:
    """Return the cosines by stack and subset, and those of tokens in sequences of each length if wanted."""
    with progress_bar(f"{loaded.name}: {what}") as progress:
        stacks = token_cosines(loaded, probe, subsets, layers, progress=progress)
    samples = {name: probe.sample(name).ravel() for name in subsets}
    if by_length:
        samples |= _split_by_length(samples, probe)
    return {one.stack: {name: one.of_class(tokens, probe) for name, tokens in samples.items()} for one in stacks}


def _split_by_length(samples: Mapping[str, np.ndarray], probe: Probe) -> dict[str, np.ndarray]:
    """Return the tokens of each sample in sequences of up to 64 tokens, from there to 128, and so on."""
    edges = [0, 64]
    while edges[-1] < probe.lengths.max():
        edges.append(2 * edges[-1])
    found = {}
    for name, tokens in samples.items():
        lengths = probe.lengths.numpy()[probe.window_of(tokens)]
        for shorter, longest in pairwise(edges):
            chosen = tokens[(lengths > shorter) & (lengths <= longest)]
            if len(chosen):
                found[f"{name}, {shorter + 1} to {longest} tokens"] = chosen
    return found


@dataclass(frozen=True, eq=False)
class TokenCosines:
    """Cosine of each sampled token's state at every layer with its state at the last one, in one stack of blocks."""

    stack: str | None
    """Name of the stack, in a model that has several."""
    cosines: np.ndarray
    """(L + 1, n_sampled) float64 in [-1, 1]; 1 at the last layer, up to rounding."""
    rows: np.ndarray
    """(n_tokens,) column in ``cosines`` of each token of the probe, -1 where it is not sampled."""
    sequences: np.ndarray
    """(n_tokens,) number of each token's sequence."""

    def of_class(self, tokens: np.ndarray, probe: Probe) -> ClassCosines:
        """Return what is measured of sampled tokens of the probe, by their numbers (n,)."""
        cosines = self.cosines[:, self.rows[tokens]]
        _, words, counts = np.unique(probe.tokens.numpy()[tokens], return_inverse=True, return_counts=True)
        of_words = np.stack([np.bincount(words, layer) / counts for layer in cosines], axis=1)
        falls = {}
        for size in FALLS:
            at_step = -np.diff(cosines, axis=0) > max(size, _ROUNDING)
            falls[size] = self._sum_by_sequence(tokens, np.vstack([at_step, at_step.any(0)]))
        return ClassCosines(self._sum_by_sequence(tokens, cosines), falls, of_words)

    def _sum_by_sequence(self, tokens: np.ndarray, values: np.ndarray) -> SequenceSums:
        """Sum values of tokens, (L + 1, n), over each sequence."""
        sequences, n_sequences = self.sequences[tokens], int(self.sequences[-1]) + 1
        sums = [np.bincount(sequences, of_tokens, n_sequences) for of_tokens in values]
        return SequenceSums(np.stack(sums, axis=1), np.bincount(sequences, minlength=n_sequences))


def token_cosines(
    model: Model,
    probe: Probe,
    subsets: Sequence[str],
    layers: LayerPatterns = None,
    *,
    progress: Callable[[float], None] = no_progress,
) -> list[TokenCosines]:
    """Run a model over a probe and compute ``cos(h_l(t), h_L(t))`` for every sampled token t and layer l.

    The last layer L is the last block's output before a final normalisation. The mean over the sample of a subset is
    the metric "alignment" on that subset.

    Returns:
        One for each stack of blocks.
    """
    states = layer_states(model, probe, layers, subsets=subsets, progress=progress)
    sequences = np.repeat(np.arange(len(probe.lengths)), probe.lengths.numpy())
    stacks: dict[str | None, list[LayerStates]] = {}
    for layer in states.layers:
        stacks.setdefault(layer.stack, []).append(layer)
    return [
        TokenCosines(stack, np.stack([_cosines(layer, layers[-1]) for layer in layers]), states.rows, sequences)
        for stack, layers in stacks.items()
    ]


def _cosines(layer: LayerStates, last: LayerStates) -> np.ndarray:
    try:
        with full_precision(layer.device):
            found = cosines(*(Cloud(one.states.to(one.device)) for one in (layer, last))).cpu().numpy()
        reason = "" if np.isfinite(found).all() else f"{np.isnan(found).sum()} of {len(found)} are NaN or infinite"
    except Undefined as undefined:
        found, reason = np.empty(0), undefined.reason
    if reason:
        raise ValueError(
            f"expected states with a direction at layer {layer.index} ({layer.module}) and at the last layer, got some "
            f"without: {reason}"
        )
    return found
