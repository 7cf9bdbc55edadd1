"""The record of a metric: what it computes, where it is measured and how it is shown; and its name.

A name may have settings and a subset: ``two_nn[discard=0.8]@no_sink``.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cache, cached_property, lru_cache
from math import inf
from numbers import Integral, Real
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from repdyn.utils.mistyped import did_you_mean

if TYPE_CHECKING:
    from torch import Tensor

    from repdyn.capture.states import CaptureKind

Position: TypeAlias = Literal["layers", "blocks", "between"]
Scale: TypeAlias = Literal["linear", "from_zero", "signed", "log", "log_if_wide"]

FAMILIES = {
    "geometry": "Geometry",
    "dimension": "Intrinsic dimension",
    "spectrum": "Spectrum",
    "similarity": "Similarity of vectors",
    "sinks": "Attention sinks",
    "convergence": "Convergence to the last layer",
    "evolution": "Steps from layer to layer",
    "change": "Change between checkpoints",
    "weights": "Weights and gradients",
    "tokens": "Tokens against the vocabulary",
    "topics": "Topic structure",
}
"""Title of each family of metrics, in the order in which they are shown."""
OWN_FAMILY = "own"
"""The family of a metric that names none: each has figures of its own."""


@dataclass(frozen=True)
class Metric:
    """A quantity measured at one layer: its kernel, inputs, title, unit and scale.

    Only ``name`` and ``kernel`` are needed; :func:`repdyn.register_metric` makes it known by its
    name.
    """

    # What it is
    name: str
    """Written in stores, configurations and commands; no brackets, commas, "@" or spaces."""
    kernel: str | Callable[..., Any]
    """Turns the inputs of one batch into a 0-d tensor, or raises
    :class:`repdyn.kernels.UndefinedError` with the reason; its keyword-only arguments are the
    metric's settings. A function, or "module:function" to import it on first use."""
    meaning: str = ""
    """One line that says what is measured."""
    range: tuple[float, float] = (-inf, inf)
    """Smallest and largest possible value."""
    source: str = ""
    """The paper that defines it."""

    _: KW_ONLY

    # What is computed
    settings: Mapping[str, Any] = field(default_factory=dict)
    """All keyword-only arguments of the kernel with their values, recorded in every row."""
    select_inputs: str | Callable[..., Any] = "repdyn.metrics.layer_view:clouds"
    """Selects the kernel's positional arguments for every batch of a subset; by default the layer's
    cloud. A function of a LayerView and the subset, or "module:function" as for ``kernel``."""
    captures: frozenset[CaptureKind] = frozenset()
    """What ``select_inputs`` needs in addition to the layer's own states."""
    probe_requires: Literal["", "tokens", "topics"] = ""
    """What the probe must have beside vectors: tokens, rather than inputs of another kind, or
    topics of its tokens.
    """
    neighbours: int | str = 0
    """How many nearest neighbours of each distinct vector it uses, or the name of the setting that
    says so; 0 if none. Exact duplicates then count once, unless a setting ``duplicates`` is
    "count"."""
    whole_spectrum: bool = False
    """It uses all eigenvalues of the covariance, and so depends on the number of vectors."""

    # Where it is measured
    subsets: tuple[str, ...] = ("all",)
    """Subsets of the name without a subset."""
    position: Position = "layers"
    """At all "layers"; at the outputs of "blocks" only, not at the embedding output; or "between" a
    layer and the next, recorded at the lower one, so that the last layer has no value."""
    per_head: bool = False
    """The kernel returns one value for each attention head; the layer's value is their mean."""
    whole_sequences: bool = False
    """It is defined on whole sequences, or on no vectors, so that "all" is the only subset."""

    # How it is shown
    title: str = ""
    """What figures call it; its name if empty."""
    unit: str = ""
    """The label of an axis of values; the name if empty."""
    family: str = OWN_FAMILY
    """Metrics of one of :data:`FAMILIES` share overviews; any other family has a figure for each
    metric.
    """
    scale: Scale = "linear"
    """The axis of its values: "linear" around them; "from_zero" for shares, whose small differences
    would else look large; "signed" with a line at 0 and colours that change there; "log" for counts
    that span decades and may be 0; "log_if_wide" for lengths, which are logarithmic where the
    largest is many times the smallest."""
    log_from: float = 0.0
    """Smallest value of a "log" scale: smaller values are drawn as 0."""
    panel: str = ""
    """Title of the panel that it shares with metrics that differ from it in a number only."""
    line: str = ""
    """What its line in that panel is called."""
    shows_embeddings: bool = False
    """Whether the embedding output (layer 0) deserves a line of its own next to the mean over
    layers.
    """

    # Settings that were given by name, as in "two_nn[discard=0.8]"; filled in by with_settings
    default_settings: Mapping[str, Any] | None = None
    """Settings that the name without brackets stands for; None where these are ``settings``."""
    explicit_settings: frozenset[str] = frozenset()
    """Names of the settings that were given explicitly."""

    def compute(self, *inputs: Any) -> Tensor:
        """Return the kernel's value for the inputs of one batch, as ``select_inputs`` gives them.

        Raises:
            repdyn.kernels.UndefinedError: there is none, with the reason.
        """
        return getattr(self.function, "or_raise", self.function)(*inputs, **self.settings)

    @cached_property
    def function(self) -> Callable[..., Any]:
        """The kernel itself."""
        return imported(self.kernel)

    @cached_property
    def selector(self) -> Callable[..., Any]:
        """``select_inputs`` as a function."""
        return imported(self.select_inputs)

    @cached_property
    def is_own(self) -> bool:
        """Return whether the kernel is defined outside this package."""
        return not getattr(self.function, "__module__", "").startswith("repdyn.")

    @cached_property
    def base(self) -> str:
        """The name without settings."""
        return base_name(self.name)

    @cached_property
    def settings_json(self) -> str:
        return json.dumps(dict(self.settings), sort_keys=True)

    @cached_property
    def collapses_duplicates(self) -> bool:
        """Return whether exact duplicates count once, so that few distinct vectors are a small
        sample.
        """
        return bool(self.neighbours) and self.settings.get("duplicates") != "count"

    @cached_property
    def n_neighbours(self) -> int:
        """The number of nearest neighbours of each vector it uses."""
        return (
            self.settings[self.neighbours] if isinstance(self.neighbours, str) else self.neighbours
        )

    def is_defined_at(self, layer: int, *, is_last: bool) -> bool:
        """Return whether the metric has a value at a layer of a stack; layer 0 is the embedding
        output.
        """
        return not (self.position == "blocks" and layer == 0) and not (
            self.position == "between" and is_last
        )

    def enters_means(self, layer: int) -> bool:
        """Return whether the value of a layer enters means over layers: those are over the blocks,
        and what lies between the embeddings and the first block tells of the block.
        """
        return layer > 0 or self.position == "between"

    def with_settings(self, **settings: Any) -> Metric:
        """Return the metric with other settings, as
        ``METRICS["two_nn"].with_settings(discard=0.8)``.

        Its name lists those that differ from the defaults: ``two_nn[discard=0.8]``.

        Raises:
            ValueError: a setting that the metric does not have, or a value that it does not take.
        """
        if not settings:
            return self
        defaults = self.settings if self.default_settings is None else self.default_settings
        combined = {**self.settings, **checked(self.base, self.function, defaults, settings)}
        _require_usable(self.base, self.function, json.dumps(combined, sort_keys=True))
        differing = {
            name: value
            for name, value in combined.items()
            if name not in defaults or defaults[name] != value
        }
        return replace(
            self,
            name=spelled(self.base, differing),
            settings=combined,
            default_settings=defaults,
            explicit_settings=self.explicit_settings | settings.keys(),
        )


SHARE: dict[str, Any] = {"range": (0.0, 1.0), "scale": "from_zero"}
COSINE: dict[str, Any] = {"range": (-1.0, 1.0), "unit": "cosine"}
LENGTH: dict[str, Any] = {"range": (0.0, inf), "scale": "log_if_wide"}


def of_kernel(name: str, kernel: str = "", **fields: Any) -> Metric:
    """Return the metric of a kernel of this package, by default of that with the metric's
    own name.
    """
    return Metric(name, f"repdyn.kernels:{kernel or name}", **fields)


def imported(function: str | Callable[..., Any]) -> Callable[..., Any]:
    """Return a function, or import the one that "module:function" names.

    Names and meanings of metrics can so be listed without torch, which their kernels need.
    """
    return resolve_name(function) if isinstance(function, str) else function


_WITH_SUBSET = re.compile(r"([^\[\]@]*)(\[[^\[\]@]*\])?\s*(?:@(.*))?", re.DOTALL)
_SPELLED = re.compile(r"([^\[\]@]+)\[([A-Za-z_]\w*=.*)\]", re.DOTALL)
_SETTING = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(\S+)\s*", re.ASCII)
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_UNSAFE = re.compile(r"[^\w.=+-]")
_HOW = (
    "write NAME, NAME[setting=value,setting=value] or either with @SUBSET, such as "
    "two_nn[discard=0.8]@no_sink"
)
Kernel: TypeAlias = Callable[..., Any]


def parsed(name: str) -> tuple[str, dict[str, Any], str]:
    """Return the name of the registered metric, the given settings, and the subset, "" where none
    was given.

    >>> parsed("two_nn[discard=0.8, duplicates=count]@no_sink")
    ('two_nn', {'discard': 0.8, 'duplicates': 'count'}, 'no_sink')
    """
    matched = _WITH_SUBSET.fullmatch(name)
    if not matched:
        raise ValueError(f"expected a metric by its name, got {name!r}; {_HOW}")
    base, brackets, subset = matched.groups()
    if subset is not None and not subset.strip():
        raise ValueError(f"expected a subset after the @, got {name!r}; {_HOW}")
    settings: dict[str, Any] = {}
    for assignment in brackets[1:-1].split(",") if brackets else ():
        setting = _SETTING.fullmatch(assignment)
        if not setting:
            raise ValueError(
                f"expected settings as name=value, got {assignment.strip()!r} in {name!r}; {_HOW}"
            )
        settings[setting[1]] = _value(setting[2], name)
    return base.strip(), settings, (subset or "").strip()


def spelled(base: str, settings: Mapping[str, Any]) -> str:
    """Return the canonical name of a metric with these settings.

    >>> spelled("two_nn", {"estimator": "regression", "discard": 0.8}), spelled("two_nn", {})
    ('two_nn[discard=0.8,estimator=regression]', 'two_nn')
    """
    listed = ",".join(f"{name}={written(value)}" for name, value in sorted(settings.items()))
    return f"{base}[{listed}]" if listed else base


@cache
def base_name(metric: str) -> str:
    """Return the name without settings.

    >>> base_name("two_nn[discard=0.8]"), base_name("two_nn"), base_name("my [own] metric")
    ('two_nn', 'two_nn', 'my [own] metric')
    """
    found = _SPELLED.fullmatch(metric)
    return found[1] if found else metric


def settings_in_words(metric: str) -> str:
    """Return the settings in a name, for people; "" if there are none.

    >>> settings_in_words("two_nn[discard=0.8,duplicates=count]"), settings_in_words("two_nn")
    ('discard 0.8, duplicates count', '')
    """
    found = _SPELLED.fullmatch(metric)
    return found[2].replace("=", " ").replace(",", ", ") if found else ""


def file_stem(metric: str) -> str:
    """Return the name as a part of a file name without characters special to shells or file
    systems.

    >>> file_stem("two_nn[discard=0.8,duplicates=count]"), file_stem("anisotropy")
    ('two_nn-discard=0.8-duplicates=count', 'anisotropy')
    """
    found = _SPELLED.fullmatch(metric)
    return f"{found[1]}-{_UNSAFE.sub('-', found[2])}" if found else metric


def written(value: Any) -> str:
    """Return the value of a setting as it is written in a name.

    >>> written(50.0), written(True), written("count")
    ('50', 'true', 'count')
    """
    if isinstance(value, str):
        return value
    # one zero
    return json.dumps(value + 0.0 if isinstance(value, float) else value, default=str).removesuffix(
        ".0"
    )


def _value(text: str, name: str) -> Any:
    if _WORD.fullmatch(text):
        return {"true": True, "false": False}.get(text, text)
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    raise ValueError(
        f"expected the value of a setting to be a number, true, false or a word, got {text!r} in "
        f"{name!r}"
    )


def checked(
    metric: str, kernel: Kernel, defaults: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the given settings, each in the type that the kernel takes."""
    accepted = {p.name: p.default for p in _parameters(kernel) if p.kind is p.KEYWORD_ONLY} | {
        **defaults
    }
    for name in settings:
        if name not in accepted:
            choices = ", ".join(sorted(accepted)) or "it has none"
            hint = did_you_mean(name, accepted)
            raise ValueError(f"expected a setting of {metric} ({choices}), got {name!r}{hint}")
    return {
        name: _typed(metric, name, value, like=accepted[name]) for name, value in settings.items()
    }


def _typed(metric: str, name: str, value: Any, like: Any) -> Any:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if isinstance(like, bool):
        fits, what = isinstance(value, bool), "true or false"
    elif isinstance(like, int):
        fits, what = is_number and isinstance(value, Integral), "a whole number"
    elif isinstance(like, float):
        fits, what = is_number and math.isfinite(value), "a finite number"
    else:
        fits, what = isinstance(value, str) or not isinstance(like, str), "a word"
    if not fits:
        raise ValueError(f"expected {name} of {metric} to be {what}, got {value!r}")
    kind: Any = type(like)
    return kind(value) if isinstance(like, int | float) else value


def _parameters(kernel: Kernel) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(kernel).parameters.values())
    except (TypeError, ValueError):  # it is written in another language
        return []


@lru_cache(maxsize=256)
def _require_usable(metric: str, kernel: Kernel, settings: str) -> None:
    """Run a kernel of this package on a cloud or attention weights, so that an invalid value is
    rejected at once.
    """
    if not getattr(kernel, "__module__", "").startswith("repdyn.kernels."):
        return
    import torch

    from repdyn.kernels import Cloud

    inputs = []
    for parameter in _parameters(kernel):
        if parameter.kind is parameter.KEYWORD_ONLY or parameter.default is not parameter.empty:
            continue
        generator = torch.Generator().manual_seed(0)
        if "Cloud" in str(parameter.annotation):
            inputs.append(Cloud(torch.rand(64, 3, generator=generator, device="cpu")))
        elif parameter.name == "weights":
            scores = torch.rand(2, 8, 8, generator=generator, device="cpu").tril()
            inputs.append(scores / scores.sum(-1, keepdim=True))
        else:
            return
    try:
        kernel(*inputs, **json.loads(settings))
    except ValueError as error:
        raise ValueError(f"{metric}: {error}") from error
