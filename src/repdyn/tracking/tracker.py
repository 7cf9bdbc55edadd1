"""The tracker for a training loop of one's own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

from lightning.pytorch.loggers import Logger
from torch import nn

from repdyn.alerts import RulesLike, rules_from
from repdyn.alerts.rules import DEFAULT
from repdyn.capture.blocks import LayerPatterns, find_blocks, unwrapped
from repdyn.capture.forward import Forward
from repdyn.capture.token_states import TokenPositions
from repdyn.metrics import DEFAULT_METRICS, MetricLike, as_tuple
from repdyn.probe import Probe
from repdyn.store import Store, open_store
from repdyn.tracking.config import MeasurementConfig, OnFailure, validate_measurement
from repdyn.tracking.run import Tracking
from repdyn.tracking.schedule import ScheduleLike, ScheduleState
from repdyn.tracking.train_scalars import Scalar
from repdyn.utils.distributed import Ranks


class Tracker:
    """Measures every layer's anisotropy and intrinsic dimension at scheduled steps of any training loop.

        with Tracker(model, probe, schedule=100, store="runs/mine") as tracker:
            for batch in batches:
                ...
                optimizer.step()
                tracker.step(loss=loss)

    It measures on entering (step 0), at the scheduled steps and on leaving (the end), and changes nothing in the
    training. On leaving, also by Ctrl-C or an error, figures are written beside the store and a summary is printed. In
    a job of several processes all of them do the same; the probe and the layers are shared out among them.

    Args:
        model: what is trained, as it is called: bare, compiled, or wrapped by DistributedDataParallel or FSDP.
        probe: the tokens to measure on.
        schedule: as for :class:`repdyn.callbacks.RepresentationDynamics`; with "checkpoints", call :meth:`measure`
            where you save one.
        metrics: names in :data:`repdyn.metrics.METRICS`, with settings and a token subset where others than the usual
            ones are wanted ("two_nn", "two_nn@no_sink", "two_nn[discard=0.8]"), or Metric objects; "all" for every one
            that the probe has what it takes for.
        layers: name pattern of the blocks ("model.layers.*"), or several; None finds them.
        store: folder for the rows.
        on_error: "warn" logs a failing measurement once and lets the training go on; "raise" stops it.
        start: optimizer steps taken before, in a training that goes on: its store goes on, and what it holds is not
            measured again.
        tokens_seen: tokens consumed before, in a training that goes on.
        run: name of the run in the rows; by default the name of the store's folder.
        loggers: Lightning's loggers, which work without Lightning's Trainer; ``WandbLogger(experiment=wandb.run)``
            joins a run of W&B that is open already.
        forward: ``forward(model, batch)`` runs the model on a :class:`repdyn.probe.ProbeBatch`; None calls it with
            ``input_ids`` and, where it takes one, ``attention_mask``.
        token_positions: as for :func:`repdyn.measure`, in a model that puts learned vectors among the tokens:
            ``slice(k, None)`` where k vectors stand before them.
        tokens_per_forward: bounds the size of one forward pass over the probe.
        alerts, report: as for :class:`repdyn.callbacks.RepresentationDynamics`; it is for the loop to heed
            :attr:`should_stop`.

    Raises:
        ValueError: at once, where the configuration cannot work: an unknown metric, blocks that cannot be told. On
            entering, where the store holds another run of this name.
    """

    def __init__(
        self,
        model: nn.Module,
        probe: Probe,
        schedule: ScheduleLike = "pythia",
        metrics: str | Sequence[MetricLike] = DEFAULT_METRICS,
        layers: LayerPatterns = None,
        store: str | Path = "repdyn",
        on_error: OnFailure = "warn",
        *,
        start: int = 0,
        tokens_seen: int = 0,
        run: str | None = None,
        loggers: Iterable[Logger] = (),
        forward: Forward | None = None,
        token_positions: TokenPositions | None = None,
        tokens_per_forward: int = 8192,
        alerts: RulesLike = DEFAULT,
        report: bool = True,
    ) -> None:
        validate_measurement(metrics, on_error, token_positions)
        if start < 0:
            raise ValueError(f"expected start >= 0, the optimizer steps taken before, got {start}")
        self._within = model
        self._model = unwrapped(model)
        find_blocks(self._model, layers)
        self._agenda = ScheduleState(schedule)
        self._now = start
        self._tokens_seen: int | None = tokens_seen
        self._loss: Scalar = None
        self._learning_rate: Scalar = None
        self._loggers = tuple(loggers)
        self._store = open_store(store)
        self._tracking = Tracking(
            asked=MeasurementConfig(
                probe=probe,
                metrics=as_tuple(metrics),
                layers=layers,
                forward=forward,
                token_positions=token_positions,
                tokens_per_forward=tokens_per_forward,
            ),
            run=run or Path(store).resolve().name,
            store=self._store,
            loggers=lambda: self._loggers,
            on_error=on_error,
            rules=rules_from(alerts),
            report=report,
        )

    @property
    def store(self) -> Store:
        """Where the rows go."""
        return self._store

    @property
    def now(self) -> int:
        """Optimizer steps taken."""
        return self._now

    @property
    def should_stop(self) -> bool:
        """Whether an alert whose rule has ``stop=True`` was raised; the same in all processes."""
        return self._tracking.stop_asked

    def __enter__(self) -> Tracker:
        self._tracking.begin(Ranks.of_job(), self._agenda.schedule, resumed=self._now > 0)
        try:
            if self._agenda.starts(self._now):
                self._measure()
        except BaseException:
            self._tracking.finish(interrupted=True)
            raise
        return self

    def step(self, loss: Scalar = None, tokens: int | None = None, learning_rate: Scalar = None) -> None:
        """Say that the optimizer has taken a step; measures where the schedule has it.

        Args:
            loss: the training loss, to stand beside the measurement.
            tokens: training tokens the step has consumed, over all processes. Left out once, their sum is not known.
            learning_rate: as it is now, to stand beside the measurement: ``optimizer.param_groups[0]["lr"]``.
        """
        self._now += 1
        self._tokens_seen = None if tokens is None or self._tokens_seen is None else self._tokens_seen + tokens
        self._loss, self._learning_rate = loss, learning_rate
        if self._agenda.reaches(self._now):
            self._measure()

    def measure(self) -> None:
        """Measure now, whatever the schedule, unless this step has been measured."""
        if self._agenda.ends(self._now):
            self._measure()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        whole = False
        try:
            if kind is None:
                self.measure()
                whole = True
        finally:
            self._tracking.finish(interrupted=not whole)

    def _measure(self) -> None:
        self._tracking.measure(
            self._model,
            self._now,
            tokens_seen=self._tokens_seen,
            loss=self._loss,
            learning_rate=self._learning_rate,
            root_module=self._within,
        )
