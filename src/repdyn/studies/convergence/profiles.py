"""Measure a model's alignment profile, estimate its uncertainty, and tabulate it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from torch import nn

from repdyn.capture.blocks import LayerPatterns
from repdyn.capture.capture import capture, no_progress
from repdyn.capture.prepared_model import prepare
from repdyn.capture.states import LayerStates
from repdyn.checkpoints.errors import model_errors
from repdyn.kernels import Cloud, Undefined, full_precision
from repdyn.kernels.cosines import cosines
from repdyn.probe import Probe
from repdyn.probe.class_names import class_names
from repdyn.studies.convergence.generated_sentences import sentence_probe
from repdyn.studies.convergence.resampling import SequenceSums, percentile_interval, resample_profiles
from repdyn.studies.driver import text_probe
from repdyn.studies.models import LoadedModel
from repdyn.studies.output import join_tables, progress_bar
from repdyn.tables.alignment_profile import average_rate, gradient, isotonic_fit, lower_envelope
from repdyn.tables.frames import grid, measurements
from repdyn.tables.losses import loss_of_run
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


def measure_convergence(loaded: LoadedModel, options: Any) -> list[ConvergenceMeasurements]:
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


def _sentence_probe(loaded: LoadedModel, options: Any) -> Probe:
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

    def sum_by_sequence(self, tokens: np.ndarray) -> SequenceSums:
        """Sum the cosines of sampled tokens over each sequence.

        Args:
            tokens: their numbers in the probe, as ``probe.sample(subset)`` returns them.
        """
        chosen = tokens.ravel()
        sequences, n_sequences = self.sequences[chosen], int(self.sequences[-1]) + 1
        sums = [np.bincount(sequences, layer[self.rows[chosen]], n_sequences) for layer in self.cosines]
        return SequenceSums(np.stack(sums, axis=1), np.bincount(sequences, minlength=n_sequences))


def token_cosines(
    model: nn.Module,
    probe: Probe,
    subsets: Sequence[str],
    layers: LayerPatterns = None,
    *,
    progress: Callable[[float], None] = no_progress,
) -> list[TokenCosines]:
    """Run a model over a probe and compute ``cos(h_l(t), h_L(t))`` for every sampled token t and layer l.

    The last layer L is the last block's output before a final normalisation. The mean over the sample of a subset is
    the metric "alignment" on that subset.

    Args:
        model: as for :func:`repdyn.capture.capture.capture`.
        probe: the tokens.
        subsets: token subsets whose samples are compared.
        layers: name pattern of the blocks; None detects them.
        progress: called with the share of the probe that has run.

    Returns:
        One for each stack of blocks.

    Raises:
        ValueError: a state that is zero or not finite, and so has no direction; and as for ``capture``.
        RuntimeError: as for ``capture``.
    """
    states = capture(prepare(model, layers), probe, subsets, progress=progress)
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


MIN_CHECKPOINTS = 4
"""With three points, ranks agree perfectly in a third of all cases."""


def middle_rate(alignment: np.ndarray) -> float:
    """Return the mean of the gradient over the middle third of the steps, at least one of them.

    >>> middle_rate(np.array([0.0, 0.5, 0.75, 1.0]))
    0.25
    """
    steps = gradient(alignment)
    third = len(steps) // 3
    return float(steps[third : len(steps) - third].mean())


SUMMARIES: dict[str, Callable[[np.ndarray], float]] = {
    "mean alignment": lambda alignment: float(alignment.mean()),
    "average rate": lambda alignment: float(average_rate(alignment)),
    "rate of the middle third": middle_rate,
    "last step": lambda alignment: float(gradient(alignment)[-1]),
}
"""Scalar summaries of a profile A_0 ... A_L, (L + 1,)."""


def summaries_with_loss(rows: pd.DataFrame, subset: str = "all") -> pd.DataFrame:
    """Return each summary of the alignment profile and the loss, at every step that has both.

    Args:
        rows: of one run, or of one of its stacks (:func:`repdyn.tables.frames.by_stack`), with the metric "alignment"
            and a loss; see :func:`repdyn.tables.losses.loss_of_run`.
        subset: token subset.

    Returns:
        Index step, ascending; columns those of :data:`SUMMARIES`, and "loss". Steps at which a layer has no value are
        left out.

    Raises:
        ValueError: no measured row, or no such metric or subset; see :func:`repdyn.tables.frames.grid`.
    """
    profiles = grid(measurements(rows), "alignment", subset).dropna(axis="columns")
    loss = loss_of_run(rows).values
    steps = [step for step in profiles.columns if step in loss.index]
    table = {name: [of(profiles[step].to_numpy(float)) for step in steps] for name, of in SUMMARIES.items()}
    return pd.DataFrame({**table, "loss": loss.loc[steps].to_numpy(float)}, index=pd.Index(steps, name="step"))


def loss_correlations(table: pd.DataFrame) -> pd.DataFrame:
    """Return the correlation of each summary with the loss.

    There is no p-value: checkpoints of one training are not independent draws, and anything that moves in one direction
    while the loss falls correlates with it.

    Args:
        table: from :func:`summaries_with_loss`.

    Returns:
        Index the summary; columns spearman and pearson in [-1, 1], NaN for a summary or loss that never changes.

    Raises:
        ValueError: fewer than four checkpoints.
    """
    if len(table) < MIN_CHECKPOINTS:
        raise ValueError(
            f"expected at least {MIN_CHECKPOINTS} checkpoints with both an alignment profile and a loss, got "
            f"{len(table)}; measure the metric alignment at more steps of the training"
        )
    # rounding would give constants a correlation
    varying = table.loc[:, table.nunique() > 1].reindex(columns=table.columns)
    summaries, loss = varying[list(SUMMARIES)], varying["loss"]
    return pd.DataFrame({method: summaries.corrwith(loss, method=method) for method in ("spearman", "pearson")})
