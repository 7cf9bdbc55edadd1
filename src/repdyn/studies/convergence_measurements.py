"""Measure a model's alignment profile, with intervals and tests by resampling sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from repdyn.kernels import Cloud, Undefined, full_precision
from repdyn.kernels.cosines import cosines
from repdyn.probe import Probe
from repdyn.probe.design import class_names
from repdyn.reading import LayerPatterns, LayerStates, LoadedModel, Model, layer_states, no_progress
from repdyn.studies.generated_sentences import sentence_probe
from repdyn.studies.study import join_tables, progress_bar, text_probe
from repdyn.tables.fits import average_rate, gradient, isotonic_fit, lower_envelope
from repdyn.tables.frames import grid, loss_of_run, measurements
from repdyn.tables.style import of_stack

LEVEL = 0.95

# bounds the memory of one chunk of resamples
_MAX_CELLS = 1 << 22
THRESHOLD = 0.05
"""Adjusted p-values below it are reported as significant."""
MIN_CHECKPOINTS = 4
"""With three points, ranks agree perfectly in a third of all cases."""


@dataclass(frozen=True, eq=False)
class SequenceSums:
    """Cosines of each layer to the last one, summed over the tokens of each sequence."""

    sums: np.ndarray
    """(n_sequences, L + 1)."""
    counts: np.ndarray
    """(n_sequences,) tokens in each sum; 0 for a sequence without any."""

    @property
    def n_tokens(self) -> int:
        return int(self.counts.sum())

    @property
    def alignment(self) -> np.ndarray:
        """A_0 ... A_L, (L + 1,): the mean over all tokens, so that long sequences weigh more; NaN without a token."""
        if not self.n_tokens:
            return np.full(self.sums.shape[1], np.nan)
        return self.sums.sum(0) / self.n_tokens

    @property
    def means(self) -> np.ndarray:
        """(n_sequences, L + 1) mean over the tokens of each sequence; NaN for a sequence without any."""
        with np.errstate(invalid="ignore"):
            return self.sums / self.counts[:, None]


def resample_profiles(samples: Sequence[SequenceSums], n_resamples: int, seed: int = 0) -> list[np.ndarray]:
    """Draw alignment profiles by a bootstrap over sequences.

    Each resample draws as many sequences as there are, with replacement, and takes the ratio of the sum of cosines to
    the number of tokens. Samples of the same sequences (two checkpoints, two classes of tokens) share the draws, so
    that their differences are paired.

    Returns:
        For each sample (n_resamples, L + 1); NaN in a draw without a single token.

    Source: Efron 1979 (Ann. Statist. 7:1); percentile intervals, clustered by sequence.
    """
    numbers = {len(sample.counts) for sample in samples}
    if len(numbers) != 1:
        raise ValueError(f"expected samples of the same sequences, got {sorted(numbers)} sequences; use one probe")
    n_sequences = numbers.pop()
    if n_sequences < 2 or n_resamples < 1:
        raise ValueError(
            f"expected at least 2 sequences and 1 resample, got {n_sequences} and {n_resamples}; take more text"
        )
    generator = np.random.default_rng(seed)
    chunk = max(1, _MAX_CELLS // n_sequences)
    resampled: list[list[np.ndarray]] = [[] for _ in samples]
    for start in range(0, n_resamples, chunk):
        size = min(chunk, n_resamples - start)
        weights = generator.multinomial(n_sequences, np.full(n_sequences, 1 / n_sequences), size).astype(float)
        for sample, profiles in zip(samples, resampled, strict=True):
            with np.errstate(invalid="ignore"):
                profiles.append(weights @ sample.sums / (weights @ sample.counts)[:, None])
    return [np.concatenate(profiles) for profiles in resampled]


def percentile_interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of the middle 95 % of resampled values, (n_resamples, ...); NaN are ignored."""
    low, high = np.nanquantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return low, high


def paired_gap(first: SequenceSums, second: SequenceSums) -> pd.DataFrame:
    """Compare two classes of tokens of the same sequences by a paired t-test over sequences.

    A pair is one sequence: the mean cosine over its tokens of the first class, and over those of the second.
    Sequences that lack either class are left out. Every sequence has the same weight, however many tokens it has.

    Returns:
        A row for each layer but the last: layer, gap (mean alignment of the first class minus that of the second),
        gap_low and gap_high (95 % confidence interval), t, p (two-sided; NaN if no sequence differs from another),
        p_holm (adjusted for testing every layer), test, n (sample sizes, in words).

    Source: Student 1908; scipy.stats.ttest_rel.
    """
    if first.sums.shape != second.sums.shape:
        raise ValueError(
            f"expected two classes of the same sequences, got {first.sums.shape} and {second.sums.shape}; use one probe"
        )
    both = (first.counts > 0) & (second.counts > 0)
    if both.sum() < 2:
        raise ValueError(
            f"expected at least 2 sequences with tokens of both classes, got {both.sum()} of {len(both)}; take more "
            "text"
        )
    one, other = first.means[both, :-1], second.means[both, :-1]
    with np.errstate(all="ignore"):
        tested = stats.ttest_rel(one, other)
    return _gap("paired t-test", f"{both.sum()} sequences", (one - other).mean(0), tested)


def unpaired_gap(first: SequenceSums, second: SequenceSums) -> pd.DataFrame:
    """Compare two kinds of sentences by Welch's t-test over sentences.

    Sentences of the two kinds do not correspond, so any pairing would be arbitrary, and the result would depend on the
    order of the sentences. Each sentence has the same weight, as the mean over its tokens; the two kinds may differ in
    variance and number.

    Returns:
        As :func:`paired_gap`.

    Source: Welch 1947 (Biometrika 34:28); scipy.stats.ttest_ind.
    """
    one, other = (kind.means[kind.counts > 0, :-1] for kind in (first, second))
    if min(len(one), len(other)) < 2 or one.shape[1] != other.shape[1]:
        raise ValueError(
            "expected at least 2 sentences of either kind and as many layers, got "
            f"{one.shape} and {other.shape}; take more sentences"
        )
    with np.errstate(all="ignore"):
        tested = stats.ttest_ind(one, other, equal_var=False)
    return _gap("Welch's t-test", f"{len(one)} and {len(other)} sentences", one.mean(0) - other.mean(0), tested)


def holm(p: ArrayLike) -> np.ndarray:
    """Adjust p-values for testing all of them: the chance of any false positive is then at most the threshold.

    The i-th smallest of m becomes ``max over j <= i of min(1, (m - j + 1) p_j)``; NaN stays NaN, and is not counted.

    Args:
        p: (m,) in [0, 1] or NaN.

    Source: Holm 1979 (Scand. J. Statist. 6:65).

    >>> holm([0.01, 0.04, 0.03]).round(2).tolist()
    [0.03, 0.06, 0.06]
    """
    values = np.asarray(p, dtype=float)
    if values.ndim != 1 or (values < 0).any() or (values > 1).any():
        raise ValueError(f"expected p-values, (m,) in [0, 1], got {p!r}")
    adjusted = np.full(len(values), np.nan)
    tested = np.flatnonzero(~np.isnan(values))
    order = tested[np.argsort(values[tested], kind="stable")]
    adjusted[order] = np.maximum.accumulate(np.minimum(1, values[order] * np.arange(len(order), 0, -1)))
    return adjusted


def _gap(test: str, n: str, gap: np.ndarray, tested: Any) -> pd.DataFrame:
    bounds, p = tested.confidence_interval(LEVEL), tested.pvalue
    columns = {"layer": np.arange(len(gap)), "gap": gap, "gap_low": bounds.low, "gap_high": bounds.high}
    return pd.DataFrame({**columns, "t": tested.statistic, "p": p, "p_holm": holm(p), "test": test, "n": n})


COMPARED: dict[tuple[str, str], Callable[[SequenceSums, SequenceSums], pd.DataFrame]] = {
    ("frequent", "rare"): paired_gap,
    ("function", "content"): paired_gap,
    ("simple", "complex"): unpaired_gap,
}
"""Pairs of classes that are compared, and the test of each."""


def class_gaps(classes: Mapping[str, SequenceSums]) -> dict[tuple[str, str], pd.DataFrame]:
    """Return the test of each pair of :data:`COMPARED` that is among the classes."""
    return {pair: test(*(classes[c] for c in pair)) for pair, test in COMPARED.items() if set(pair) <= set(classes)}


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

    Returns:
        One for each stack of blocks.
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
    with progress_bar(f"{loaded.name}: {what}") as progress:
        stacks = token_cosines(loaded, probe, subsets, layers, progress=progress)
    return {one.stack: {name: one.sum_by_sequence(probe.sample(name)) for name in subsets} for one in stacks}


def estimate_profile(measured: ConvergenceMeasurements, n_resamples: int, seed: int = 0) -> ProfileEstimate:
    """Return the alignment profile of a model on its text."""
    [resampled] = resample_profiles([measured.all_tokens], n_resamples, seed)
    return _estimate(measured.all_tokens.alignment, resampled, with_fits=True)


def estimate_change(
    before: ConvergenceMeasurements, after: ConvergenceMeasurements, n_resamples: int, seed: int = 0
) -> ProfileEstimate:
    """Return the profile of a second checkpoint minus that of a first, paired over the same sequences."""
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
        """Sum the cosines of sampled tokens over each sequence."""
        chosen = tokens.ravel()
        sequences, n_sequences = self.sequences[chosen], int(self.sequences[-1]) + 1
        sums = [np.bincount(sequences, layer[self.rows[chosen]], n_sequences) for layer in self.cosines]
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


def summaries_with_loss(rows: pd.DataFrame) -> pd.DataFrame:
    """Return each summary of the alignment profile and the loss, at every step that has both.

    Returns:
        Index step, ascending; columns those of :data:`SUMMARIES`, and "loss". Steps at which a layer has no value are
        left out.
    """
    profiles = grid(measurements(rows), "alignment", "all").dropna(axis="columns")
    loss = loss_of_run(rows).values
    steps = [step for step in profiles.columns if step in loss.index]
    table = {name: [of(profiles[step].to_numpy(float)) for step in steps] for name, of in SUMMARIES.items()}
    return pd.DataFrame({**table, "loss": loss.loc[steps].to_numpy(float)}, index=pd.Index(steps, name="step"))


def loss_correlations(table: pd.DataFrame) -> pd.DataFrame:
    """Return the correlation of each summary with the loss.

    There is no p-value: checkpoints of one training are not independent draws, and anything that moves in one direction
    while the loss falls correlates with it.

    Returns:
        Index the summary; columns spearman and pearson in [-1, 1], NaN for a summary or loss that never changes.
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
