"""Measure how the tokens of a model approach their states at the last layer, and what is lost
without each block.

The gradient, its average and what is fitted to it follow Lee 2024, Fractal Self-Similarity in
Semantic Convergence (Fractal Fract. 8(10):552). Profiles A_0 ... A_L are mean cosines of each layer
to the last one, all finite.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats
from scipy.optimize import isotonic_regression
from torch import Tensor, nn
from tqdm import tqdm

from repdyn import measure
from repdyn.activations import LayerStates, LoadedModel, Model, layer_states
from repdyn.kernels import Cloud, UndefinedError, alignment, full_precision
from repdyn.kernels.cosines import cosines, matched, require_numbers
from repdyn.lab.studies.bootstrap import LEVEL, Estimate, SequenceSums, bootstrap
from repdyn.lab.studies.generated_sentences import KINDS, sentence_probe
from repdyn.lab.studies.result import join_tables
from repdyn.probe import Probe
from repdyn.store.schema import PROBE_LOSS
from repdyn.views.tables.frames import grid, measurements

FALLS = (0.0, 0.01)
"""Sizes of a fall of a token's cosine from one layer to the next: shares of larger falls are
reported.
"""
_ROUNDING = 1e-12
LONGEST = 512
"""Tokens of the longest sentence, as published."""
MAX_SKIPPED = 4096
"""Largest number of tokens on which the model runs once without each block."""
THRESHOLD = 0.05
"""Adjusted p-values below it are reported as significant."""
MIN_CHECKPOINTS = 4
"""With three points, ranks agree perfectly in a third of all cases."""
ANY_STEP = "any"
COMPARED = {("frequent", "rare"): True, ("function", "content"): True}
COMPARED |= {("simple", "complex"): False, ("random", "complex"): False}
"""Pairs of classes that are compared, and whether they are of the same sequences."""
_RATES = np.linspace(-5.0, 5.0, 100_001)
"""Rates of decay of a gradient per layer that are tried: at the largest the next step is 150 times
as small.
"""


class ClassCosines(NamedTuple):
    """The cosines to the last layer of one class of tokens, in one stack of blocks."""

    alignment: SequenceSums
    falls: Mapping[float, SequenceSums]
    """By size: how many cosines fall by more than it at each step, and at any step in the last
    column.
    """
    of_words: np.ndarray
    """(n_words, L + 1): the mean over the tokens of each distinct word, an entry of the model's
    vocabulary.
    """


def convergence_of_text(
    loaded: LoadedModel, probe: Probe, classes: Sequence[str]
) -> dict[str, ClassCosines]:
    """Run a model, or one stack of its blocks, over a text.

    Returns:
        What was measured by subset of the text's tokens: "all", "no_sink", and the classes.
    """
    return _by_class(loaded, probe, ("all", "no_sink", *classes))


def convergence_of_sentences(
    loaded: LoadedModel, n: int, *, are_long: bool = False
) -> dict[str, ClassCosines]:
    """Run a model, or one stack of its blocks, over ``n`` generated sentences of each kind.

    Returns:
        What was measured by kind of sentence: "simple", "complex", and "random" of long ones.
    """
    try:
        probe = sentence_probe(
            loaded.tokenizer,
            n,
            sequence_length=min(loaded.context, LONGEST) if are_long else loaded.context,
            are_long=are_long,
        )
    except ValueError as error:
        raise ValueError(
            f"{loaded.name} cannot read generated sentences: {error}; leave them out with "
            "sentences=0"
        ) from error
    kinds = [kind for kind in KINDS if kind in probe.classes]
    return _by_class(loaded, probe, kinds, by_length=are_long)


def _by_class(
    loaded: LoadedModel, probe: Probe, subsets: Sequence[str], *, by_length: bool = False
) -> dict[str, ClassCosines]:
    """Return the cosines by subset, and of tokens in sequences of up to 64 tokens, to 128, ... if
    wanted.
    """
    samples = {name: probe.sample(name).ravel() for name in subsets}
    edges = [0, 64]
    while edges[-1] < probe.lengths.max():
        edges.append(2 * edges[-1])
    for name, tokens in list(samples.items()) if by_length else ():
        lengths = probe.lengths.numpy()[probe.window_of(tokens)]
        parts = {
            edge: tokens[(lengths > edge[0]) & (lengths <= edge[1])] for edge in pairwise(edges)
        }
        samples |= {
            f"{name}, {low + 1} to {high} tokens": of_length
            for (low, high), of_length in parts.items()
            if len(of_length)
        }
    cosines = token_cosines(loaded, probe, subsets)
    return {name: class_cosines(cosines, tokens, probe) for name, tokens in samples.items()}


def class_cosines(cosines: np.ndarray, tokens: np.ndarray, probe: Probe) -> ClassCosines:
    """Return what is measured of some tokens of a probe, by their numbers (n,), from
    :func:`token_cosines`.
    """
    cosines = cosines[:, tokens]
    sequences = (probe.window_of(tokens), len(probe.lengths))
    # a fall is positive
    steps = -np.diff(cosines, axis=0)
    fell = {size: steps > max(size, _ROUNDING) for size in FALLS}
    # the last column counts tokens that fall at some step, which no sum over steps gives
    falls = {
        size: SequenceSums.of(np.vstack([at, at.any(0)]), *sequences) for size, at in fell.items()
    }
    # frequent words decide a mean over tokens: over words each counts once
    distinct, words = np.unique(probe.tokens.numpy()[tokens], return_inverse=True)
    of_words = SequenceSums.of(cosines, words, len(distinct)).means
    return ClassCosines(SequenceSums.of(cosines, *sequences), falls, of_words)


def token_cosines(model: Model, probe: Probe, subsets: Sequence[str]) -> np.ndarray:
    """Run a model over a probe and compute ``cos(h_l(t), h_L(t))`` for every token t of the subsets
    and layer l.

    The last layer L is the last block's output before a final normalisation. The mean over a subset
    is the metric "alignment" on it.

    Returns:
        (L + 1, n_tokens of the probe) float64 in [-1, 1], NaN for other tokens.
    """
    states = layer_states(model, probe, subsets=subsets)
    of_layers = np.stack([_cosines(layer, states.layers[-1]) for layer in states.layers])
    return np.where(states.rows >= 0, of_layers[:, states.rows], np.nan)


def _cosines(layer: LayerStates, last: LayerStates) -> np.ndarray:
    try:
        with full_precision(layer.device):
            clouds = matched(
                require_numbers, *(Cloud(one.states.to(one.device)) for one in (layer, last))
            )
            return cosines(*clouds).cpu().numpy()
    except UndefinedError as undefined:
        raise ValueError(
            f"expected states with a direction at layer {layer.index} ({layer.module}) and at the "
            f"last layer, got some without: {undefined.reason}"
        ) from undefined


def skip_blocks(loaded: LoadedModel, probe: Probe) -> pd.DataFrame:
    """Measure a model without each of its blocks, one at a time, on a probe.

    Returns:
        A row for the whole model (layer -1) and for each block: layer (its input, whose gradient it
        adds), final_alignment (mean cosine of each token's last state to its own in the whole
        model), loss, reason if it is NaN.
    """
    # the embedding output is no block that could be left out
    _, *blocks = layer_states(loaded, probe)
    rows = [(-1, 1.0, *_loss(loaded, probe))]
    for block in tqdm(blocks, desc=f"{loaded.name}: without each block", leave=False):
        with loaded.model.get_submodule(block.module).register_forward_hook(
            _pass_on, with_kwargs=True
        ):
            # the block still runs, but what it adds to its input is dropped
            *_, last = layer_states(loaded, probe)
            changed = float(alignment(last.states, blocks[-1].states))
            rows.append((block.index - 1, changed, *_loss(loaded, probe)))
    return pd.DataFrame(rows, columns=["layer", "final_alignment", "loss", "reason"])


def _loss(loaded: LoadedModel, probe: Probe) -> tuple[float, str]:
    if loaded.with_head is None:
        return math.nan, "the model has no language-modelling head"
    scalars = measure(loaded.with_head, probe, ["norm"], loaded.layers, probe_loss=True).scalars
    [row] = [row for row in scalars if row.metric == PROBE_LOSS]
    return row.value, row.reason or ""


def _pass_on(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """Return the states that a block gets in place of those that it puts out."""
    states = args[0] if args else kwargs["hidden_states"]
    return states if isinstance(output, Tensor) else (states, *output[1:])


def decay_rate(steps: ArrayLike) -> float:
    """Return the rate lambda of the curve ``a * exp(-lambda * l)`` nearest to a gradient (L,) by
    least squares.

    Per layer, positive where the gradient shrinks with depth, in [-5, 5]; NaN for fewer than two
    steps, or all 0.

    >>> round(decay_rate([0.4, 0.2, 0.1, 0.05]), 4)
    0.6931
    """
    values = np.asarray(steps, float)
    if len(values) < 2 or not values.any():
        return math.nan
    # the best factor a is a projection, whatever the curve's own scale; so each is scaled to a
    # largest value of 1, which cannot overflow
    curves = np.exp(
        -np.outer(_RATES, np.arange(len(values)))
        - np.maximum(0.0, -_RATES * (len(values) - 1))[:, None]
    )
    return float(_RATES[((curves @ values) ** 2 / (curves**2).sum(1)).argmax()])


def bound_over_alignment(alignment: ArrayLike) -> np.ndarray:
    """Return the largest non-decreasing function f of the alignment with ``G_l >= f(A_l)``: f(A_0)
    ... f(A_{L-1}).

    It is the lower envelope where the alignment rises with depth, and differs where it falls.
    Source: theorem 3.

    >>> bound_over_alignment([0.5, 0.25, 0.75, 1.0]).tolist()
    [-0.25, -0.25, 0.25]
    """
    steps = np.diff(alignment)
    before = np.asarray(alignment, float)[:-1]
    lowest = []
    for value in before:
        is_as_high = before >= value
        lowest.append(steps[is_as_high].min())
    return np.array(lowest)


def compare_classes(first: SequenceSums, second: SequenceSums, *, paired: bool) -> pd.DataFrame:
    """Compare the alignment of two classes of tokens, or of two kinds of sentences, every sequence
    with one weight.

    Two classes of the same sequences by a paired t-test of the means over the tokens of each class
    (sequences that lack either are left out), two kinds of sentences by Welch's t-test, since any
    pairing would be arbitrary.

    Returns:
        A row for each layer but the last: layer, gap (mean alignment of the first minus that of the
        second), gap_low and gap_high (95% confidence interval), t, p (two-sided; NaN if no sequence
        differs from another), p_holm (adjusted for testing every layer), test, n (sample sizes, in
        words).
    """
    has = first.counts > 0, second.counts > 0
    if paired:
        has = (has[0] & has[1],) * 2
    first_means, other = (
        # at the last layer every alignment is 1
        sums.means[chosen, :-1]
        for sums, chosen in zip((first, second), has, strict=True)
    )
    if min(len(first_means), len(other)) < 2:
        what = "sequences with tokens of both classes" if paired else "sentences of either kind"
        raise ValueError(
            f"expected at least 2 {what}, got {len(first_means)} and {len(other)}; take more text, "
            "or sentences"
        )
    # where no sequence differs from another the test has no t, and the row says NaN
    with np.errstate(all="ignore"):
        tested: Any = (
            stats.ttest_rel(first_means, other)
            if paired
            else stats.ttest_ind(first_means, other, equal_var=False)
        )
    gap = (first_means - other).mean(0) if paired else first_means.mean(0) - other.mean(0)
    bounds = tested.confidence_interval(LEVEL)
    table = {
        "layer": np.arange(len(gap)),
        "gap": gap,
        "gap_low": bounds.low,
        "gap_high": bounds.high,
    }
    table |= {"t": tested.statistic, "p": tested.pvalue, "p_holm": holm(tested.pvalue)}
    test = "paired t-test" if paired else "Welch's t-test"
    n = (
        f"{len(first_means)} sequences"
        if paired
        else f"{len(first_means)} and {len(other)} sentences"
    )
    return pd.DataFrame({**table, "test": test, "n": n})


def class_gaps(
    classes: Mapping[str, ClassCosines], own_classes: Iterable[str] = ()
) -> dict[tuple[str, str], pd.DataFrame]:
    """Return the test of each pair of :data:`COMPARED` that is among the classes, and of each
    ``own_classes`` class against all tokens but first positions and special ones."""
    pairs = {**COMPARED, **{(name, "no_sink"): True for name in own_classes}}
    return {
        pair: compare_classes(*(classes[name].alignment for name in pair), paired=paired)
        for pair, paired in pairs.items()
        if set(pair) <= set(classes)
    }


def holm(p: ArrayLike) -> np.ndarray:
    """Adjust p-values for testing all of them, NaN aside: the chance of any false positive stays at
    the threshold.

    Source: Holm 1979 (Scand. J. Statist. 6:65).

    >>> holm([0.01, 0.04, 0.03]).round(2).tolist()
    [0.03, 0.06, 0.06]
    """
    values = pd.Series(np.asarray(p, dtype=float))
    ascending = values.dropna().sort_values(kind="stable")
    # the smallest p times the number of tests, the next times one fewer, none below the one before
    adjusted = (ascending * np.arange(len(ascending), 0, -1)).clip(upper=1).cummax()
    return adjusted.reindex(values.index).to_numpy()


def profile_table(profile: Estimate, *, with_fits: bool = True) -> pd.DataFrame:
    """Return an alignment profile, or a difference of two, with its gradient, and ``with_fits`` of
    it: a row for each layer. Gradients and fits are from the layer to the next, NaN at the last."""
    steps = profile.map(np.diff)
    columns = {**profile.columns("alignment"), **steps.columns("gradient")}
    if with_fits:
        # a pooled mean lies above the smallest of what it pools: the fit of the source is no lower
        # bound
        columns["isotonic_fit"] = isotonic_regression(steps.values).x
        columns["lower_envelope"] = np.minimum.accumulate(steps.values[::-1])[::-1]
        columns["bound"] = bound_over_alignment(profile.values)
    frame = pd.DataFrame({name: pd.Series(values) for name, values in columns.items()})
    return frame.rename_axis("layer").reset_index()


def class_table(
    measured: Mapping[str, ClassCosines], n_resamples: int, seed: int = 0
) -> pd.DataFrame:
    """Return the alignment of each class of tokens or sentences, a row for each class and layer:
    mean over tokens with its 95% interval, its step to the next layer and the monotonic fit to
    these, and the mean over distinct words, each by the mean of its tokens."""
    frames = {}
    for name, of_model in measured.items():
        [estimate] = bootstrap([of_model.alignment], n_resamples, seed)
        table = {"layer": range(of_model.alignment.sums.shape[1]), **estimate.columns("alignment")}
        steps = estimate.map(np.diff)
        # from each layer to the next, so that the last one has none
        to_next = {**steps.columns("gradient"), "isotonic_fit": isotonic_regression(steps.values).x}
        table |= {column: np.append(values, np.nan) for column, values in to_next.items()}
        table |= {
            "alignment_of_words": of_model.of_words.mean(0),
            "n_tokens": of_model.alignment.n_tokens,
        }
        n_sequences = np.count_nonzero(of_model.alignment.counts)
        frames[name] = pd.DataFrame(
            {**table, "n_words": len(of_model.of_words), "n_sequences": n_sequences}
        )
    return join_tables(frames, "class")


def key_layers(classes: pd.DataFrame) -> pd.DataFrame:
    """Return the alignment of each class of each model at some layers, from the :func:`class_table`
    of all models.
    """
    groups = classes.groupby(["model", "class"], sort=False)
    means = {"mean": ("alignment", "mean"), "mean_of_words": ("alignment_of_words", "mean")}
    places = {"first": lambda n: 0, "middle": lambda n: n // 2, "last_but_one": lambda n: n - 2}
    at = {
        name: ("alignment", lambda of, place=place: of.iloc[place(len(of))])
        for name, place in places.items()
    }
    return groups.agg(**means, **at).reset_index()


def fall_table(
    measured: Mapping[str, ClassCosines], n_resamples: int, seed: int = 0
) -> pd.DataFrame:
    """Return the share of each class's tokens whose cosine to their final vector falls, a row for
    each class, size of the fall (of :data:`FALLS`) and layer from which to the next; "any" for at
    least one step."""
    frames = {}
    for name, of_model in measured.items():
        layers = [*range(of_model.alignment.sums.shape[1] - 1), ANY_STEP]
        for size, sums in of_model.falls.items():
            [estimate] = bootstrap([sums], n_resamples, seed)
            table = {"layer": layers, **estimate.columns("share"), "n_tokens": sums.n_tokens}
            frames[name, size] = pd.DataFrame(table)
    return join_tables(frames, "class", "more_than")


def _middle_third(steps: np.ndarray) -> np.ndarray:
    third = len(steps) // 3
    return steps[third : len(steps) - third]


SUMMARIES: dict[str, Callable[[np.ndarray], float]] = {
    "mean alignment": lambda alignment: float(alignment.mean()),
    "average rate": lambda alignment: float(alignment[-1] - alignment[0]) / (len(alignment) - 1),
    "rate of the middle third": lambda alignment: float(_middle_third(np.diff(alignment)).mean()),
    "last step": lambda alignment: float(np.diff(alignment)[-1]),
    "decay of the gradient": lambda alignment: decay_rate(np.diff(alignment)),
}
"""Scalar summaries of a profile A_0 ... A_L, (L + 1,)."""


def summaries_with(rows: pd.DataFrame, values: pd.Series) -> pd.DataFrame:
    """Return each summary of the alignment profile of a run, or one stack of its model, and a
    scalar by step, without NaN (column "value"), at every step that has both."""
    # a step at which a layer has no value has no profile
    profiles = grid(measurements(rows), "alignment", "all").dropna(axis="columns")
    steps = [step for step in profiles.columns if step in values.index]
    table = {
        name: [of(profiles[step].to_numpy(float)) for step in steps]
        for name, of in SUMMARIES.items()
    }
    return pd.DataFrame(
        {**table, "value": values.loc[steps].to_numpy(float)}, index=pd.Index(steps, name="step")
    )


def correlations(table: pd.DataFrame) -> pd.DataFrame:
    """Return the correlation of each summary with the scalar: spearman and pearson, NaN where one
    never changes.

    There is no p-value: checkpoints of one training are not independent draws, and anything that
    moves in one direction while the scalar does correlates with it.
    """
    if len(table) < MIN_CHECKPOINTS:
        raise ValueError(
            f"expected at least {MIN_CHECKPOINTS} checkpoints with both an alignment profile and "
            f"the scalar, got {len(table)}; measure the metric alignment at more steps of the "
            "training"
        )
    # rounding would give constants a correlation
    varying = table.loc[:, table.nunique() > 1].reindex(columns=table.columns)
    summaries = varying[list(SUMMARIES)]
    values = varying["value"]
    coefficients = {
        method: summaries.corrwith(values, method=method) for method in ("spearman", "pearson")
    }
    return pd.DataFrame(coefficients).rename_axis("summary").reset_index()
