"""Statements about a run, as plain data that every view renders."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias
from urllib.parse import quote, urlencode

from repdyn.utils.records import json_values
from repdyn.views.judging.effects import Correlation
from repdyn.views.tables.style import of_stack

Severity: TypeAlias = Literal["failed", "watch", "note"]
Status: TypeAlias = Literal["healthy", "watch", "failed", "unknown"]
Evidence: TypeAlias = Mapping[str, float | str]

SEVERITIES: tuple[Severity, ...] = ("failed", "watch", "note")
"""From the most to the least severe."""
STATUSES: tuple[Status, ...] = ("failed", "watch", "healthy", "unknown")
"""In the order in which runs are shown."""


@dataclass(frozen=True)
class Insight:
    """A statement about a run that follows from its stored values alone."""

    severity: Severity
    """"failed": the training failed; "watch": someone should look; "note": a description."""
    kind: str
    """Name of the detector, for example "peak"."""
    sentence: str
    metric: str | None = None
    """None for a statement about the training."""
    subset: str | None = None
    stack: str | None = None
    layers: tuple[int, ...] = ()
    """The layers it is about; all layers if empty."""
    steps: tuple[int, ...] = ()
    """The steps it is about, ascending."""
    evidence: Evidence = field(default_factory=dict)
    """The numbers that the sentence rests on, by name."""
    weight: float = 0.0
    """Size of the effect in [0, 1], by which statements of the same severity are ranked."""
    link: str = ""
    """Fragment of the report's address that shows the evidence."""


@dataclass(frozen=True)
class LossCorrelation:
    """Correlation of the mean of a metric over layers with the loss."""

    metric: str
    subset: str
    values: Correlation
    """Over the checkpoints."""
    changes: Correlation
    """Over the changes from each checkpoint to the next, which removes trends."""


@dataclass(frozen=True)
class LossCorrelations:
    """Correlations of the metrics of a run with its loss, or the reason why there are none."""

    loss: str | None
    """Title of the loss, "loss on the probe" or "training loss"; None if no loss is stored."""
    of_metrics: tuple[LossCorrelation, ...] = ()
    reason: str | None = None
    """Why there are none; None if there are."""


@dataclass(frozen=True, repr=False)
class RunInsights:
    """The status of a run, or of one stack of its model, and its statements."""

    run: str
    probe: str
    """Hash of the probe."""
    stack: str | None
    status: Status
    """"unknown" if there are too few steps to judge, as for a finished model."""
    reason: str
    """One sentence on why it has this status."""
    statements: tuple[Insight, ...]
    """The most severe first, those of a severity by weight."""
    loss_correlations: LossCorrelations
    """Correlations of the metrics with the loss over the checkpoints."""

    @property
    def headline(self) -> str:
        """Return the status, its reason, and the most important statement where that is another, in
        one line.
        """
        sentences = dict.fromkeys([self.reason, *(each.sentence for each in self.statements[:1])])
        return f"{self.status}: {' '.join(sentences)}"

    def __repr__(self) -> str:
        """Return the run, its status with the reason, and a line for each statement."""
        lines = [f"{of_stack(self.run, self.stack)}: {self.status}: {self.reason}"]
        return "\n".join(
            [*lines, *(f"  {each.severity:<6} {each.sentence}" for each in self.statements)]
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as values of JSON; numbers that JSON does not have become None."""
        return json_values({**asdict(self), "headline": self.headline})


def report_link(run: str, **state: object) -> str:
    """Return the fragment of a report's address that selects a chart; values of None are left out.

    >>> report_link("lab/a b", metric="two_nn", subset=None, step=8)
    '#run=lab%2Fa%20b&metric=two_nn&step=8'
    """
    given = {"run": run, **{name: value for name, value in state.items() if value is not None}}
    return "#" + urlencode(given, quote_via=quote)
