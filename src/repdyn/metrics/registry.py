"""The metrics by name, and from the names that a user gives to requests.

- :class:`Registry`, of which :data:`METRICS` is the only one: definitions by name, those of
  installed packages included.
- :func:`resolve`: "two_nn[discard=0.8]@no_sink" is parsed, looked up, checked against the probe,
  and becomes a request for each subset.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, TypeAlias

from repdyn.metrics import change, shape, tokens
from repdyn.metrics.metric import Metric
from repdyn.metrics.names import base_name, parsed
from repdyn.metrics.request import MetricRequest, requested
from repdyn.probe.design import (
    DISTINCT,
    GAUSSIAN,
    LAST_TOKEN,
    LAYER_SUBSETS,
    NO_MASSIVE,
    NORMED,
    VIEWS,
    WINDOW_MEAN,
    WITHOUT_REPEATS,
    View,
    view_of,
)
from repdyn.utils.mistyped import closest, did_you_mean

if TYPE_CHECKING:
    from torch import Tensor

    from repdyn.probe import Probe

ENTRY_POINTS = "repdyn.metrics"
"""Entry points of this group name a Metric, or a list of them, in an installed package."""
ALL = "all"
"""Stands for every metric of vectors that the probe allows."""
_NAME = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
MetricLike: TypeAlias = str | Metric
DEFAULT_METRICS = ("anisotropy", "two_nn")
_RANK_ME = (
    "; RankMe of Garrido et al. is 'effective_rank[centred=false]', and what arXiv 2509.23024 "
    "calls RankMe is 'effective_rank_of_variance'"
)
"""Two papers give one name to two quantities, of which neither has it here."""


class Registry(Mapping[str, Metric]):
    """Metrics by name, in the order in which they are listed; those of installed packages are
    loaded on first use.
    """

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = {metric.name: metric for metric in metrics}

    def __getitem__(self, name: str) -> Metric:
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded)

    def __len__(self) -> int:
        return len(self._loaded)

    def add(self, metric: Metric) -> None:
        """Add a metric under its name; as :func:`register_metric`."""
        if not isinstance(metric, Metric):
            raise ValueError(f"expected a repdyn.Metric, got {metric!r}")
        if not _NAME.fullmatch(metric.name) or metric.name == ALL:
            raise ValueError(
                f'expected a name of letters, digits, "_", "-" and ".", other than {ALL!r}, got '
                f"{metric.name!r}"
            )
        # the same definition again, as of a module that is imported twice, is no error
        registered = self._metrics.get(metric.name)
        if registered is not None and registered != metric:
            meaning = f" ({registered.meaning})" if registered.meaning else ""
            raise ValueError(
                f"expected a new name, got {metric.name!r}, which is another metric{meaning}; "
                "choose another name"
            )
        if registered is None:
            self._metrics[metric.name] = metric
            _describe(metric)

    @cached_property
    def _loaded(self) -> dict[str, Metric]:
        # kept first: a package that looks into the registry while it is imported must not load it
        # again
        self.__dict__["_loaded"] = self._metrics
        for entry_point in entry_points(group=ENTRY_POINTS):
            try:
                found = entry_point.load()
                for metric in [found] if isinstance(found, Metric) else found:
                    self.add(metric)
            except Exception as error:
                package = entry_point.dist.name if entry_point.dist else "an unknown package"
                warnings.warn(
                    f"the metrics of {package} are not available: its entry point "
                    f"{entry_point.name} = {entry_point.value} raised {type(error).__name__}: "
                    f"{error}; update or uninstall {package}",
                    RuntimeWarning,
                    stacklevel=2,
                )
        return self._metrics


METRICS = Registry([*shape.METRICS, *change.METRICS, *tokens.METRICS])


def register_metric(metric: Metric) -> None:
    """Make a metric known by its name, to everything that measures, lists or draws metrics in this
    process.

    An installed package makes its metrics known everywhere by an entry point of the group
    "repdyn.metrics".

    Raises:
        ValueError: not a Metric, a name with other characters than letters, digits, "_", "-" and
            ".", or a name that another metric has.
    """
    METRICS.add(metric)


def metric_info(name: str) -> Metric:
    """Return the definition of the metric that a stored name means, with whatever settings.

    Of a name that the registry does not know, such as that of a package that is not installed here,
    only what was stored with its rows is known.

    >>> metric_info("two_nn[discard=0.8]").neighbours, metric_info("my_metric").meaning
    (2, '')
    """
    base = base_name(name)
    if base in METRICS:
        return METRICS[base]
    # with pyarrow, which a list of metrics should not wait for
    from repdyn.store.schema import DESCRIPTIONS

    stored = DESCRIPTIONS.get(base, {})
    return Metric(base, _unavailable, **{name: stored[name] for name in _TEXTS if name in stored})


_TEXTS = ("meaning", "position")
"""Fields that are stored with the rows of a metric that is not of this package, beside its
display.
"""


def _describe(metric: Metric) -> None:
    """Have what views need of a metric stored with its rows, for processes that do not know it."""
    from repdyn.store.schema import DESCRIPTIONS

    texts = {name: getattr(metric, name) for name in _TEXTS}
    display = {} if metric.display is None else asdict(metric.display)
    DESCRIPTIONS[metric.name] = {**texts, **display}


def _unavailable(*inputs: object, **settings: object) -> Tensor:
    raise RuntimeError(
        "expected the kernel of a registered metric, got a stored name alone; install its package"
    )


def resolve(
    metrics: str | Sequence[MetricLike],
    probe: Probe | None = None,
    subsets: Collection[str] | None = None,
) -> list[MetricRequest]:
    """Return what is asked for, one request for each metric, choice of settings and subset.

    The subset "distinct", which the dimension is measured on by default, is the one that the probe
    has vectors for: :attr:`repdyn.probe.Probe.without_repeats`. Of a probe that is not known yet
    both that it may be are returned.

    Args:
        metrics: names of metrics, each measured on its default subsets, or on one when written
            "two_nn@no_sink", and with its default settings, or others when written
            "two_nn[discard=0.8]"; "all" for every one of vectors that the probe allows; or Metric
            objects. A name without settings stands for those of its definition, or of the probe's
            design where that has its own.
        probe: what they will be measured on; None where it is not known yet.
        subsets: the subsets that the probe will have, where that is known before the probe is.

    Raises:
        ValueError: no metric, an unknown name or setting, a value that a setting does not take, or
            a subset or token knowledge that the probe lacks.

    >>> [(each.name, each.subset) for each in resolve(["anisotropy", "two_nn@no_sink"])]
    [('anisotropy', 'all'), ('anisotropy', 'no_sink'), ('two_nn', 'no_sink')]
    """
    subset_names = probe.subsets if probe is not None else subsets
    requests: dict[tuple[str, str, str], MetricRequest] = {}
    for metric_like in as_tuple(metrics):
        for wanted in _all(probe) if metric_like == ALL else [metric_like]:
            for request in _requests(wanted, probe):
                _check_subset(request.metric, request.subset, subset_names)
                requests[request.name, request.settings_json, request.subset] = request
    return list(requests.values())


def as_tuple(metrics: str | Sequence[MetricLike]) -> tuple[MetricLike, ...]:
    """Return the requested metrics one by one.

    >>> as_tuple("all"), as_tuple(["two_nn"])
    (('all',), ('two_nn',))
    """
    if metrics == ALL:
        return (ALL,)
    if not isinstance(metrics, Sequence) or isinstance(metrics, str | bytes) or not metrics:
        has_brackets = isinstance(metrics, str) and "[" in metrics
        hint = (
            '; in YAML put names with settings in quotes: ["two_nn[discard=0.8]"]'
            if has_brackets
            else ""
        )
        raise ValueError(
            'expected a sequence of metrics such as ("anisotropy", "two_nn"), or "all", got '
            f"{metrics!r}{hint}"
        )
    return tuple(metrics)


def _all(probe: Probe | None) -> list[Metric]:
    possible = {"", "tokens"} if probe is None or probe.inputs is None else {""}
    if probe is not None and probe.topics is not None:
        possible.add("topics")
    # those of weights are no metrics of vectors: they are measured where they are named
    return [
        metric
        for metric in METRICS.values()
        if metric.probe_requires in possible and not metric.is_of_weights
    ]


def _requests(metric_like: MetricLike, probe: Probe | None) -> list[MetricRequest]:
    """Return the requests that a name or a definition stands for: one for each subset."""
    if not isinstance(metric_like, str | Metric):
        raise ValueError(f"expected each metric by name or as a Metric, got {metric_like!r}")
    if isinstance(metric_like, Metric):
        metric, explicit = _as_registered(metric_like)
        subset = ""
    else:
        metric, explicit, subset = _from_name(metric_like)
    if metric.name not in METRICS:
        _describe(metric)
    _check_probe(metric, subset, probe)
    subsets = (subset,) if subset else metric.subsets
    if probe is not None and probe.inputs is not None:
        subsets = tuple(name for name in subsets if name in {*probe.subsets, *LAYER_SUBSETS})
    of_design = _settings_of_design(metric, probe)
    return [
        requested(metric, of_probe, explicit, of_design=of_design)
        for name in subsets
        for of_probe in _resolved(name, probe)
    ]


def _as_registered(metric: Metric) -> tuple[Metric, dict[str, Any]]:
    """Return a Metric object, and its settings where it is a registered one with others: it is then
    no other than one that is asked for by name with these settings.
    """
    registered = METRICS.get(metric.name)
    # a user's metric may have the name of one that is registered here
    if metric is registered or registered is None or registered.kernel is not metric.kernel:
        return metric, {}
    explicit = {
        name: value
        for name, value in metric.settings.items()
        if name not in registered.settings or registered.settings[name] != value
    }
    return replace(metric, settings=registered.settings), explicit


def _settings_of_design(metric: Metric, probe: Probe | None) -> Mapping[str, Any]:
    """Return the settings that a registered metric's name stands for in the probe's design."""
    registered = METRICS.get(metric.name)
    if probe is None or registered is None or registered.kernel is not metric.kernel:
        return {}
    return probe.design.metric_settings.get(metric.name, {})


def _check_probe(metric: Metric, subset: str, probe: Probe | None) -> None:
    """Raise ValueError where a metric cannot be measured on a probe, whatever its vectors."""
    if probe is None:
        return
    if metric.probe_requires == "topics" and probe.topics is None:
        raise ValueError(
            f"expected a probe whose tokens have topics for {metric.name}, got one without; make "
            "one with probe.with_topics(...), or leave the metric out"
        )
    if probe.inputs is None:
        return
    if metric.probe_requires:
        raise ValueError(
            f"expected a probe of tokens for {metric.name}, got one of other inputs; leave the "
            "metric out"
        )
    if subset not in {"", "all", *LAYER_SUBSETS}:
        raise ValueError(
            f"expected {metric.name} on all, {' or '.join(LAYER_SUBSETS)} vectors of a probe "
            f"of inputs, got {subset!r}; choose positions with Probe.from_inputs(..., "
            "positions=)"
        )


def _resolved(subset: str, probe: Probe | None) -> tuple[str, ...]:
    """Return the subset that a name stands for: another than it says for "distinct" alone."""
    view = view_of(subset)
    if view.vectors != WITHOUT_REPEATS:
        return (subset,)
    possible = DISTINCT if probe is None else (probe.without_repeats,)
    return tuple(f"{name}{NORMED * view.normed}" for name in possible)


def _from_name(name: str) -> tuple[Metric, dict[str, Any], str]:
    """Return the registered metric that a name means, and the settings and the subset in it."""
    base, settings, subset = parsed(name)
    if base in METRICS:
        return METRICS[base], settings, subset
    if "," in base:
        hint = "; give each name by itself"
    elif base.lower().replace("_", "") == "rankme":
        hint = _RANK_ME
    else:
        hint = did_you_mean(base, METRICS)
    raise ValueError(f"expected a metric that `repdyn metrics` lists, or all, got {base!r}{hint}")


def _check_subset(metric: Metric, subset: str, subset_names: Collection[str] | None) -> None:
    view = view_of(subset)
    if subset_names is not None and view.vectors not in {*subset_names, *LAYER_SUBSETS, *VIEWS}:
        choices = [*subset_names, *LAYER_SUBSETS, *VIEWS]
        near = closest(view.vectors, choices)
        hint = f"did you mean {near + NORMED * view.normed!r}? " if near else ""
        raise ValueError(
            f"expected a subset among {', '.join(choices)}, got {subset!r} for {metric.name}; "
            f"{hint}classes of words come with Probe.from_texts(..., classes=...), or classes="
            "words in a sweep, others with Probe.with_classes; each may be taken after the final "
            f"norm, as in {LAST_TOKEN}{NORMED}"
        )
    captures, of_layer = metric.captures, subset == NO_MASSIVE or not view.of_single_tokens
    after_norm = f"{WINDOW_MEAN} or on another view after the final norm"
    refusals = (
        (
            "previous_checkpoint" in captures and subset != "all",
            "all tokens",
            "no others are kept for the next step",
        ),
        (metric.whole_sequences and subset != "all", "all tokens", "it is not of single vectors"),
        (
            view.vectors == GAUSSIAN and (captures or metric.probe_requires),
            "real vectors",
            "it is not of one cloud",
        ),
        (
            view == View(WINDOW_MEAN, normed=True),
            after_norm,
            "only the mean of the tokens is kept, which has no norm",
        ),
        (
            "attention_weights" in captures and of_layer,
            "a subset of tokens",
            "attention weights have no norm",
        ),
        (
            bool({"after_attention", "queries_and_keys"} & captures) and view.normed,
            "vectors as the block has them",
            "the final norm is the last's",
        ),
    )
    for is_refused, where, why in refusals:
        if is_refused:
            raise ValueError(f"expected {metric.name} on {where}, got {subset!r}; {why}")
