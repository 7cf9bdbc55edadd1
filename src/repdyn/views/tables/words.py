"""Layers, steps and alerts in words: what a training logs, for which no package of views is
loaded."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from repdyn.views.alerts import Alert
from repdyn.views.tables.style import metric_title

_MAX_STEPS = 6
OWN_WINDOW = 0.05
"""Share of vectors with the nearest neighbour in their own window above which values describe
windows."""


def own_window_sentence(metric: str, first: float, last: float) -> str:
    """Return that many vectors have their nearest neighbour in their own window of text, as shares
    at the first and the last step, and whether ever more."""
    rising = f", up from {first:.0%}" if last > first + 0.1 else ""
    return (
        f"{metric_title(metric)}: the nearest neighbour of up to {last:.0%} of the vectors lies in "
        f"their own window of text{rising}, which this sampling design lets count; a probe of the "
        'design "independent" leaves it out.'
    )


def layer_names(layers: Sequence[int]) -> str:
    """Return layers by number, in a sentence.

    >>> layer_names([3]), layer_names([0, 4, 5, 6])
    ('layer 3', 'layers 0, 4-6')
    """
    return f"{'layers' if len(layers) > 1 else 'layer'} {spans(layers)}"


def spans(layers: Sequence[int]) -> str:
    """Return numbers of layers as ranges.

    >>> spans([0]), spans([0, 4, 5, 6])
    ('0', '0, 4-6')
    """
    # along a span the difference to the position stays
    groups = [
        [layer for _, layer in group]
        for _, group in groupby(enumerate(layers), lambda pair: pair[1] - pair[0])
    ]
    return ", ".join(f"{span[0]}" if len(span) == 1 else f"{span[0]}-{span[-1]}" for span in groups)


def steps_in_words(steps: Iterable[int]) -> str:
    """Return steps, of many the first.

    >>> steps_in_words([8]), steps_in_words([0, 8, 1000]), steps_in_words(range(8))
    ('step 8', 'steps 0, 8 and 1,000', 'steps 0, 1, 2, 3, 4 and 3 more')
    """
    texts = [f"{step:,}" for step in steps]
    if len(texts) > _MAX_STEPS:
        texts[_MAX_STEPS - 1 :] = [f"{len(texts) - _MAX_STEPS + 1} more"]
    *first, last = texts
    return f"steps {', '.join(first)} and {last}" if first else f"step {last}"


def alert_lines(alerts: Iterable[Alert], *, finished: bool = False) -> list[str]:
    """Return a line for each step, rule and metric, with the numbers of the layer that changed
    most; of alerts in the order of :func:`repdyn.views.alerts.find_alerts`. Those of a ``finished``
    model name no step."""
    groups = groupby(alerts, key=lambda alert: (alert.step, alert.rule, alert.subject))
    return [
        f"{'' if finished else f'step {step:,}, '}{rule}: {alert_text(list(group))}"
        for (step, rule, _), group in groups
    ]


def alert_text(alerts: Sequence[Alert]) -> str:
    """Describe the alerts of one rule and metric at one step."""
    worst = max(alerts, key=lambda alert: alert.log_change)
    if len(alerts) == 1:
        return worst.message
    layers = layer_names([alert.layer for alert in alerts if alert.layer is not None])
    return f"{worst.subject} of {layers} {worst.event}: in layer {worst.layer}, {worst.detail}"
