"""The table itself, and from what a user names to metrics and token subsets."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TypeAlias

from repdyn.metrics import change, shape, sinks, tokens, topics
from repdyn.metrics.metric import Metric
from repdyn.metrics.names import parsed
from repdyn.probe import Probe
from repdyn.probe.content import NO_MASSIVE

MetricLike: TypeAlias = str | Metric
METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        *shape.CLOUD,
        *shape.SPECTRUM,
        *shape.SIMILARITY,
        *sinks.METRICS,
        *change.METRICS,
        *tokens.METRICS,
        *topics.METRICS,
    )
}
DEFAULT_METRICS = ("anisotropy", "two_nn")
ALL = "all"
"""Names every metric that the probe has what it takes for."""


def resolve(
    metrics: str | Sequence[MetricLike], probe: Probe | None = None, subsets: Collection[str] | None = None
) -> list[tuple[Metric, str]]:
    """Pairs of metric and token subset.

    Args:
        metrics: names in the table, each measured on its default subsets, or on one when written "two_nn@no_sink", and
            with its default settings, or others when written "two_nn[discard=0.8]"; "all" for every one that the
            probe has what it takes for; or Metric objects. A name without settings stands for those of the table, or
            of the probe's design where that has its own.
        probe: what they will be measured on; None where it is not known yet.
        subsets: the token subsets that the probe will have, where that is known before the probe is.

    Raises:
        ValueError: no metric, an unknown name or setting, a value that a setting does not take, a subset or knowledge
            that the probe lacks.

    >>> [(metric.name, subset) for metric, subset in resolve(["anisotropy", "two_nn@no_sink"])]
    [('anisotropy', 'all'), ('anisotropy', 'no_sink'), ('two_nn', 'no_sink')]
    """
    known = probe.subsets if probe is not None else subsets
    known = None if known is None else (*known, NO_MASSIVE)
    pairs: dict[tuple[str, str, str], tuple[Metric, str]] = {}
    for wanted in as_tuple(metrics):
        for listed, subset in _every(probe) if wanted == ALL else _pairs(wanted, probe):
            metric = _as_meant(listed, probe)
            if known is not None and subset not in known:
                raise ValueError(
                    f"expected a subset among {', '.join(known)}, got {subset!r} for {metric.name}; classes of words "
                    "come with Probe.from_texts(..., classes=...), or --classes words in a sweep, others with "
                    "Probe.with_classes"
                )
            if "previous_checkpoint" in metric.captures and subset != "all":
                raise ValueError(
                    f"expected {metric.name} on all tokens, got {subset!r}; what is kept of a checkpoint, to be "
                    "compared with the next, is its first batch of all"
                )
            if metric.whole_sequences and subset != "all":
                raise ValueError(
                    f"expected {metric.name} on all tokens, got {subset!r}; it is measured on whole sequences"
                )
            if "attention_weights" in metric.captures and subset == NO_MASSIVE:
                raise ValueError(
                    f"expected {metric.name} on tokens alone, got {subset!r}, which is taken from a layer's vectors; "
                    "attention weights have no norm"
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
        quoted = isinstance(metrics, str) and "[" in metrics
        hint = '; in YAML put names with settings in quotes: ["two_nn[discard=0.8]"]' if quoted else ""
        raise ValueError(
            f'expected a sequence of metrics such as ("anisotropy", "two_nn"), or "all", got {metrics!r}{hint}'
        )
    return tuple(metrics)


def _every(probe: Probe | None) -> list[tuple[Metric, str]]:
    known = "topics" if probe is not None and probe.topics is not None else ""
    able = (metric for metric in METRICS.values() if metric.probe_requires in {"", known})
    return [(metric, subset) for metric in able for subset in metric.subsets]


def _pairs(wanted: MetricLike, probe: Probe | None) -> list[tuple[Metric, str]]:
    if not isinstance(wanted, str | Metric):
        raise ValueError(f"expected each metric by name or as a Metric, got {wanted!r}")
    metric, subset = (wanted, "") if isinstance(wanted, Metric) else _named(wanted)
    if probe is not None and metric.probe_requires == "topics" and probe.topics is None:
        raise ValueError(
            f"expected a probe whose tokens have topics for {metric.name}, got one without; make one with "
            "probe.with_topics(...), or leave the metric out"
        )
    return [(metric, chosen) for chosen in ((subset,) if subset else metric.subsets)]


def _named(name: str) -> tuple[Metric, str]:
    base, settings, subset = parsed(name)
    if base not in METRICS:
        close = difflib.get_close_matches(base, METRICS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"expected metrics among {', '.join(METRICS)}, or all, got {base!r}{hint}")
    return METRICS[base].with_settings(**settings), subset


def _as_meant(metric: Metric, probe: Probe | None) -> Metric:
    """A metric of the table with the settings that its name has in the probe's design; a user's own as it is."""
    known = METRICS.get(metric.base)
    meant = probe.design.metric_settings.get(metric.base, {}) if probe is not None else {}
    if known is None or known.kernel is not metric.kernel or (metric is known and not meant):
        return metric
    return replace(metric, plain=known.settings).with_meaning(**meant)
