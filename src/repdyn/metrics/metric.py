"""One metric: a kernel, what it is given, and what people are told of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from repdyn.capture.states import CaptureKind
from repdyn.metrics.layer_view import LayerView, clouds
from repdyn.metrics.names import base_name, spelled
from repdyn.metrics.settings import checked, require_usable


@dataclass(frozen=True)
class Metric:
    """One quantity of a layer."""

    name: str
    kernel: Callable[..., Tensor]
    """Turns the inputs of one batch into a 0-d tensor, or raises :class:`repdyn.kernels.Undefined`."""
    meaning: str
    """One line for people."""
    range: tuple[float, float]
    source: str
    family: str = "own"
    """What it is drawn and listed with."""
    select_inputs: Callable[[LayerView, str], Sequence[tuple]] = clouds
    """Picks the kernel's positional arguments for every batch of a subset out of what can be reached from a layer."""
    captures: frozenset[CaptureKind] = frozenset()
    """What ``needs`` reaches for beside the layer's own states."""
    subsets: tuple[str, ...] = ("all",)
    """Token subsets measured when none is asked for by name."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the kernel, all that it has, recorded in every row."""
    between: bool = False
    """It lies between a layer and the next, so that the last layer has none."""
    first_layer: int = 0
    """1 where the embedding output has none."""
    per_head: bool = False
    """The kernel gives one value for each attention head; the layer's is their mean."""
    whole_sequences: bool = False
    """It is of whole sequences, so that it can be taken on all tokens alone."""
    probe_requires: str = ""
    """What the probe must know, "topics" or nothing."""
    on_distinct: bool = False
    """Equal vectors count once unless a setting ``duplicates`` says otherwise."""
    whole_spectrum: bool = False
    """It is read off all eigenvalues of the covariance."""
    neighbours: str = ""
    """The setting that says how many nearest neighbours of each vector it looks at, if not two or none."""

    plain: Mapping[str, Any] | None = None
    """Settings that the name without any stands for; None where these are ``settings``."""
    said: frozenset[str] = frozenset()
    """The settings that were given by name."""

    @property
    def base(self) -> str:
        """The name without settings."""
        return base_name(self.name)

    def with_settings(self, **settings: Any) -> Metric:
        """Return the metric with other settings, as ``METRICS["two_nn"].with_settings(discard=0.8)``.

        Its name says which of them differ from what the plain name stands for: ``two_nn[discard=0.8]``.

        Raises:
            ValueError: a setting that the metric does not have, or a value that it does not take.
        """
        plain = self.settings if self.plain is None else self.plain
        whole = {**self.settings, **checked(self.base, self.kernel, plain, settings)}
        if settings:
            require_usable(self.base, self.kernel, whole)
        differing = {name: value for name, value in whole.items() if name not in plain or plain[name] != value}
        said = self.said | settings.keys()
        return replace(self, name=spelled(self.base, differing), settings=whole, plain=plain, said=said)

    def with_meaning(self, **settings: Any) -> Metric:
        """Return the metric where its plain name stands for these settings; those given by name are kept.

        Raises:
            ValueError: as for :meth:`with_settings`.
        """
        plain = self.settings if self.plain is None else self.plain
        given = {
            name: value
            for name, value in self.settings.items()
            if name in self.said or name not in plain or plain[name] != value
        }
        bare = replace(self, name=self.base, settings=plain, plain=None, said=frozenset())
        meant = replace(bare, settings=bare.with_settings(**settings).settings)
        return meant.with_settings(**given)

    @property
    def collapses(self) -> bool:
        """Whether equal vectors count once, so that a layer with few distinct ones is in truth a smaller sample."""
        return self.on_distinct and self.settings.get("duplicates") != "count"

    @property
    def n_neighbours(self) -> int:
        """How many nearest neighbours of each vector are to be searched for it, at least."""
        return self.settings[self.neighbours] if self.neighbours else 2

    @property
    def settings_json(self) -> str:
        return json.dumps(dict(self.settings), sort_keys=True)

    def is_of(self, view: LayerView) -> bool:
        """Whether the layer has such a value at all."""
        return view.layer.index >= self.first_layer and not (self.between and view.layer.is_last)
