"""Print what a study of convergence found."""

from __future__ import annotations

import numpy as np
import pandas as pd

from repdyn.studies.convergence.bootstrap import Interval
from repdyn.studies.convergence.gaps import THRESHOLD, ClassGap
from repdyn.studies.convergence.profiles import ConvergenceMeasurements, ProfileEstimate
from repdyn.studies.output import print_line, print_table, print_title
from repdyn.tables.alignment_profile import isotonic_fit, lower_envelope


def print_profile(measured: ConvergenceMeasurements, estimate: ProfileEstimate) -> None:
    """Print the profile of a model layer by layer, its classes and their gaps."""
    tokens, sequences = measured.all_tokens.n_tokens, len(measured.all_tokens.counts)
    fit = isotonic_fit(estimate.steps)
    print_title(measured.name, f"{tokens:,} tokens of {sequences:,} sequences")
    _print_layers(estimate, {"isotonic": fit, "envelope": lower_envelope(estimate.steps)})
    print_line(f"average rate {estimate.rate:.4f} {_bounds(estimate.rate_interval)}")
    print_line(_describe_fit(estimate.steps, fit))
    for name, sums in measured.classes.items():
        first, mean = sums.alignment[0], sums.alignment.mean()
        print_line(f"{name}: {sums.n_tokens:,} tokens, layer 0 {first:.4f}, mean over layers {mean:.4f}")
    for pair, gap in measured.gaps().items():
        print_line(_describe_gap(pair, gap))
    print_line("")


def print_change(title: str, change: ProfileEstimate) -> None:
    """Print the difference of two profiles layer by layer."""
    print_title(title)
    _print_layers(change, {})
    print_line(f"average rate {change.rate:+.4f} {_bounds(change.rate_interval)}\n")


def print_correlations(title: str, n_checkpoints: int, correlations: pd.DataFrame) -> None:
    """Print the correlation of the summaries of a run's profiles with its loss."""
    print_title(title, f"{n_checkpoints} checkpoints; correlation with the training loss")
    rows = [(str(name), *(f"{value:.3f}" for value in values)) for name, values in correlations.iterrows()]
    print_table(("summary", "Spearman", "Pearson"), rows, left={"summary"})
    print_line("Checkpoints of one training are not independent: these correlations have no p-value.\n")


def _print_layers(estimate: ProfileEstimate, fits: dict[str, np.ndarray]) -> None:
    rows = []
    for layer, value in enumerate(estimate.alignment):
        row = [str(layer), f"{value:.4f}", _bounds(estimate.alignment_interval, layer)]
        if layer < len(estimate.steps):
            row += [f"{estimate.steps[layer]:.4f}", _bounds(estimate.steps_interval, layer)]
            row += [f"{values[layer]:.4f}" for values in fits.values()]
        rows.append(row)
    print_table(("layer", "alignment", "95 %", "gradient", "95 %", *fits), rows, gap=1)


def _describe_fit(steps: np.ndarray, fit: np.ndarray) -> str:
    above = np.flatnonzero(fit > steps + 1e-12)
    largest = int(steps.argmax())
    text = f"largest step {steps[largest]:.4f} (layer {largest} to {largest + 1}), last step {steps[-1]:.4f}"
    if not len(above):
        return f"{text}; the isotonic fit is nowhere above the gradient"
    return f"{text}; the isotonic fit is above the gradient, and so no lower bound, at {_layers(above)}"


def _describe_gap(pair: tuple[str, str], gap: ClassGap) -> str:
    higher = {pair[0]: gap.is_significant & (gap.mean > 0), pair[1]: gap.is_significant & (gap.mean < 0)}
    found = [f"{name} higher at {_layers(np.flatnonzero(where))}" for name, where in higher.items() if where.any()]
    test = f"{gap.test}, {gap.n}, Holm, {THRESHOLD:.0%}"
    return f"{pair[0]} against {pair[1]} ({test}): {' and '.join(found) or 'no layer differs'}"


def _bounds(interval: Interval, layer: int | tuple[()] = ()) -> str:
    return f"[{interval.low[layer]:.4f}, {interval.high[layer]:.4f}]"


def _layers(numbers: np.ndarray) -> str:
    return f"layer{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers.tolist()))}"
