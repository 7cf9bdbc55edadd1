"""Measure a model's alignment profile, estimate its uncertainty, and tabulate it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from repdyn.checkpoints.errors import model_errors
from repdyn.probe import Probe
from repdyn.probe.class_names import class_names
from repdyn.studies.convergence.bootstrap import SequenceSums, percentile_interval, resample_profiles
from repdyn.studies.convergence.cosines import token_cosines
from repdyn.studies.convergence.generated_sentences import sentence_probe
from repdyn.studies.driver import text_probe
from repdyn.studies.models import LoadedModel
from repdyn.studies.output import join_tables, progress_bar
from repdyn.tables.alignment_profile import average_rate, gradient, isotonic_fit, lower_envelope
from repdyn.tables.style import of_stack


@dataclass(frozen=True, eq=False)
class ConvergenceMeasurements:
    """Cosines to the last layer of one model, or of one stack of its blocks."""

    name: str
    probe: str
    """Hash of the text's probe."""
    classes: Mapping[str, SequenceSums]
    """By subset of the text's tokens ("all" first, "rare", ...), and by kind of sentence ("simple", ...)."""

    @property
    def all_tokens(self) -> SequenceSums:
        return self.classes["all"]

    @property
    def n_layers(self) -> int:
        """L + 1: the embedding output, and one for each block."""
        return self.all_tokens.sums.shape[1]


class ProfileEstimate(NamedTuple):
    """An alignment profile with its gradient, or a difference of two, with 95 % intervals of a bootstrap."""

    table: pd.DataFrame
    """A row for each layer: layer, alignment, alignment_low, alignment_high, gradient, gradient_low, gradient_high,
    and, unless it is a difference, isotonic_fit and lower_envelope. Gradients and their fits are from the layer to the
    next, NaN at the last."""
    rate: float
    """Average of the gradient."""
    rate_low: float
    rate_high: float


def measure_convergence(loaded: LoadedModel, options: argparse.Namespace) -> list[ConvergenceMeasurements]:
    """Run a model over a text, and over generated sentences if there are to be any.

    Args:
        loaded: the model.
        options: text, sequence_length, max_vectors, classes, sentences, layers; as on the command line.

    Returns:
        One for each stack of blocks.

    Raises:
        ValueError, OSError: a text that is too short, or cannot be read or downloaded.
        CheckpointError: the model cannot be run.
    """
    classes = class_names(options.classes)
    text = text_probe(loaded, options, classes)
    found = _sums(loaded, text, ("all", "no_sink", *classes), options.layers, "text")
    if options.sentences:
        generated = _sums(loaded, _sentence_probe(loaded, options), ("simple", "complex"), options.layers, "sentences")
        found = {stack: {**sums, **generated[stack]} for stack, sums in found.items()}
    return [ConvergenceMeasurements(of_stack(loaded.name, stack), text.hash, sums) for stack, sums in found.items()]


def _sentence_probe(loaded: LoadedModel, options: argparse.Namespace) -> Probe:
    try:
        return sentence_probe(loaded.tokenizer, options.sentences, sequence_length=loaded.context)
    except ValueError as error:
        raise ValueError(
            f"{loaded.name} cannot read generated sentences: {error}; --sentences 0 leaves them out"
        ) from error


def _sums(
    loaded: LoadedModel, probe: Probe, subsets: Sequence[str], layers: str | None, what: str
) -> dict[str | None, dict[str, SequenceSums]]:
    """Return sums of cosines by stack and subset."""
    with model_errors(f"{loaded.name} cannot be measured"), progress_bar(f"{loaded.name}: {what}") as progress:
        stacks = token_cosines(loaded.model, probe, subsets, layers, progress=progress)
    return {one.stack: {name: one.sum_by_sequence(probe.sample(name)) for name in subsets} for one in stacks}


def estimate_profile(measured: ConvergenceMeasurements, n_resamples: int, seed: int = 0) -> ProfileEstimate:
    """Return the alignment profile of a model on its text."""
    [resampled] = resample_profiles([measured.all_tokens], n_resamples, seed)
    return _estimate(measured.all_tokens.alignment, resampled, with_fits=True)


def estimate_change(
    before: ConvergenceMeasurements, after: ConvergenceMeasurements, n_resamples: int, seed: int = 0
) -> ProfileEstimate:
    """Return the profile of a second checkpoint minus that of a first, paired over the same sequences.

    Raises:
        ValueError: different tokens, or different numbers of layers.
    """
    if before.probe != after.probe:
        raise ValueError(
            f"expected two models that read the same tokens, but {before.name} and {after.name} cut the text "
            "differently; compare checkpoints with one tokenizer"
        )
    if before.n_layers != after.n_layers:
        raise ValueError(
            f"expected two models with the same number of layers, got {before.name} with {before.n_layers - 1} blocks "
            f"and {after.name} with {after.n_layers - 1}; compare two checkpoints of one model"
        )
    earlier, later = resample_profiles([before.all_tokens, after.all_tokens], n_resamples, seed)
    return _estimate(after.all_tokens.alignment - before.all_tokens.alignment, later - earlier)


def _estimate(alignment: np.ndarray, resampled: np.ndarray, *, with_fits: bool = False) -> ProfileEstimate:
    steps = gradient(alignment)
    columns = {"alignment": (alignment, *percentile_interval(resampled))}
    columns["gradient"] = steps, *percentile_interval(gradient(resampled))
    table = {
        f"{name}{end}": v
        for name, values in columns.items()
        for end, v in zip(("", "_low", "_high"), values, strict=True)
    }
    if with_fits:
        table |= {"isotonic_fit": isotonic_fit(steps), "lower_envelope": lower_envelope(steps)}
    low, high = map(float, percentile_interval(average_rate(resampled)))
    frame = pd.DataFrame({name: pd.Series(values) for name, values in table.items()})
    return ProfileEstimate(frame.rename_axis("layer").reset_index(), float(average_rate(alignment)), low, high)


def class_table(measured: ConvergenceMeasurements) -> pd.DataFrame:
    """Return the alignment of each class of tokens or sentences, a row for each class and layer."""
    frames = {}
    for name, sums in measured.classes.items():
        counts = {"n_tokens": sums.n_tokens, "n_sequences": int((sums.counts > 0).sum())}
        frames[name] = pd.DataFrame({"layer": np.arange(measured.n_layers), "alignment": sums.alignment, **counts})
    return join_tables(frames, "class")
