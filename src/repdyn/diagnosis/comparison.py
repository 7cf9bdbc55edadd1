"""Statements about several runs: in which metrics they differ most, by how much, in which layers and since when."""

import math
from collections.abc import Sequence

import numpy as np

from repdyn.diagnosis.insight import Insight, report_link
from repdyn.diagnosis.metrics import MIN_CHANGE
from repdyn.diagnosis.run import chosen_series, ranked
from repdyn.tables.effects import Effect, change_size
from repdyn.tables.runs import MeasuredRun, differences
from repdyn.tables.seeds import SeedGroup, with_seeds
from repdyn.tables.series import MetricSeries
from repdyn.tables.style import metric_title, number_text, short_subset_title


def comparison_statements(described: Sequence[MeasuredRun], seeds: Sequence[SeedGroup]) -> list[Insight]:
    """Return in which metrics runs differ most, the largest difference first; and in which they agree.

    Compared are the means over layers, at the last step that all have or else at the end of each, of the two runs with
    the highest and the lowest one. They differ if the interval of the ratio of two independent values leaves out 1, and
    the ratio exceeds 1 by :data:`repdyn.diagnosis.metrics.MIN_CHANGE`. Runs that do not compare, or are one run on two
    probes, have no statement.

    Args:
        described: the runs.
        seeds: those that are seeds of one model, which count as one run.
    """
    if len({run.key for run in described}) < max(2, len(described)) or differences(described):
        return []
    runs, found, agreeing = with_seeds(described, seeds), [], []
    if len(runs) < 2:
        return []
    of_runs = [{series.key: series for series in chosen_series(run)} for run in runs]
    for key in (key for key in of_runs[0] if all(key in others for others in of_runs)):
        compared = _compared(runs, [series[key] for series in of_runs])
        if isinstance(compared, Insight):
            found.append(compared)
        elif compared:
            agreeing.append(metric_title(key[0]))
    if agreeing:
        which = "both runs" if len(runs) == 2 else f"all {len(runs)} runs"
        sentence = f"Alike in {which}, within the intervals or by {MIN_CHANGE:.0%}: {', '.join(agreeing)}."
        found.append(Insight("note", "agreement", sentence))
    return ranked(found)


def _compared(runs: Sequence[MeasuredRun], members: Sequence[MetricSeries]) -> Insight | bool:
    """Return the difference of the two runs that differ most, or whether all are known to agree."""
    shared = sorted(set.intersection(*(set(one.steps_with_values) for one in members)))
    steps = [] if any(run.finished for run in runs) else shared
    columns = [[one.steps.index(step) for step in steps] or [-1] for one in members]
    cells = [(one.values[:, at], one.margins[:, at]) for one, at in zip(members, columns, strict=True)]
    known = [~np.isnan(values[:, -1]) for values, _ in cells]
    if has_same_layers := len({one.layers for one in members}) == 1:
        known = [np.logical_and.reduce(known)] * len(known)
    if not all(layers.any() for layers in known):
        return False
    means, margins = np.swapaxes(
        [[part[at].mean(axis=0) for part in of] for of, at in zip(cells, known, strict=True)], 0, 1
    )
    high, low = int(means[:, -1].argmax()), int(means[:, -1].argmin())
    highest, lowest = float(means[high, -1]), float(means[low, -1])
    if lowest <= 0:
        return False
    effect = Effect(math.log(highest / lowest), math.hypot(margins[high, -1] / highest, margins[low, -1] / lowest))
    if effect.log_ratio <= math.log1p(MIN_CHANGE) or effect.low <= 0:
        return True
    at, layers = "at the end", ()
    if steps:
        beyond = means[high] - means[low] > np.nan_to_num(np.hypot(margins[high], margins[low]))
        first = steps[np.flatnonzero(~beyond[:-1]).max(initial=-1) + 1]
        at = f"at step {steps[-1]:,}" + f", and since step {first:,}" * (first < steps[-1])
        steps = list(dict.fromkeys([first, steps[-1]]))
    if has_same_layers:
        ends = cells[high][0][:, -1], cells[low][0][:, -1]
        place = int(np.nanargmax(np.abs(ends[0] - ends[1])))
        layers = (members[0].layers[place],)
        at += f", most in layer {layers[0]} ({' and '.join(number_text(values[place]) for values in ends)})"
    metric, subset = members[0].key
    about = f"mean over layers{'' if subset == 'all' else f', {short_subset_title(subset)}'}"
    size = (
        str(effect) if math.isfinite(effect.half_width) else f"{change_size(effect.log_ratio)} (no interval is known)"
    )
    sentence = (
        f"{metric_title(metric)} ({about}) is higher in {runs[high].label} ({number_text(highest)}) than in "
        f"{runs[low].label} ({number_text(lowest)}){f' of {len(runs)} runs' * (len(runs) > 2)} by {size} {at}."
    )
    shown = with_highest.members[0] if isinstance(with_highest := runs[high], SeedGroup) else with_highest
    link = report_link(shown.label, metric=metric, subset=subset, step=steps[-1] if steps else None)
    evidence = {"highest": highest, "lowest": lowest, "log_ratio": effect.log_ratio, "half_width": effect.half_width}
    size = 1 - math.exp(-effect.log_ratio)
    return Insight("note", "difference", sentence, metric, subset, None, layers, tuple(steps), evidence, size, link)
