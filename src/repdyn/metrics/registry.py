"""The metrics by name, and from the names that a user gives to pairs of a metric and a subset."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, TypeAlias

from repdyn.metrics import change, shape, tokens
from repdyn.metrics.metric import Metric, base_name, parsed
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
    """Return the record of the metric that a stored name means, with whatever settings.

    A name that the registry does not know, such as that of a package that is not installed here,
    has the record that was stored with its rows; without one it is shown under its name.

    >>> metric_info("two_nn[discard=0.8]").unit, metric_info("my_metric").title
    ('dimension', '')
    """
    base = base_name(name)
    if base in METRICS:
        return METRICS[base]
    # with pyarrow, which a list of metrics should not wait for
    from repdyn.store.schema import (
        DESCRIPTIONS,
    )

    texts: dict[str, Any] = {
        name: text for name, text in DESCRIPTIONS.get(base, {}).items() if name in _TEXTS
    }
    return Metric(base, _unavailable, **texts)


def is_of_neighbours(metric: str) -> bool:
    """Return whether a metric is a dimension that is estimated from nearest neighbours.

    >>> is_of_neighbours("gride_4"), is_of_neighbours("participation_ratio")
    (True, False)
    """
    info = metric_info(metric)
    return info.unit == "dimension" and bool(info.neighbours)


_TEXTS = ("meaning", "title", "unit", "family", "scale", "position")
"""Fields that are stored with the rows of a metric that is not of this package."""


def _describe(metric: Metric) -> None:
    """Have the record of a metric stored with its rows, for processes that do not know it."""
    from repdyn.store.schema import DESCRIPTIONS

    DESCRIPTIONS[metric.base] = {name: getattr(metric, name) for name in _TEXTS}


def _unavailable(*inputs: object, **settings: object) -> Tensor:
    raise RuntimeError(
        "expected the kernel of a registered metric, got a stored name alone; install its package"
    )


def resolve(
    metrics: str | Sequence[MetricLike],
    probe: Probe | None = None,
    subsets: Collection[str] | None = None,
) -> list[tuple[Metric, str]]:
    """Return pairs of metric and subset, as they are measured and stored.

    The subset "distinct", which the dimension is measured on by default, is the one that the probe
    has vectors for: :attr:`repdyn.probe.Probe.without_repeats`. Of a probe that is not known yet
    both that it may be are returned.

    Args:
        metrics: names of metrics, each measured on its default subsets, or on one when written
            "two_nn@no_sink", and with its default settings, or others when written
            "two_nn[discard=0.8]"; "all" for every one of vectors that the probe allows; or Metric
            objects. A name without settings stands for those of its record, or of the probe's
            design where that has its own.
        probe: what they will be measured on; None where it is not known yet.
        subsets: the subsets that the probe will have, where that is known before the probe is.

    Raises:
        ValueError: no metric, an unknown name or setting, a value that a setting does not take, or
            a subset or token knowledge that the probe lacks.

    >>> [(metric.name, subset) for metric, subset in resolve(["anisotropy", "two_nn@no_sink"])]
    [('anisotropy', 'all'), ('anisotropy', 'no_sink'), ('two_nn', 'no_sink')]
    """
    subset_names = probe.subsets if probe is not None else subsets
    pairs: dict[tuple[str, str, str], tuple[Metric, str]] = {}
    every = (
        name
        for requested in as_tuple(metrics)
        for name in (_all(probe) if requested == ALL else [requested])
    )
    for requested in every:
        for plain, subset in _pairs(requested, probe):
            metric = _with_design_settings(plain, probe)
            _check_subset(metric, subset, subset_names)
            pairs[metric.name, metric.settings_json, subset] = (metric, subset)
    return list(pairs.values())


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
    return [
        metric
        for metric in METRICS.values()
        if metric.probe_requires in possible and metric.family != "weights"
    ]


def _pairs(requested: MetricLike, probe: Probe | None) -> list[tuple[Metric, str]]:
    if not isinstance(requested, str | Metric):
        raise ValueError(f"expected each metric by name or as a Metric, got {requested!r}")
    metric, subset = (requested, "") if isinstance(requested, Metric) else _from_name(requested)
    if metric.base not in METRICS:
        _describe(metric)
    if probe is not None and metric.probe_requires == "topics" and probe.topics is None:
        raise ValueError(
            f"expected a probe whose tokens have topics for {metric.name}, got one without; make "
            "one with probe.with_topics(...), or leave the metric out"
        )
    subsets = (subset,) if subset else metric.subsets
    if probe is not None and probe.inputs is not None:
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
        subsets = tuple(each for each in subsets if each in {*probe.subsets, *LAYER_SUBSETS})
    return [(metric, each) for named in subsets for each in _resolved(named, probe)]


def _resolved(subset: str, probe: Probe | None) -> tuple[str, ...]:
    """Return the subset that a name stands for: another than it says for "distinct" alone."""
    view = view_of(subset)
    if view.vectors != WITHOUT_REPEATS:
        return (subset,)
    possible = DISTINCT if probe is None else (probe.without_repeats,)
    return tuple(f"{name}{NORMED * view.normed}" for name in possible)


def _from_name(name: str) -> tuple[Metric, str]:
    base, settings, subset = parsed(name)
    if base not in METRICS:
        if "," in base:
            hint = "; give each name by itself"
        elif base.lower().replace("_", "") == "rankme":
            hint = _RANK_ME
        else:
            hint = did_you_mean(base, METRICS)
        raise ValueError(
            f"expected a metric that `repdyn metrics` lists, or all, got {base!r}{hint}"
        )
    return METRICS[base].with_settings(**settings), subset


def _with_design_settings(metric: Metric, probe: Probe | None) -> Metric:
    """Return a registered metric with the settings that its name stands for in the probe's design;
    others unchanged.
    """
    registered = METRICS.get(metric.base)
    settings = probe.design.metric_settings.get(metric.base, {}) if probe is not None else {}
    if (
        registered is None
        or (metric is registered and not settings)
        or registered.kernel is not metric.kernel
    ):
        return metric
    explicit = {
        name: value
        for name, value in metric.settings.items()
        if name in metric.explicit_settings
        or name not in registered.settings
        or registered.settings[name] != value
    }
    defaults = registered.with_settings(**settings).settings
    unset = {"default_settings": None, "explicit_settings": frozenset()}
    return replace(metric, name=metric.base, settings=defaults, **unset).with_settings(**explicit)


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
            "after_attention" in captures and view.normed,
            "states as the block has them",
            "the final norm is the last's",
        ),
    )
    for is_refused, where, why in refusals:
        if is_refused:
            raise ValueError(f"expected {metric.name} on {where}, got {subset!r}; {why}")
