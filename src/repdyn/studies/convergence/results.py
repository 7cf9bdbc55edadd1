"""What is worked out for each model of a study of convergence, and the tables of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from repdyn.studies.convergence.bootstrap import Interval, SequenceSums, percentiles, resampled
from repdyn.studies.convergence.splits import Gap, paired_gap, unpaired_gap
from repdyn.tables.alignment_profile import average_rate, gradient, isotonic_fit, lower_envelope

SPLITS: dict[tuple[str, str], Callable[[SequenceSums, SequenceSums], Gap]] = {
    ("frequent", "rare"): paired_gap,
    ("function", "content"): paired_gap,
    ("simple", "complex"): unpaired_gap,
}
"""Classes that are held against one another, and by which test."""


@dataclass(frozen=True, eq=False)
class Result:
    """One model, or one stack of its blocks, on one probe."""

    name: str
    probe: str
    """Hash of the text's probe."""
    classes: Mapping[str, SequenceSums]
    """Of subsets of the text's tokens ("all" first, "rare", ...), and of sentences of one kind ("simple", ...)."""

    @property
    def everything(self) -> SequenceSums:
        """Of the text's tokens, whatever they are."""
        return self.classes["all"]

    @property
    def n_layers(self) -> int:
        """L + 1: the embedding output, and one for each block."""
        return self.everything.sums.shape[1]

    def gaps(self) -> dict[tuple[str, str], Gap]:
        """Each pair of classes that the model was measured on."""
        there = {pair: test for pair, test in SPLITS.items() if set(pair) <= set(self.classes)}
        return {(one, other): test(self.classes[one], self.classes[other]) for (one, other), test in there.items()}


@dataclass(frozen=True, eq=False)
class Uncertain:
    """A profile with its steps, or a difference of two, and the 95 % intervals of a bootstrap over sequences."""

    alignment: np.ndarray
    """(L + 1,)."""
    alignment_interval: Interval
    steps: np.ndarray
    """(L,)."""
    steps_interval: Interval
    rate: float
    rate_interval: Interval


def profile(result: Result, n_resamples: int, seed: int = 0) -> Uncertain:
    """The alignment profile of a model on its text."""
    [drawn] = resampled([result.everything], n_resamples, seed)
    return _uncertain(result.everything.alignment, drawn)


def change(before: Result, after: Result, n_resamples: int, seed: int = 0) -> Uncertain:
    """The profile of a second checkpoint minus that of a first, over the same sequences, drawn alike.

    Raises:
        ValueError: other tokens, or another number of layers.
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
    earlier, later = resampled([before.everything, after.everything], n_resamples, seed)
    return _uncertain(after.everything.alignment - before.everything.alignment, later - earlier)


def profile_table(name: str, found: Uncertain) -> pd.DataFrame:
    """One line for each layer; steps and their fits stand at the layer they begin at, and the last layer has none."""
    return pd.DataFrame(
        {
            **_columns(name, found),
            "isotonic_fit": _and_none(isotonic_fit(found.steps)),
            "lower_envelope": _and_none(lower_envelope(found.steps)),
        }
    )


def change_table(name: str, found: Uncertain) -> pd.DataFrame:
    """One line for each layer, as :func:`profile_table` has them, without the fits."""
    return pd.DataFrame(_columns(name, found))


def class_table(results: Sequence[Result]) -> pd.DataFrame:
    """The alignment of each class of tokens or sentences, one line for each model, class and layer."""
    return pd.concat([_class_lines(result) for result in results], ignore_index=True)


def gap_table(results: Sequence[Result]) -> pd.DataFrame:
    """One line for each model, pair of classes and layer but the last; empty without classes."""
    lines = [_gap_lines(result.name, pair, gap) for result in results for pair, gap in result.gaps().items()]
    return pd.concat(lines, ignore_index=True) if lines else pd.DataFrame()


def _uncertain(alignment: np.ndarray, drawn: np.ndarray) -> Uncertain:
    return Uncertain(
        alignment,
        percentiles(drawn),
        gradient(alignment),
        percentiles(gradient(drawn)),
        float(average_rate(alignment)),
        percentiles(average_rate(drawn)),
    )


def _columns(name: str, found: Uncertain) -> dict[str, object]:
    return {
        "model": name,
        "layer": np.arange(len(found.alignment)),
        "alignment": found.alignment,
        "alignment_low": found.alignment_interval.low,
        "alignment_high": found.alignment_interval.high,
        "gradient": _and_none(found.steps),
        "gradient_low": _and_none(found.steps_interval.low),
        "gradient_high": _and_none(found.steps_interval.high),
    }


def _and_none(values: np.ndarray) -> np.ndarray:
    return np.append(values, np.nan)


def _class_lines(result: Result) -> pd.DataFrame:
    return pd.concat(
        [
            pd.DataFrame(
                {
                    "model": result.name,
                    "class": name,
                    "layer": np.arange(result.n_layers),
                    "alignment": sums.alignment,
                    "n_tokens": sums.n_tokens,
                    "n_sequences": int((sums.counts > 0).sum()),
                }
            )
            for name, sums in result.classes.items()
        ]
    )


def _gap_lines(name: str, pair: tuple[str, str], gap: Gap) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "model": name,
            "first": pair[0],
            "second": pair[1],
            "layer": np.arange(len(gap.mean)),
            "gap": gap.mean,
            "gap_low": gap.low,
            "gap_high": gap.high,
            "t": gap.t,
            "p": gap.p,
            "p_holm": gap.p_holm,
            "test": gap.test,
            "n": gap.n,
        }
    )
