"""Measure how the tokens of a model approach their states at the last layer, and what is lost without each block."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from torch import Tensor, nn
from tqdm import tqdm

from repdyn import measure
from repdyn.kernels import Cloud, Undefined, alignment, full_precision
from repdyn.kernels.cosines import cosines
from repdyn.probe import Probe
from repdyn.probe.design import class_names
from repdyn.reading import LayerPatterns, LayerStates, LoadedModel, Model, layer_states
from repdyn.store.schema import PROBE_LOSS
from repdyn.studies.bootstrap import SequenceSums
from repdyn.studies.generated_sentences import KINDS, sentence_probe
from repdyn.studies.study import text_probe
from repdyn.tables.style import of_stack

FALLS = (0.0, 0.01)
"""Sizes of a fall of a token's cosine from one layer to the next: shares of larger falls are reported."""
_ROUNDING = 1e-12
LONGEST = 512
"""Tokens of the longest sentence, as published."""
MAX_SKIPPED = 4096
"""Largest number of tokens on which the model runs once without each block."""


class ClassCosines(NamedTuple):
    """The cosines to the last layer of one class of tokens, in one stack of blocks."""

    alignment: SequenceSums
    falls: Mapping[float, SequenceSums]
    """By size: how many cosines fall by more than it at each step, and at any step in the last column."""
    of_words: np.ndarray
    """(n_words, L + 1): the mean over the tokens of each distinct word, an entry of the model's vocabulary."""


class ConvergenceMeasurements(NamedTuple):
    """Cosines to the last layer of one model, or of one stack of its blocks."""

    name: str
    probe: str
    """Hash of the text's probe."""
    classes: Mapping[str, ClassCosines]
    """By subset of the text's tokens ("all" first, "rare", ...), and by kind of sentence ("simple", ...)."""

    @property
    def n_layers(self) -> int:
        """L + 1: the embedding output, and one for each block."""
        return self.classes["all"].alignment.sums.shape[1]


def measure_convergence(
    loaded: LoadedModel, options: Any, phrases: Mapping[str, Sequence[str]]
) -> list[ConvergenceMeasurements]:
    """Run a model over a text, and over generated sentences if there are to be any, for each stack of blocks."""
    classes, layers = class_names(options.classes), options.layers
    text = text_probe(loaded, options, classes, phrases)
    found = _by_class(loaded, text, ("all", "no_sink", *classes, *phrases), layers)
    if options.sentences:
        is_long = options.long_sentences
        longest = min(loaded.context, LONGEST) if is_long else loaded.context
        try:
            probe = sentence_probe(loaded.tokenizer, options.sentences, sequence_length=longest, are_long=is_long)
        except ValueError as error:
            raise ValueError(
                f"{loaded.name} cannot read generated sentences: {error}; --sentences 0 leaves them out"
            ) from error
        kinds = [kind for kind in KINDS if kind in probe.classes]
        generated = _by_class(loaded, probe, kinds, layers, by_length=is_long)
        found = {stack: {**of_text, **generated[stack]} for stack, of_text in found.items()}
    return [ConvergenceMeasurements(of_stack(loaded.name, stack), text.hash, by) for stack, by in found.items()]


def _by_class(
    loaded: LoadedModel, probe: Probe, subsets: Sequence[str], layers: str | None, *, by_length: bool = False
) -> dict[str | None, dict[str, ClassCosines]]:
    """Return the cosines by stack and subset, and those of tokens in sequences of each length if wanted."""
    stacks = token_cosines(loaded, probe, subsets, layers)
    samples = {name: probe.sample(name).ravel() for name in subsets}
    if by_length:
        samples |= _split_by_length(samples, probe)
    return {
        stack: {name: class_cosines(cosines, tokens, probe) for name, tokens in samples.items()}
        for stack, cosines in stacks.items()
    }


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


def class_cosines(cosines: np.ndarray, tokens: np.ndarray, probe: Probe) -> ClassCosines:
    """Return what is measured of some tokens of a probe, by their numbers (n,), from :func:`token_cosines`."""
    cosines, sequences = cosines[:, tokens], (probe.window_of(tokens), len(probe.lengths))
    steps = -np.diff(cosines, axis=0)
    fell = {size: steps > max(size, _ROUNDING) for size in FALLS}
    falls = {size: SequenceSums.of(np.vstack([at, at.any(0)]), *sequences) for size, at in fell.items()}
    distinct, words = np.unique(probe.tokens.numpy()[tokens], return_inverse=True)
    of_words = SequenceSums.of(cosines, words, len(distinct)).means
    return ClassCosines(SequenceSums.of(cosines, *sequences), falls, of_words)


def token_cosines(
    model: Model, probe: Probe, subsets: Sequence[str], layers: LayerPatterns = None
) -> dict[str | None, np.ndarray]:
    """Run a model over a probe and compute ``cos(h_l(t), h_L(t))`` for every token t of the subsets and layer l.

    The last layer L is the last block's output before a final normalisation. The mean over a subset is the metric
    "alignment" on it.

    Returns:
        By stack of blocks (L + 1, n_tokens of the probe) float64 in [-1, 1], NaN for other tokens.
    """
    states = layer_states(model, probe, layers, subsets=subsets)
    stacks: dict[str | None, list[LayerStates]] = {}
    for layer in states.layers:
        stacks.setdefault(layer.stack, []).append(layer)
    found, is_sampled = {}, states.rows >= 0
    for stack, blocks in stacks.items():
        found[stack] = np.full((len(blocks), len(is_sampled)), np.nan)
        for of_layer, layer in zip(found[stack], blocks, strict=True):
            of_layer[is_sampled] = _cosines(layer, blocks[-1])[states.rows[is_sampled]]
    return found


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


def skip_blocks(loaded: LoadedModel, options: Any) -> dict[str | None, pd.DataFrame]:
    """Measure a model without each of its blocks, one at a time, on a part of the text.

    Returns:
        By stack a row for the whole model (layer -1) and for each block: layer (its input, whose gradient it adds),
        final_alignment (mean cosine of each token's last state to its own in the whole model), loss, reason if it is
        NaN.
    """
    few = SimpleNamespace(**{**vars(options), "max_vectors": min(options.max_vectors, MAX_SKIPPED)})
    probe, layers = text_probe(loaded, few, ()), options.layers
    found = list(layer_states(loaded, probe, layers))
    whole, blocks = {one.stack: one for one in found if one.is_last}, [layer for layer in found if layer.index]
    loss = _loss(loaded, probe, layers)
    rows: dict[str | None, list[tuple[int, float, float, str]]] = {stack: [(-1, 1.0, *loss)] for stack in whole}
    for block in tqdm(blocks, desc=f"{loaded.name}: without each block", leave=False):
        with loaded.model.get_submodule(block.module).register_forward_hook(_pass_on, with_kwargs=True):
            states = layer_states(loaded, probe, layers)
            [last] = [one for one in states if one.is_last and one.stack == block.stack]
            changed = float(alignment(last.states, whole[block.stack].states))
            rows[block.stack].append((block.index - 1, changed, *_loss(loaded, probe, layers)))
    columns = ["layer", "final_alignment", "loss", "reason"]
    return {stack: pd.DataFrame(of_stack, columns=columns) for stack, of_stack in rows.items()}


def _loss(loaded: LoadedModel, probe: Probe, layers: str | None) -> tuple[float, str]:
    if loaded.with_head is None:
        return math.nan, "the model has no language-modelling head"
    pattern = None if layers is None else f"{loaded.with_head.base_model_prefix}.{layers}"
    scalars = measure(loaded.with_head, probe, ["norm"], pattern, probe_loss=True).scalars
    [row] = [row for row in scalars if row.metric == PROBE_LOSS]
    return row.value, row.reason or ""


def _pass_on(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """Return the states that a block gets in place of those that it puts out."""
    states = args[0] if args else kwargs["hidden_states"]
    return states if isinstance(output, Tensor) else (states, *output[1:])
