"""In which settings runs differ."""

from collections.abc import Iterator, Sequence

from repdyn.store.schema import LEARNING_RATE
from repdyn.utils.numbers import NO_VALUE, number_text, short_count
from repdyn.views.judging.insight import Insight
from repdyn.views.tables.frames import scalar, values_of
from repdyn.views.tables.runs import PLACES, MeasuredRun, listed

_STORED = {
    "model": "model",
    "design": "design",
    "dtype": "states in",
    "attention": "attention",
    "device": "on",
}
"""Names of settings by the column that has them."""
_MAX_SETTINGS = 12
_MAX_VALUES = 4
"""How many settings, and values of one, are named."""


def settings_statements(runs: Sequence[MeasuredRun]) -> Iterator[Insight]:
    """Yield in which settings runs differ: those of the trainings, where all are stored, then those
    of the measurement.

    Of trainings without them the largest learning rate that was measured is compared.
    """
    # a module's learning rate is its optimizer's too: what differs in the same way is listed once
    names_by_values: dict[tuple[str, ...], list[str]] = {}
    for name, of_runs in _settings_of(runs).items():
        names_by_values.setdefault(tuple(of_runs), []).append(name)
    different = []
    for of_runs, names in names_by_values.items():
        labels: dict[str, list[str]] = {}
        for value, run in zip(of_runs, runs, strict=True):
            labels.setdefault(value, []).append(run.label)
        if len(labels) > 1:
            shown = listed(labels) if len(labels) <= _MAX_VALUES else f"{len(labels)} values"
            different.append(f"{' and '.join(names)} {shown}")
    if different:
        n_more = len(different) - _MAX_SETTINGS
        more = f"; and {n_more} more settings" if n_more > 0 else ""
        sentence = f"These runs differ in: {'; '.join(different[:_MAX_SETTINGS])}{more}."
        yield Insight("note", "settings", sentence, weight=1.0)


def _settings_of(runs: Sequence[MeasuredRun]) -> dict[str, list[str]]:
    """Return the value of each setting in each run as text, by the name of the setting."""
    names = dict.fromkeys(name for run in runs for name in run.settings if name not in PLACES)
    values = {name: [run.settings.get(name, NO_VALUE) for run in runs] for name in names}
    # settings of some trainings alone would make all of them look different
    if not all(run.settings for run in runs):
        rates = [scalar(run.scalars, LEARNING_RATE).max() for run in runs]
        values = {"largest learning rate measured": [number_text(rate) for rate in rates]}
    for column, title in _STORED.items():
        values[title] = [
            ", ".join(map(str, values_of(run.rows, column))) or NO_VALUE for run in runs
        ]
    values["parameters"] = [
        NO_VALUE if run.parameters is None else short_count(run.parameters) for run in runs
    ]
    values["probe"] = [run.probe[:8] for run in runs]
    return values
