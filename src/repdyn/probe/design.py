"""Sampling designs: how a probe is cut from text, and which of its vectors form a metric batch.

Vectors of one window share their context, so they are not independent. A neighbour-based estimate
of dimension whose neighbours come from the same window measures a trajectory instead of the
representation (Theiler, Physical Review A 34:2427, 1986). The design therefore belongs to every
value: it is hashed with the probe and recorded in each row, and values of different designs are
never joined into one curve.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, TypeAlias

from repdyn.utils.mistyped import did_you_mean

BATCH_VECTORS = 4096
"""Default number of vectors in a metric batch."""
MIN_BATCH_VECTORS = 3
"""Least number of vectors in a metric batch; TwoNN needs two neighbours of a point."""
MAX_VECTORS = BATCH_VECTORS
"""Default number of vectors measured per layer, in all batches together: a single one, whose
interval is computed from the variation between its windows."""
TOKENS_PER_VECTOR = 1.25
"""Least number of text tokens per vector, since ``no_sink`` excludes special tokens and first
positions.
"""
SUBSETS = ("all", "no_sink")
"""The subsets that every probe of tokens has."""
NO_MASSIVE = "no_massive"
"""The subset without vectors of massive norm, which is selected at each layer separately."""
GAUSSIAN = "gaussian"
"""The subset of as many normal random vectors with the covariance of all vectors, at each layer: a
control.
"""
LAYER_SUBSETS = (NO_MASSIVE, GAUSSIAN)
"""The subsets that are made of all tokens at each layer."""
LAST_TOKEN = "last_token"
WINDOW_MEAN = "window_mean"
DIFFERENCES = "differences"
DISTINCT_INPUTS = "distinct_inputs"
"""The subset of one vector of each token at a position: no vector has its own input as a
neighbour.
"""
TYPES = "types"
"""The subset of one vector of each distinct token."""
DISTINCT = (TYPES, DISTINCT_INPUTS)
"""The subsets without repeats, that which leaves out more first."""
WITHOUT_REPEATS = "distinct"
"""Stands in the name of a metric for the one of :data:`DISTINCT` that a probe is measured on; no
row has it: see :attr:`repdyn.probe.Probe.without_repeats`."""
VIEWS = (DISTINCT_INPUTS, TYPES, LAST_TOKEN, WINDOW_MEAN, DIFFERENCES)
"""The views that select or combine tokens by what they are or by their position in a window."""
NORMED = ".normed"
_TITLES = {
    "all": "all tokens",
    "no_sink": "without first positions and special tokens",
    NO_MASSIVE: "without vectors of massive norm",
    GAUSSIAN: "Gaussian vectors of the same covariance",
    DISTINCT_INPUTS: "one vector of each distinct input",
    TYPES: "one vector of each distinct token",
    LAST_TOKEN: "last tokens of windows",
    WINDOW_MEAN: "means over windows",
    DIFFERENCES: "differences of neighbouring tokens",
}
"""What subsets and views are called where a reader does not know their names."""
CLASSES = ("function", "content", "frequent", "rare")
CLASS_OPTIONS = ("words", "none", *CLASSES)
"""Values of the option ``classes``: all classes, none, or some by name."""


@dataclass(frozen=True)
class Design:
    """A sampling design.

    The first group of fields holds the defaults for cutting text into windows, the second says how
    metric batches are sampled from the windows.
    """

    name: str
    window_tokens: int | None = None
    """Number of tokens in a window, including special ones; None if ``window_characters`` is set.
    """
    window_characters: int | None = None
    """Number of characters of text in a window."""
    n_windows: int | None = None
    """Number of windows cut from the text; None to derive it from ``vectors_per_window``."""
    vectors_per_window: int | None = None
    """Largest number of vectors of one window in a batch, if the text has enough windows; None for
    no limit.
    """
    shuffled: bool = False
    """Whether the text tokens of each window are put in random order."""

    disjoint_windows: bool = True
    """Whether the batches use disjoint sets of windows, with about equally many vectors of each.
    Otherwise every batch is sampled from all windows."""
    exclude_own_window: bool = True
    """Whether the neighbour search excludes a point's own window (a Theiler window)."""
    metric_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings, by metric name, of metrics that are requested without explicit settings."""

    def batch_plan(
        self, max_vectors: int, batch_vectors: int | None, n_tokens: int
    ) -> dict[str, Any]:
        """Return ``batch_vectors`` and ``n_batches`` for a probe of ``n_tokens`` tokens.

        A batch has as many vectors as requested, by default all, at most 4096. A design with a
        fixed number of windows uses all of their tokens, in batches of at least 4096 vectors,
        unless other sizes are requested.
        """
        if self.n_windows is not None and max_vectors == MAX_VECTORS and batch_vectors is None:
            n_batches = max(1, n_tokens // BATCH_VECTORS)
            return {"batch_vectors": n_tokens // n_batches, "n_batches": n_batches}
        batch = min(BATCH_VECTORS, max_vectors) if batch_vectors is None else batch_vectors
        return {"batch_vectors": batch, "n_batches": max_vectors // batch if batch > 0 else 0}

    def required_windows(
        self, n_batches: int, batch_vectors: int, window_tokens: int | None
    ) -> int:
        """Return how many windows the batches require, of ``window_tokens`` tokens each, or of no
        known number.

        >>> [design.required_windows(4, 4096, window_tokens=256) for design in (DENSE, PAPER)]
        [80, 128]
        """
        if self.n_windows is not None:
            return self.n_windows
        least = math.ceil(TOKENS_PER_VECTOR * n_batches * batch_vectors / (window_tokens or 1))
        return max(
            least, n_batches * -(-batch_vectors // (self.vectors_per_window or batch_vectors))
        )

    @property
    def rule(self) -> dict[str, Any]:
        """Return the part of the design that affects values once the tokens are fixed, as
        JSON-serialisable values.
        """
        settings = {name: dict(values) for name, values in sorted(self.metric_settings.items())}
        return {
            "design": self.name,
            "disjoint_windows": self.disjoint_windows,
            "exclude_own_window": self.exclude_own_window,
            "metric_settings": settings,
        }


def fitting(plan: Mapping[str, Any], available: int) -> dict[str, Any]:
    """Return the largest part of a plan that so many vectors allow: fewer batches, then a smaller
    one.

    A warning says so where it is not the whole plan.

    >>> fitting({"batch_vectors": 512, "n_batches": 4}, available=5000)
    {'batch_vectors': 512, 'n_batches': 4}
    """
    size = plan["batch_vectors"]
    n_batches = plan["n_batches"]
    if available >= size * n_batches or available < MIN_BATCH_VECTORS:
        return dict(plan)  # the probe itself refuses what is too small for any estimator
    fewer = {"batch_vectors": min(size, available), "n_batches": max(1, available // size)}
    warnings.warn(
        f"the probe has {available:,} vectors for the {size * n_batches:,} that were requested, "
        f"so that {fewer['n_batches']} x {fewer['batch_vectors']:,} are measured; values compare "
        "only with those of as many, so give more, or the same max_vectors to all",
        UserWarning,
        stacklevel=5,
    )
    return fewer


INDEPENDENT = Design("independent", window_tokens=80, vectors_per_window=8)
"""The default: a few vectors of each of many windows, disjoint batches, neighbours in the same
window excluded.
"""
DENSE = Design("dense", window_tokens=256, disjoint_windows=False, exclude_own_window=False)
"""Most tokens of few windows, all neighbours included: for comparison with values measured that
way.
"""
PAPER = Design(
    "paper",
    window_tokens=None,
    window_characters=512,
    n_windows=128,
    disjoint_windows=False,
    exclude_own_window=False,
    metric_settings={"two_nn": {"discard": 0.8, "duplicates": "count"}},
)
"""The published protocol: all tokens of 128 windows of 512 characters, batches of at least 4096,
the dimension fitted to the lowest 20% of the ratios with duplicates counted (Razzhigaev et al.
2024, package llm_microscope 0.0.7)."""

# Those of probes of inputs: a few vectors of each, disjoint batches, neighbours in the same input
# excluded.
INPUTS = Design("inputs")
IMAGES = Design("images")
AUDIO = Design("audio")
INPUT_DESIGNS = {INPUTS.name: "input", IMAGES.name: "image", AUDIO.name: "recording"}
"""What one input is called, by the name of the design."""

SHUFFLED = replace(INDEPENDENT, name="shuffled", shuffled=True)
"""The default design on the same windows with their tokens in random order: the same tokens without
their syntax.
"""

DESIGNS = {design.name: design for design in (INDEPENDENT, DENSE, PAPER, SHUFFLED)}
DesignLike: TypeAlias = str | Design


def resolve_design(design: DesignLike) -> Design:
    """Return the design of a given name; a Design is returned unchanged.

    >>> resolve_design("paper").window_characters
    512
    """
    if isinstance(design, Design):
        return design
    if design not in DESIGNS:
        hint = did_you_mean(str(design), DESIGNS)
        raise ValueError(
            f"expected a design among {', '.join(DESIGNS)}, or a Design, got {design!r}{hint}"
        )
    return DESIGNS[design]


def design_from_rule(rule: Mapping[str, Any]) -> Design:
    """Return the design with a given ``rule``: the named one if it has the same rule, otherwise a
    new one.
    """
    for design in (*DESIGNS.values(), INPUTS, IMAGES, AUDIO):
        if design.rule == rule:
            return design
    settings = {name: value for name, value in rule.items() if name != "design"}
    return Design(rule["design"], **settings)


@dataclass(frozen=True)
class View:
    """A selection of vectors from each window, with or without the model's final norm.

    By default each sampled token is a vector, as the block left it. A view is named like a subset,
    after the "@" of a metric, and recorded as one, so that values of different views never form one
    curve: ``distinct_inputs`` (one vector of each token at a position), ``types`` (one of each
    distinct token), ``last_token`` (the last of each window that is not special), ``window_mean``
    (over all tokens of each window), ``differences`` (of each sampled token to the next one in its
    window), and each of them after the model's final norm, ``last_token.normed``.
    """

    vectors: str
    """A subset, or one of :data:`VIEWS`."""
    normed: bool

    @property
    def title(self) -> str:
        """Return the name of the vectors in titles, legends and alerts."""
        title = _TITLES.get(self.vectors, self.vectors)
        return f"{title} after the final norm" if self.normed else title

    @cached_property
    def sampled(self) -> str:
        """Return the subset or view by which tokens of the probe are sampled."""
        return "all" if self.vectors in LAYER_SUBSETS else self.vectors

    @cached_property
    def of_single_tokens(self) -> bool:
        """Return True if each vector is the state of one token, without the final norm."""
        return not self.normed and self.vectors not in {WINDOW_MEAN, DIFFERENCES, GAUSSIAN}


@cache
def view_of(subset: str) -> View:
    """Return the view that a subset in a metric's name, or in a row, stands for.

    >>> view_of("no_sink"), view_of("last_token.normed").normed
    (View(vectors='no_sink', normed=False), True)
    """
    return View(subset.removesuffix(NORMED), subset.endswith(NORMED))


def class_names(requested: str | Sequence[str]) -> tuple[str, ...]:
    """Return the word classes that an option names; "words" means all of them, "none" none.

    >>> class_names(["rare", "function"]), class_names("none")
    (('function', 'rare'), ())
    """
    names = [requested] if isinstance(requested, str) else list(requested)
    for name in names:
        if name not in CLASS_OPTIONS:
            raise ValueError(
                f"expected word classes among {', '.join(CLASS_OPTIONS)}, got {name!r}"
            )
    return tuple(name for name in CLASSES if name in names or "words" in names)
