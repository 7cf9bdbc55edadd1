"""The table itself, and from what a user names to metrics and token subsets."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from typing import TypeAlias

from repdyn.metrics import change, shape, tokens, topics
from repdyn.metrics.metric import Metric
from repdyn.probe import Probe

MetricLike: TypeAlias = str | Metric
METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (*shape.CLOUD, *shape.SPECTRUM, *shape.SIMILARITY, *change.METRICS, *tokens.METRICS, *topics.METRICS)
}
DEFAULT_METRICS = ("anisotropy", "two_nn")
ALL = "all"
"""Names every metric that the probe has what it takes for."""


def resolve(
    metrics: str | Sequence[MetricLike], probe: Probe | None = None, subsets: Collection[str] | None = None
) -> list[tuple[Metric, str]]:
    """Pairs of metric and token subset.

    Args:
        metrics: names in the table, each measured on its default subsets, or on one when written "two_nn@no_sink";
            "all" for every one that the probe has what it takes for; or Metric objects.
        probe: what they will be measured on; None where it is not known yet.
        subsets: the token subsets that the probe will have, where that is known before the probe is.

    Raises:
        ValueError: no metric, an unknown name, a subset or knowledge that the probe lacks.

    >>> [(metric.name, subset) for metric, subset in resolve(["anisotropy", "two_nn@no_sink"])]
    [('anisotropy', 'all'), ('anisotropy', 'no_sink'), ('two_nn', 'no_sink')]
    """
    known = probe.subsets if probe is not None else subsets
    pairs: dict[tuple[str, str, str], tuple[Metric, str]] = {}
    for wanted in as_tuple(metrics):
        for metric, subset in _every(probe) if wanted == ALL else _pairs(wanted, probe):
            if known is not None and subset not in known:
                raise ValueError(
                    f"expected a subset among {', '.join(known)}, got {subset!r} for {metric.name}; classes of words "
                    "come with Probe.from_texts(..., classes=...), or --classes words in a sweep, others with "
                    "Probe.with_classes"
                )
            if "earlier" in metric.besides and subset != "all":
                raise ValueError(
                    f"expected {metric.name} on all tokens, got {subset!r}; what is kept of a checkpoint, to be "
                    "compared with the next, is its first batch of all"
                )
            pairs[metric.name, metric.settings_json, subset] = (metric, subset)
    return list(pairs.values())


def as_tuple(metrics: str | Sequence[MetricLike]) -> tuple[MetricLike, ...]:
    """What a user asked for, one by one.

    Raises:
        ValueError: no metric, or a single name that is not "all".

    >>> as_tuple("all"), as_tuple(["two_nn"])
    (('all',), ('two_nn',))
    """
    if metrics == ALL:
        return (ALL,)
    if not isinstance(metrics, Sequence) or isinstance(metrics, str | bytes) or not metrics:
        raise ValueError(f'expected a sequence of metrics such as ("anisotropy", "two_nn"), or "all", got {metrics!r}')
    return tuple(metrics)


def _every(probe: Probe | None) -> list[tuple[Metric, str]]:
    known = "topics" if probe is not None and probe.topics is not None else ""
    able = (metric for metric in METRICS.values() if metric.requires in {"", known})
    return [(metric, subset) for metric in able for subset in metric.subsets]


def _pairs(wanted: MetricLike, probe: Probe | None) -> list[tuple[Metric, str]]:
    if not isinstance(wanted, str | Metric):
        raise ValueError(f"expected each metric by name or as a Metric, got {wanted!r}")
    metric, _, subset = (wanted, "", "") if isinstance(wanted, Metric) else wanted.partition("@")
    if isinstance(metric, str):
        if metric not in METRICS:
            close = difflib.get_close_matches(metric, METRICS, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"expected metrics among {', '.join(METRICS)}, or all, got {metric!r}{hint}")
        metric = METRICS[metric]
    if probe is not None and metric.requires == "topics" and probe.topics is None:
        raise ValueError(
            f"expected a probe whose tokens have topics for {metric.name}, got one without; make one with "
            "probe.with_topics(...), or leave the metric out"
        )
    return [(metric, chosen) for chosen in ((subset,) if subset else metric.subsets)]
