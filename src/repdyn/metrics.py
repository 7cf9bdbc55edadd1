"""The table of metrics: everything that can be measured, each with what it needs and where it comes from.

To add a metric, write its kernel in ``kernels/`` and give it a line here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from torch import Tensor, nn

from repdyn.kernels import (
    SCALES,
    Cloud,
    anisotropy_of,
    effective_rank_of,
    gride_of,
    participation_ratio_of,
    two_nn_of,
)
from repdyn.layers.states import LayerStates, States
from repdyn.probe import SUBSETS, Probe


@dataclass
class LayerView:
    """What a metric can reach from one layer. Clouds are made once and shared by all metrics of the layer.

    ``states`` holds the layers still to come: those before it are measured and gone.
    """

    layer: LayerStates
    states: States
    probe: Probe
    model: nn.Module
    n_neighbours: int = 2
    """The most nearest neighbours that a metric of the layer asks for; they are searched once."""
    whole_spectrum: bool = False
    """Whether a metric of the layer asks for more of the spectrum than its largest value."""
    _clouds: dict[str, list[Cloud]] = field(default_factory=dict)

    def clouds(self, subset: str) -> list[Cloud]:
        """The layer's point cloud in each batch of a subset."""
        if subset not in self._clouds:
            self._clouds[subset] = [
                Cloud(
                    self.layer.states[self.states.rows_of(tokens)],
                    n_neighbours=self.n_neighbours,
                    whole_spectrum=self.whole_spectrum,
                )
                for tokens in self.probe.sample(subset)
            ]
        return self._clouds[subset]


def clouds(layer: LayerView, subset: str) -> list[tuple[Cloud]]:
    """The kernel's input is one layer's point cloud, batch by batch."""
    return [(cloud,) for cloud in layer.clouds(subset)]


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
    needs: Callable[[LayerView, str], Sequence[tuple]] = clouds
    """Picks the kernel's positional arguments for every batch of a subset out of the layer, or of those to come."""
    subsets: tuple[str, ...] = ("all",)
    """Token subsets measured when none is asked for by name."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the kernel, recorded in every row."""
    on_distinct: bool = False
    """Equal vectors count once, so that a layer with few distinct ones is in truth a smaller sample."""
    whole_spectrum: bool = False
    """It is read off all eigenvalues of the covariance."""
    neighbours: str = ""
    """The setting that says how many nearest neighbours of each vector it looks at, if not two or none."""

    def with_settings(self, **settings: Any) -> Metric:
        """The same metric with other kernel parameters, as ``METRICS["two_nn"].with_settings(discard=0.8)``."""
        return replace(self, settings={**self.settings, **settings})

    @property
    def n_neighbours(self) -> int:
        """How many nearest neighbours of each vector are to be searched for it, at least."""
        return self.settings[self.neighbours] if self.neighbours else 2

    @property
    def settings_json(self) -> str:
        return json.dumps(dict(self.settings), sort_keys=True)


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in [
        Metric(
            name="anisotropy",
            kernel=anisotropy_of,
            meaning="share of variance along the first principal direction",
            range=(0.0, 1.0),
            source="Razzhigaev et al. 2024, The Shape of Learning (Findings of EACL)",
            # A few attention sinks can make up nearly all of it, so it is never shown with sinks alone.
            subsets=("all", "no_sink"),
        ),
        Metric(
            name="two_nn",
            kernel=two_nn_of,
            meaning="intrinsic dimension from the ratio of each point's two nearest-neighbour distances",
            range=(0.0, float("inf")),
            source="Facco, d'Errico, Rodriguez, Laio 2017 (Sci. Rep. 7:12140)",
            settings={"discard": 0.1, "estimator": "regression"},
            on_distinct=True,
        ),
        *(
            Metric(
                name=f"gride_{k}",
                kernel=gride_of,
                meaning=f"intrinsic dimension from the ratio of each point's distances to neighbours {k} and {k // 2}",
                range=(0.0, float("inf")),
                source="Denti, Doimo, Laio, Mira 2022 (Sci. Rep. 12:20005)",
                settings={"k": k},
                on_distinct=True,
                neighbours="k",
            )
            for k in SCALES
        ),
        Metric(
            name="participation_ratio",
            kernel=participation_ratio_of,
            meaning="number of directions that the variance is spread over",
            range=(1.0, float("inf")),
            source="Gao et al. 2017 (bioRxiv 214262)",
            whole_spectrum=True,
        ),
        Metric(
            name="effective_rank",
            kernel=effective_rank_of,
            meaning="exponential of the entropy of the normalised singular values",
            range=(1.0, float("inf")),
            source="Roy, Vetterli 2007 (EUSIPCO); RankMe, Garrido et al. 2023",
            whole_spectrum=True,
        ),
    ]
}

MetricLike: TypeAlias = str | Metric
DEFAULT_METRICS = ("anisotropy", "two_nn")


def resolve(metrics: Sequence[MetricLike]) -> list[tuple[Metric, str]]:
    """Pairs of metric and token subset.

    Args:
        metrics: names in the table, each measured on its default subsets, or on one when written "two_nn@no_sink";
            or Metric objects.

    Raises:
        ValueError: no metric, an unknown name, or an unknown subset.

    >>> [(metric.name, subset) for metric, subset in resolve(["anisotropy", "two_nn@no_sink"])]
    [('anisotropy', 'all'), ('anisotropy', 'no_sink'), ('two_nn', 'no_sink')]
    """
    if not isinstance(metrics, Sequence) or isinstance(metrics, str | bytes) or not metrics:
        raise ValueError(f'expected a sequence of metrics such as ("anisotropy", "two_nn"), got {metrics!r}')
    pairs: dict[tuple[str, str, str], tuple[Metric, str]] = {}
    for wanted in metrics:
        if not isinstance(wanted, str | Metric):
            raise ValueError(f"expected each metric by name or as a Metric, got {wanted!r}")
        metric, _, subset = (wanted, "", "") if isinstance(wanted, Metric) else wanted.partition("@")
        if isinstance(metric, str):
            if metric not in METRICS:
                raise ValueError(f"expected metrics among {', '.join(METRICS)}, got {metric!r}")
            metric = METRICS[metric]
        if subset and subset not in SUBSETS:
            raise ValueError(f"expected a subset among {', '.join(SUBSETS)}, got {wanted!r}")
        for chosen in (subset,) if subset else metric.subsets:
            pairs[metric.name, metric.settings_json, chosen] = (metric, chosen)
    return list(pairs.values())
