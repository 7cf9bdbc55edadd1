"""The options of a tracker, declared once for all ways to attach one."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from repdyn.measurement.options import MeasurementArguments, MeasurementOptions
from repdyn.metrics.logged import LogLayers, validate_log_layers
from repdyn.store.find import places_named
from repdyn.tracking.notices import OnFailure
from repdyn.tracking.sinks import Sink, check_sinks, installed_sinks
from repdyn.utils.distributed import WhichRanks


class TrackingArguments(MeasurementArguments, total=False):
    """Keyword arguments that all trackers take."""

    on_error: OnFailure
    """"warn" logs a failing measurement once and lets the training go on, which is the default;
    "raise" stops it.
    """
    run: str | None
    """Name of the run in the rows, which other runs of the store may have too."""
    log_layers: LogLayers
    """The metrics of which the loggers get every layer: "default" (anisotropy and TwoNN on all
    tokens), "all", "none" (no layers at all), or patterns ("two_nn", "cka_*",
    "anisotropy@no_sink"). Of the others they get the first, the middle and the last layer, of each
    the mean, minimum and maximum. The store has all."""
    alerts: Sequence[Any] | str | Path | None
    """Rules whose alerts are logged as warnings: a YAML file, :class:`repdyn.views.alerts.Rule`
    objects, or None for none. Only a rule with ``stop: true`` ends the training."""
    against: str | Path | Sequence[str | Path] | None
    """Folders of at least three earlier sound runs of the same recipe, with * for any characters,
    such as "runs/good*": each measurement is compared with theirs, a line says so where the run is
    further from them than they are from each other, and every picture of the run has their band
    behind its curves."""
    report: bool
    """Whether ``report.html`` in the store is updated during the run, which is the default."""
    max_overhead: float | None
    """Largest share of the training's time that tracking may take, 0.02 for 2%: scheduled steps
    without time for a measurement are left out, except the first and the last; None for no
    limit."""
    configuration: Mapping[str, Any] | None
    """Settings of the training to store with the run, such as ``vars(args)``, beside those that a
    trainer tells: views name the ones in which runs differ."""
    ranks: WhichRanks
    """Which processes measure a model that each of them holds whole: "zero", the first alone,
    without a word to the others; "all" shares layers and forward passes out. A sharded model is
    measured by all of them together."""
    sinks: Sequence[Sink]
    """Objects of one's own that get all rows once they are stored, as
    :class:`repdyn.tracking.sinks.Sink` says."""


@dataclass(frozen=True, kw_only=True)
class TrackingOptions(MeasurementOptions):
    """Specifies what is measured and where the results go; fields as in :class:`TrackingArguments`.

    Raises:
        ValueError: as :class:`MeasurementOptions`; a word or share that does not exist.
        OSError: the file of the rules cannot be read.
    """

    on_error: OnFailure = "warn"
    run: str | None = None
    log_layers: LogLayers = "default"
    alerts: Sequence[Any] | str | Path | None = "default"
    against: str | Path | Sequence[str | Path] | None = None
    earlier: tuple[str, ...] = field(init=False, default=())
    """The places of the earlier runs that ``against`` names."""
    report: bool = True
    max_overhead: float | None = None
    configuration: Mapping[str, Any] | None = field(default=None, compare=False)
    ranks: WhichRanks = "zero"
    sinks: Sequence[Sink] = ()
    installed: tuple[Sink, ...] = field(init=False, repr=False, compare=False, default=())
    """The sinks that are installed. They are made here, so that wrong options of theirs are an
    error before the training begins; each run gets copies of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, words in (("on_error", get_args(OnFailure)), ("ranks", get_args(WhichRanks))):
            if getattr(self, name) not in words:
                raise ValueError(
                    f"expected {name} as one of {', '.join(words)}, got {getattr(self, name)!r}"
                )
        if not isinstance(self.configuration, Mapping | None):
            kind = type(self.configuration).__name__
            raise ValueError(f"expected configuration as a mapping, such as vars(args), got {kind}")
        if self.max_overhead is not None and not 0 < self.max_overhead < 1:
            raise ValueError(
                "expected max_overhead as a share of the training's time above 0 and below 1, such "
                f"as 0.02, got {self.max_overhead!r}; leave it out for no limit"
            )
        validate_log_layers(self.log_layers, self.pairs())
        patterns = [self.against] if isinstance(self.against, str | Path) else self.against or ()
        # around the guard of a frozen dataclass, as its own __init__ does
        object.__setattr__(self, "earlier", places_named(patterns))
        object.__setattr__(self, "sinks", check_sinks(self.sinks))
        # last: sinks read the other fields
        object.__setattr__(self, "installed", installed_sinks(self))

    @property
    def may_stop(self) -> bool:
        """Return whether a sink may have the training stopped."""
        return any(getattr(sink, "may_stop", True) for sink in (*self.installed, *self.sinks))

    def sinks_of_a_run(self) -> list[Sink]:
        """Return the sinks for a run: new ones of the installed kinds, and the user's own."""
        # a training with averaged weights has two runs: a user's own sink hears of both
        return [*copy.deepcopy(self.installed), *self.sinks]

    def check_loggers(self, loggers: Iterable[Any]) -> None:
        """Raise TypeError where a sink cannot write to one of these loggers."""
        checks = [getattr(sink, "check_logger", None) for sink in self.installed]
        for logger in loggers:
            for check in filter(None, checks):
                check(logger)

    def read_by(self, monitors: Iterable[object]) -> list[str]:
        """Return the monitored names that are values of a tracker with these options.

        Args:
            monitors: names by which callbacks such as ModelCheckpoint decide; others than texts are
                no names.
        """
        metrics = [metric for metric, _ in self.pairs()]
        names = [monitor for monitor in monitors if isinstance(monitor, str)]
        # names in loggers are made of that of the metric and much else: a prefix, a subset, a layer
        return [name for name in names if any(metric in name for metric in metrics)]
