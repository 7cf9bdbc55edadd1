"""The definition of a metric: what it computes, from what, where it is measured and in what range.

What is measured of it is a :class:`repdyn.metrics.request.MetricRequest`; how it is drawn is a
:class:`repdyn.views.display.Display`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, is_dataclass
from functools import cached_property
from math import inf
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from repdyn.capture.states import CaptureKind

Position: TypeAlias = Literal["layers", "blocks", "between"]

WEIGHT_CAPTURES: frozenset[CaptureKind] = frozenset({"weights", "gradients", "weights_before"})
"""What is captured of the blocks themselves rather than of vectors."""


@dataclass(frozen=True)
class Metric:
    """Defines a quantity of a layer: its kernel with the settings and inputs, and its range.

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
    """All keyword-only arguments of the kernel with their default values; those that a value was
    computed with are recorded in its row."""
    select_inputs: str | Callable[..., Any] = "repdyn.metrics.inputs:clouds"
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

    display: Any = None
    """How a metric of your own is drawn, a :class:`repdyn.views.display.Display`; stored with its
    rows, and read by views alone. None draws it under its name, on a linear axis."""

    def __post_init__(self) -> None:
        if self.display is not None and not is_dataclass(self.display):
            raise ValueError(
                f"expected display of {self.name} to be a repdyn.Display, got {self.display!r}; "
                "write Display(title=..., unit=...)"
            )

    @cached_property
    def function(self) -> Callable[..., Any]:
        """Return the kernel itself."""
        return imported(self.kernel)

    @cached_property
    def selector(self) -> Callable[..., Any]:
        """Return ``select_inputs`` as a function."""
        return imported(self.select_inputs)

    @cached_property
    def is_own(self) -> bool:
        """Return whether the kernel is defined outside this package."""
        return not getattr(self.function, "__module__", "").startswith("repdyn.")

    @cached_property
    def is_of_weights(self) -> bool:
        """Return whether it is of the weights of a block, rather than of vectors."""
        return bool(self.captures & WEIGHT_CAPTURES)

    @cached_property
    def is_of_attention_weights(self) -> bool:
        """Return whether its batches are the attention weights of single sequences, rather than
        samples of vectors.
        """
        return "attention_weights" in self.captures

    def is_defined_at(self, layer: int, *, is_last: bool) -> bool:
        """Return whether the metric has a value at a layer of a stack; layer 0 is the embedding
        output.
        """
        if self.position == "blocks":
            return layer > 0
        return not (self.position == "between" and is_last)

    def enters_means(self, layer: int) -> bool:
        """Return whether the value of a layer enters means over layers: those are over the blocks,
        and what lies between the embeddings and the first block tells of the block.
        """
        return layer > 0 or self.position == "between"


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
