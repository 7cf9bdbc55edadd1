"""From the metrics that a user names to pairs of a metric and a token subset."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from repdyn.metrics.metric import Metric
from repdyn.metrics.names import parsed
from repdyn.metrics.registry import ALL, METRICS
from repdyn.probe.views import LAST_TOKEN, NO_MASSIVE, NORMED, VIEWS, WINDOW_MEAN, View, view_of

if TYPE_CHECKING:
    from repdyn.probe import Probe

MetricLike: TypeAlias = str | Metric
DEFAULT_METRICS = ("anisotropy", "two_nn")


def resolve(
    metrics: str | Sequence[MetricLike], probe: Probe | None = None, subsets: Collection[str] | None = None
) -> list[tuple[Metric, str]]:
    """Return pairs of metric and token subset.

    Args:
        metrics: names of metrics, each measured on its default subsets, or on one when written "two_nn@no_sink", and
            with its default settings, or others when written "two_nn[discard=0.8]"; "all" for every one that the
            probe allows; or Metric objects. A name without settings stands for those of its record, or of the probe's
            design where that has its own.
        probe: what they will be measured on; None where it is not known yet.
        subsets: the token subsets that the probe will have, where that is known before the probe is.

    Raises:
        ValueError: no metric, an unknown name or setting, a value that a setting does not take, or a subset or token
            knowledge that the probe lacks.

    >>> [(metric.name, subset) for metric, subset in resolve(["anisotropy", "two_nn@no_sink"])]
    [('anisotropy', 'all'), ('anisotropy', 'no_sink'), ('two_nn', 'no_sink')]
    """
    known = probe.subsets if probe is not None else subsets
    pairs: dict[tuple[str, str, str], tuple[Metric, str]] = {}
    for requested in as_tuple(metrics):
        for plain, subset in _every_pair(probe) if requested == ALL else _pairs(requested, probe):
            metric = _with_design_settings(plain, probe)
            _check_subset(metric, subset, known)
            pairs[metric.name, metric.settings_json, subset] = (metric, subset)
    return list(pairs.values())


def as_tuple(metrics: str | Sequence[MetricLike]) -> tuple[MetricLike, ...]:
    """Return the requested metrics one by one.

    Raises:
        ValueError: no metric, or a single name that is not "all".

    >>> as_tuple("all"), as_tuple(["two_nn"])
    (('all',), ('two_nn',))
    """
    if metrics == ALL:
        return (ALL,)
    if not isinstance(metrics, Sequence) or isinstance(metrics, str | bytes) or not metrics:
        has_brackets = isinstance(metrics, str) and "[" in metrics
        hint = '; in YAML put names with settings in quotes: ["two_nn[discard=0.8]"]' if has_brackets else ""
        raise ValueError(
            f'expected a sequence of metrics such as ("anisotropy", "two_nn"), or "all", got {metrics!r}{hint}'
        )
    return tuple(metrics)


def _every_pair(probe: Probe | None) -> list[tuple[Metric, str]]:
    possible = {"", "tokens"} if probe is None or probe.inputs is None else {""}
    if probe is not None and probe.topics is not None:
        possible.add("topics")
    return [
        (metric, subset)
        for metric in METRICS.values()
        if metric.probe_requires in possible
        for subset in _default_subsets(metric, probe)
    ]


def _default_subsets(metric: Metric, probe: Probe | None) -> tuple[str, ...]:
    """Return the subsets of a name without one; of a probe of inputs those it has."""
    if probe is None or probe.inputs is None:
        return metric.subsets
    return tuple(subset for subset in metric.subsets if subset in {*probe.subsets, NO_MASSIVE})


def _pairs(requested: MetricLike, probe: Probe | None) -> list[tuple[Metric, str]]:
    if not isinstance(requested, str | Metric):
        raise ValueError(f"expected each metric by name or as a Metric, got {requested!r}")
    metric, subset = (requested, "") if isinstance(requested, Metric) else _from_name(requested)
    if probe is not None and metric.probe_requires == "topics" and probe.topics is None:
        raise ValueError(
            f"expected a probe whose tokens have topics for {metric.name}, got one without; make one with "
            "probe.with_topics(...), or leave the metric out"
        )
    if probe is not None and probe.inputs is not None:
        _check_inputs(metric, subset)
    return [(metric, chosen) for chosen in ((subset,) if subset else _default_subsets(metric, probe))]


def _check_inputs(metric: Metric, subset: str) -> None:
    """Check that a metric can be measured on a probe of inputs."""
    if metric.probe_requires:
        raise ValueError(f"expected a probe of tokens for {metric.name}, got one of other inputs; leave the metric out")
    if subset not in {"", "all", NO_MASSIVE}:
        raise ValueError(
            f"expected {metric.name} on all or {NO_MASSIVE} vectors of a probe of inputs, got {subset!r}; choose "
            "positions with Probe.from_inputs(..., positions=)"
        )


def _from_name(name: str) -> tuple[Metric, str]:
    base, settings, subset = parsed(name)
    if base not in METRICS:
        close = difflib.get_close_matches(base, METRICS, n=1)
        hint = f"did you mean {close[0]!r}? Otherwise choose" if close else "choose"
        raise ValueError(f"expected the name of a metric, got {base!r}; {hint} among {', '.join(METRICS)}, or all")
    return METRICS[base].with_settings(**settings), subset


def _with_design_settings(metric: Metric, probe: Probe | None) -> Metric:
    """Return a registered metric with the settings that its name stands for in the probe's design; others unchanged."""
    known = METRICS.get(metric.base)
    settings = probe.design.metric_settings.get(metric.base, {}) if probe is not None else {}
    if known is None or (metric is known and not settings) or known.kernel is not metric.kernel:
        return metric
    return replace(metric, default_settings=known.settings).with_default_settings(**settings)


def _check_subset(metric: Metric, subset: str, known: Collection[str] | None) -> None:
    view = view_of(subset)
    if known is not None and view.vectors not in {*known, NO_MASSIVE, *VIEWS}:
        choices = [*known, NO_MASSIVE, *VIEWS]
        close = difflib.get_close_matches(view.vectors, choices, n=1)
        hint = f"did you mean {close[0] + NORMED * view.normed!r}? " if close else ""
        raise ValueError(
            f"expected a subset among {', '.join(choices)}, got {subset!r} for {metric.name}; {hint}classes of words "
            "come with Probe.from_texts(..., classes=...), or --classes words in a sweep, others with "
            f"Probe.with_classes; each may be taken after the final norm, as in {LAST_TOKEN}{NORMED}"
        )
    if "previous_checkpoint" in metric.captures and subset != "all":
        raise ValueError(
            f"expected {metric.name} on all tokens, got {subset!r}; only the first batch of all tokens is kept for the "
            "next checkpoint"
        )
    if metric.whole_sequences and subset != "all":
        raise ValueError(f"expected {metric.name} on all tokens, got {subset!r}; it is measured on whole sequences")
    if view == View(WINDOW_MEAN, normed=True):
        raise ValueError(
            f"expected {metric.name} on {WINDOW_MEAN} or on another view after the final norm, got {subset!r}; the "
            "final norm applies to tokens, of which only the mean is kept"
        )
    if "attention_weights" in metric.captures and (subset == NO_MASSIVE or not view.of_single_tokens):
        raise ValueError(
            f"expected {metric.name} on a subset of tokens, got {subset!r}, which depends on a layer's vectors; "
            "attention weights have no norm"
        )
    if "after_attention" in metric.captures and view.normed:
        raise ValueError(
            f"expected {metric.name} on states as the block has them, got {subset!r}; the final norm follows the last "
            "block"
        )
