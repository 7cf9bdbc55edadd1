"""What a study of convergence says in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from repdyn.studies.convergence.bootstrap import Interval, SequenceSums
from repdyn.studies.convergence.figures import THRESHOLD
from repdyn.studies.convergence.loss import Correlation
from repdyn.studies.convergence.results import Result, Uncertain
from repdyn.studies.convergence.splits import Gap
from repdyn.tables.alignment_profile import isotonic_fit, lower_envelope


def print_profile(result: Result, found: Uncertain, console: Console | None = None) -> None:
    """The profile of a model layer by layer, and what it comes to."""
    console = console or Console()
    tokens, sequences = result.everything.n_tokens, len(result.everything.counts)
    fit, bound = isotonic_fit(found.steps), lower_envelope(found.steps)
    console.print(Text.assemble((result.name, "bold"), f"  {tokens:,} tokens of {sequences:,} sequences"))
    console.print(_table(found, {"isotonic": fit, "envelope": bound}))
    _say(console, f"average rate {found.rate:.4f} {_bounds(found.rate_interval, ())}")
    _say(console, _about_fit(found.steps, fit))
    for name, sums in result.classes.items():
        _say(console, _about_class(name, sums))
    for pair, gap in result.gaps().items():
        _say(console, _about_gap(pair, gap))
    console.print()


def print_change(title: str, found: Uncertain, console: Console | None = None) -> None:
    """The difference of two profiles layer by layer."""
    console = console or Console()
    console.print(Text(title, style="bold"))
    console.print(_table(found, {}))
    _say(console, f"average rate {found.rate:+.4f} {_bounds(found.rate_interval, ())}")
    console.print()


def print_correlations(title: str, found: Sequence[Correlation], console: Console | None = None) -> None:
    """How the summaries of a run's profiles go with its loss."""
    console = console or Console()
    console.print(Text.assemble((title, "bold"), f"  {found[0].n} checkpoints; correlation with the training loss"))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in ("summary", "Spearman", "Pearson"):
        table.add_column(column, justify="left" if column == "summary" else "right", no_wrap=True)
    for one in found:
        table.add_row(one.summary, f"{one.spearman:.3f}", f"{one.pearson:.3f}")
    console.print(table)
    _say(console, "Checkpoints of one training are not independent: no p-value belongs to these.")
    console.print()


def _table(found: Uncertain, fits: dict[str, np.ndarray]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for column in ("layer", "alignment", "95 %", "gradient", "95 %", *fits):
        table.add_column(column, justify="right", no_wrap=True)
    for layer, value in enumerate(found.alignment):
        cells = [str(layer), f"{value:.4f}", _bounds(found.alignment_interval, layer)]
        if layer < len(found.steps):
            cells += [f"{found.steps[layer]:.4f}", _bounds(found.steps_interval, layer)]
            cells += [f"{values[layer]:.4f}" for values in fits.values()]
        table.add_row(*cells)
    return table


def _about_fit(steps: np.ndarray, fit: np.ndarray) -> str:
    above = np.flatnonzero(fit > steps + 1e-12)
    largest = int(steps.argmax())
    about = f"largest step {steps[largest]:.4f} (layer {largest} to {largest + 1}), last step {steps[-1]:.4f}"
    if not len(above):
        return f"{about}; the isotonic fit is nowhere above the gradient"
    return f"{about}; the isotonic fit is above the gradient, and so no lower bound, at {_layers(above)}"


def _about_class(name: str, sums: SequenceSums) -> str:
    values = sums.alignment
    return f"{name}: {sums.n_tokens:,} tokens, layer 0 {values[0]:.4f}, mean over layers {values.mean():.4f}"


def _about_gap(pair: tuple[str, str], gap: Gap) -> str:
    marked = gap.p_holm < THRESHOLD
    higher, lower = (np.flatnonzero(marked & of) for of in (gap.mean > 0, gap.mean < 0))
    said = [f"{pair[0]} higher at {_layers(higher)}"] * bool(len(higher))
    said += [f"{pair[1]} higher at {_layers(lower)}"] * bool(len(lower))
    found = " and ".join(said) or "no layer differs"
    return f"{pair[0]} against {pair[1]} ({gap.test}, {gap.n}, Holm, {THRESHOLD:.0%}): {found}"


def _bounds(interval: Interval, at: int | tuple[()]) -> str:
    return f"[{interval.low[at]:.4f}, {interval.high[at]:.4f}]"


def _layers(numbers: np.ndarray) -> str:
    return f"layer{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers.tolist()))}"


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False)
