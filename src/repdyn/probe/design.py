"""Sampling designs: how a probe is cut from text, and which of its vectors make up one metric batch.

Vectors of one window share their context, so they are no independent sample. A neighbour-based estimate of dimension
that finds its neighbours within a window measures a trajectory instead of the representation (Theiler, Physical Review
A 34:2427, 1986). A design is therefore part of every value: it is hashed with the probe, recorded in each row, and
values of two designs are never joined into one curve.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from reprlib import repr as briefly
from typing import Any, TypeAlias

BATCH_VECTORS = 4096
"""Vectors in one metric batch."""
MAX_VECTORS = 4 * BATCH_VECTORS
"""Vectors measured per layer, in all batches together."""
TOKENS_PER_VECTOR = 1.25
"""Tokens of text for each vector, at least: special tokens and first positions are left out of one subset."""


@dataclass(frozen=True)
class Design:
    """A sampling design.

    The first group of fields says how windows are cut from text where the caller does not, the second how metric
    batches are drawn from them.
    """

    name: str
    window_tokens: int | None = None
    """Tokens in a window, special ones included; None where ``window_characters`` decides."""
    window_characters: int | None = None
    """Characters of text in a window."""
    n_windows: int | None = None
    """Windows cut from the text; None for as many as ``vectors_per_window`` asks for."""
    vectors_per_window: int | None = None
    """Vectors of one window in a batch, at most, where the text has enough windows; None for all of them."""

    disjoint_windows: bool = True
    """Whether the batches take disjoint sets of windows, each window giving as equal a share as possible. Otherwise
    every batch is drawn from all windows together."""
    exclude_own_window: bool = True
    """Whether neighbours in a point's own window are left out of the neighbour search (a Theiler window)."""
    metric_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings that metrics named without any take in this design, by metric name."""

    def batch_plan(self, max_vectors: int, batch_vectors: int | None, n_tokens: int) -> dict[str, Any]:
        """Return ``batch_vectors`` and ``n_batches`` for a probe of so many tokens.

        A design that names the number of windows takes all of their tokens, in batches of at least 4096 vectors, unless
        other sizes are asked for.
        """
        if self.n_windows is not None and max_vectors == MAX_VECTORS and batch_vectors is None:
            n_batches = max(1, n_tokens // BATCH_VECTORS)
            return {"batch_vectors": n_tokens // n_batches, "n_batches": n_batches}
        batch = min(BATCH_VECTORS, max_vectors) if batch_vectors is None else batch_vectors
        return {"batch_vectors": batch, "n_batches": max_vectors // batch if batch > 0 else 0}

    def windows_wanted(self, n_batches: int, batch_vectors: int, window_tokens: int) -> int:
        """Return how many windows of so many tokens the batches take by this design.

        >>> [design.windows_wanted(4, 4096, window_tokens=256) for design in (DENSE, PAPER)]
        [80, 128]
        """
        if self.n_windows is not None:
            return self.n_windows
        least = math.ceil(TOKENS_PER_VECTOR * n_batches * batch_vectors / window_tokens)
        return max(least, n_batches * -(-batch_vectors // (self.vectors_per_window or batch_vectors)))

    @property
    def rule(self) -> dict[str, Any]:
        """The part of the design that decides values once the tokens are fixed, as JSON can hold it."""
        settings = {name: dict(given) for name, given in sorted(self.metric_settings.items())}
        return {
            "design": self.name,
            "disjoint_windows": self.disjoint_windows,
            "exclude_own_window": self.exclude_own_window,
            "metric_settings": settings,
        }


INDEPENDENT = Design("independent", window_tokens=80, vectors_per_window=8)
"""The default: a few vectors of each of many windows, disjoint batches, neighbours of the own window left out."""
DENSE = Design("dense", window_tokens=256, disjoint_windows=False, exclude_own_window=False)
"""Most tokens of few windows in one cloud, all neighbours counted: for comparison with values measured that way."""
PAPER = Design(
    "paper",
    window_tokens=None,
    window_characters=512,
    n_windows=128,
    disjoint_windows=False,
    exclude_own_window=False,
    metric_settings={"two_nn": {"discard": 0.8, "duplicates": "count"}},
)
"""The published protocol: all tokens of 128 windows of 512 characters, batches of at least 4096, the dimension fitted
to the lowest 20 % of the ratios with duplicates counted (Razzhigaev et al. 2024, package llm_microscope 0.0.7)."""

DESIGNS = {design.name: design for design in (INDEPENDENT, DENSE, PAPER)}
DesignLike: TypeAlias = str | Design


def design_named(design: DesignLike) -> Design:
    """Look up a design by its name; a Design is returned as it is.

    Raises:
        ValueError: there is no design of this name.

    >>> design_named("paper").window_characters
    512
    """
    if isinstance(design, Design):
        return design
    if design not in DESIGNS:
        close = difflib.get_close_matches(str(design), DESIGNS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"expected a design among {', '.join(DESIGNS)}, or a Design, got {design!r}{hint}")
    return DESIGNS[design]


def design_from_rule(rule: Mapping[str, Any]) -> Design:
    """Rebuild a design from its ``rule``: the named one where it has the same rule, otherwise one of its own.

    Raises:
        ValueError: the rule has other fields or types than :attr:`Design.rule` gives.
    """
    known = {
        "design": str,
        "disjoint_windows": bool,
        "exclude_own_window": bool,
        "metric_settings": dict,
    }
    if set(rule) != set(known) or not all(type(rule[name]) is kind for name, kind in known.items()):
        raise ValueError(f"expected a sampling design with {', '.join(known)}, got {briefly(dict(rule))}")
    if not all(isinstance(given, dict) for given in rule["metric_settings"].values()):
        raise ValueError(f"expected metric_settings by metric name, got {rule['metric_settings']!r}")
    named = DESIGNS.get(rule["design"])
    if named is not None and named.rule == dict(rule):
        return named
    fields = {name: value for name, value in rule.items() if name != "design"}
    return Design(rule["design"], **fields)
