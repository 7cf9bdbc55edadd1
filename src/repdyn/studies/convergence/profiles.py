"""Measure a model's alignment profile, estimate its uncertainty, and tabulate it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from repdyn.hub.errors import model_errors
from repdyn.probe import Probe
from repdyn.probe.word_classes import class_names
from repdyn.studies.convergence.bootstrap import Interval, SequenceSums, percentile_interval, resample_profiles
from repdyn.studies.convergence.cosines import token_cosines
from repdyn.studies.convergence.gaps import ClassGap, paired_gap, unpaired_gap
from repdyn.studies.convergence.generated_sentences import sentence_probe
from repdyn.studies.driver import text_probe
from repdyn.studies.models import LoadedModel
from repdyn.studies.output import progress_bar
from repdyn.tables.alignment_profile import average_rate, gradient, isotonic_fit, lower_envelope
from repdyn.tables.style import of_stack

COMPARED: dict[tuple[str, str], Callable[[SequenceSums, SequenceSums], ClassGap]] = {
    ("frequent", "rare"): paired_gap,
    ("function", "content"): paired_gap,
    ("simple", "complex"): unpaired_gap,
}
"""Pairs of classes that are compared, and the test of each."""


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

    def gaps(self) -> dict[tuple[str, str], ClassGap]:
        """Compare each pair of classes that the model was measured on."""
        pairs = [(pair, test) for pair, test in COMPARED.items() if set(pair) <= set(self.classes)]
        return {pair: test(*(self.classes[name] for name in pair)) for pair, test in pairs}


@dataclass(frozen=True, eq=False)
class ProfileEstimate:
    """An alignment profile with its gradient, or a difference of two, with 95 % intervals of a bootstrap."""

    alignment: np.ndarray
    """(L + 1,)."""
    alignment_interval: Interval
    steps: np.ndarray
    """(L,)."""
    steps_interval: Interval
    rate: float
    rate_interval: Interval


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
    [drawn] = resample_profiles([measured.all_tokens], n_resamples, seed)
    return _estimate(measured.all_tokens.alignment, drawn)


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


def _estimate(alignment: np.ndarray, drawn: np.ndarray) -> ProfileEstimate:
    return ProfileEstimate(
        alignment,
        percentile_interval(drawn),
        gradient(alignment),
        percentile_interval(gradient(drawn)),
        float(average_rate(alignment)),
        percentile_interval(average_rate(drawn)),
    )


def profile_table(estimates: Mapping[str, ProfileEstimate], *, fits: bool = True) -> pd.DataFrame:
    """Return one row for each model and layer.

    Steps and their fits are in the row of the layer they begin at, and NaN at the last layer.
    """
    frames = []
    for name, one in estimates.items():
        of_steps = {"gradient": one.steps, "gradient_low": one.steps_interval.low}
        of_steps["gradient_high"] = one.steps_interval.high
        if fits:
            of_steps |= {"isotonic_fit": isotonic_fit(one.steps), "lower_envelope": lower_envelope(one.steps)}
        columns = {
            "model": name,
            "layer": np.arange(len(one.alignment)),
            "alignment": one.alignment,
            "alignment_low": one.alignment_interval.low,
            "alignment_high": one.alignment_interval.high,
        }
        frames.append(pd.DataFrame(columns | {name: np.append(steps, np.nan) for name, steps in of_steps.items()}))
    return pd.concat(frames, ignore_index=True)


def class_table(measured: Sequence[ConvergenceMeasurements]) -> pd.DataFrame:
    """Return the alignment of each class of tokens or sentences, a row for each model, class and layer."""
    frames = [
        pd.DataFrame(
            {
                "model": one.name,
                "class": name,
                "layer": np.arange(one.n_layers),
                "alignment": sums.alignment,
                "n_tokens": sums.n_tokens,
                "n_sequences": int((sums.counts > 0).sum()),
            }
        )
        for one in measured
        for name, sums in one.classes.items()
    ]
    return pd.concat(frames, ignore_index=True)


def gap_table(measured: Sequence[ConvergenceMeasurements]) -> pd.DataFrame:
    """Return a row for each model, pair of classes and layer but the last; empty without classes."""
    frames = [
        pd.DataFrame(
            {"model": one.name, "first": first, "second": second, "layer": np.arange(len(gap.mean))}
            | {"gap": gap.mean, "gap_low": gap.low, "gap_high": gap.high}
            | {name: getattr(gap, name) for name in ("t", "p", "p_holm", "test", "n")}
        )
        for one in measured
        for (first, second), gap in one.gaps().items()
    ]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
