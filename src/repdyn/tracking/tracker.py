"""The tracker for a custom training loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, get_args

from torch import Tensor, nn

from repdyn.alerts import RulesLike, resolve_rules
from repdyn.alerts.rules import DEFAULT
from repdyn.capture.blocks import LayerPatterns, find_blocks, unwrapped
from repdyn.capture.forward import Forward
from repdyn.capture.token_states import TokenPositions
from repdyn.measurement.type_checks import check_model
from repdyn.metrics import DEFAULT_METRICS, MetricLike
from repdyn.probe import Probe
from repdyn.publish.keys import LogLayers
from repdyn.store import Store, open_store
from repdyn.store.scalars import LEARNING_RATE, LOSS, VALIDATION_LOSS
from repdyn.tracking.config import MeasurementConfig, OnFailure
from repdyn.tracking.overhead import Overhead, validate_max_overhead
from repdyn.tracking.row_buffer import Existing, refresh
from repdyn.tracking.schedule import ScheduleLike, ScheduleState
from repdyn.tracking.tracked_run import TrackedRun
from repdyn.tracking.training_state import Scalar
from repdyn.utils.addresses import is_url
from repdyn.utils.distributed import Ranks

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger


class Tracker:
    """Measures every layer's anisotropy and intrinsic dimension at scheduled steps of any training loop.

        with Tracker(model, probe, schedule=100, store="runs/mine") as tracker:
            for batch in batches:
                ...
                optimizer.step()
                tracker.step(loss=loss)

    It measures on entering (step 0), at the scheduled steps and on leaving (the end), and changes nothing in the
    training. On leaving, figures are written beside the store and a summary is printed; after an error or Ctrl-C the
    log names the commands that make them. In a job of several processes all of them do the same; they share the
    probe and the layers among them.

    Args:
        model: what is trained, as it is called: bare, compiled, or wrapped by DistributedDataParallel or FSDP.
        probe: the tokens to measure on.
        schedule: as for :class:`repdyn.callbacks.RepresentationDynamics`; with "checkpoints", call :meth:`measure`
            where you save one.
        metrics, layers, probe_loss, forward, token_positions, tokens_per_forward: as for :func:`repdyn.measure`.
        store: folder for the rows, or the URL of a remote store, to which they are uploaded in the background.
        on_error: "warn" logs a failing measurement once and lets the training go on; "raise" stops it.
        start: optimizer steps taken before, in a resumed training: its store is continued, and stored steps are not
            measured again.
        tokens_seen: tokens consumed before, in a resumed training.
        run: name of the run in the rows; by default the name of the store's folder.
        loggers: Lightning's loggers, which work without Lightning's Trainer; ``WandbLogger(experiment=wandb.run)``
            joins a W&B run that is open already.
        log_layers: as for :class:`repdyn.callbacks.RepresentationDynamics`.
        alerts, report: as for :class:`repdyn.callbacks.RepresentationDynamics`; the loop itself must check
            :attr:`should_stop`.
        existing: what to do where the store has a run of this name and ``start`` is 0: "refuse" raises an error,
            "continue" starts at its last step, "replace" sets it aside in the folder ``abandoned`` of the run, and
            "number" calls the new one "NAME-2".
        max_overhead: largest share of the training's time that tracking may take, 0.02 for 2 %: scheduled steps without
            time for a measurement are left out, except the first and the last; None for no limit.
        n_steps: optimizer steps of the whole training, if known: the forecast of what measurements cost is then of it.

    Raises:
        TypeError: the model is no ``nn.Module``, or the probe no :class:`repdyn.Probe`.
        ValueError: at once, where the configuration cannot work: an unknown metric, unidentifiable blocks. On entering,
            where the store holds another run of this name.
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
        log_layers: LogLayers = "default",
        probe_loss: bool = False,
        forward: Forward | None = None,
        token_positions: TokenPositions | None = None,
        tokens_per_forward: int = 8192,
        alerts: RulesLike = DEFAULT,
        report: bool = True,
        existing: Existing = "refuse",
        max_overhead: float | None = None,
        n_steps: int | None = None,
    ) -> None:
        check_model(model)
        config = MeasurementConfig(
            probe=probe,
            metrics=metrics,
            layers=layers,
            forward=forward,
            token_positions=token_positions,
            tokens_per_forward=tokens_per_forward,
            on_error=on_error,
            log_layers=log_layers,
            probe_loss=probe_loss,
        )
        if start < 0:
            raise ValueError(f"expected start >= 0, the optimizer steps taken before, got {start}")
        if existing not in get_args(Existing):
            raise ValueError(f"expected existing to be one of {', '.join(get_args(Existing))}, got {existing!r}")
        if n_steps is not None and n_steps < 1:
            raise ValueError(f"expected n_steps >= 1, the optimizer steps of the whole training, got {n_steps}")
        validate_max_overhead(max_overhead)
        self._is_started = False
        self._n_steps = n_steps
        self._root_module = model
        self._model = unwrapped(model)
        find_blocks(self._model, layers)
        self._schedule = ScheduleState(schedule)
        self._now = start
        self._tokens_seen: int | None = tokens_seen
        self._scalars: dict[str, Scalar] = {}
        self._store = open_store(store, refresh=False)
        given_loggers = tuple(loggers)
        self._tracked = TrackedRun(
            config=config,
            run=run or (self._store.path if is_url(store) else Path(store)).resolve().name,
            store=self._store,
            loggers=lambda: given_loggers,
            rules=resolve_rules(alerts),
            report=report,
            existing=existing,
            overhead=Overhead(max_overhead),
        )

    @property
    def store(self) -> Store:
        """The store that the rows are written to."""
        return self._store

    @property
    def now(self) -> int:
        """Optimizer steps taken."""
        return self._now

    @property
    def should_stop(self) -> bool:
        """Return whether an alert whose rule has ``stop=True`` was raised; the same in all processes."""
        return self._tracked.should_stop

    def start(self) -> Tracker:
        """Start as ``with`` does on entering, for a loop that a ``with`` statement does not fit around.

        :meth:`finish` must be called at the end; after an error or Ctrl-C what was measured is in the store without it.
        """
        return self.__enter__()

    def finish(self) -> None:
        """Finish as ``with`` does on leaving: measure the last step, draw figures and print a summary."""
        self._require_started("finish")
        self.__exit__(None, None, None)

    def __enter__(self) -> Tracker:
        if self._is_started:
            raise RuntimeError("expected a tracker that is not started, got one that is already; call start() once")
        ranks = Ranks.of_job()
        continued = self._tracked.existing == "continue"
        if continued and self._now == 0:
            self._now, self._tokens_seen = ranks.on_rank_zero(self._last_stored)
        resumed = continued or self._now > 0
        self._tracked.begin(ranks, self._schedule.schedule, resumed, self._model, self._root_module)
        self._tracked.start(self._now, self._schedule.schedule, self._n_steps)
        self._is_started = True
        try:
            if self._schedule.start(self._now):
                self._measure()
        except BaseException:
            self._interrupt()
            raise
        return self

    def step(
        self,
        *,
        loss: Scalar = None,
        tokens: int | None = None,
        learning_rate: Scalar = None,
        validation_loss: Scalar = None,
    ) -> None:
        """Count an optimizer step, and measure if it is scheduled.

        Args:
            loss: the training loss, stored with the measurement.
            tokens: training tokens the step has consumed, over all processes. Omitted once, their sum is unknown.
            learning_rate: the current one, stored with the measurement: ``optimizer.param_groups[0]["lr"]``.
            validation_loss: that of a validation at or since the step before; stored with the next measurement.

        Raises:
            RuntimeError: the tracker is not started, or finished.
        """
        self._require_started("step")
        self._now += 1
        self._tokens_seen = None if tokens is None or self._tokens_seen is None else self._tokens_seen + tokens
        # without the graph of a loss, which would keep the activations of the step in memory
        loss = loss.detach() if isinstance(loss, Tensor) else loss
        self._scalars |= {LOSS: loss, LEARNING_RATE: learning_rate}
        if validation_loss is not None:
            self._scalars[VALIDATION_LOSS] = validation_loss
        self._tracked.overhead.count_step(self._now, self._schedule.schedule, self._n_steps)
        if self._schedule.advance(self._now):
            if self._tracked.overhead.allows(self._now):
                self._measure()
            else:
                self._schedule.release()

    def measure(self) -> None:
        """Measure now, whatever the schedule, unless this step has been measured.

        Raises:
            RuntimeError: the tracker is not started, or finished.
        """
        self._require_started("measure")
        if self._schedule.claim(self._now):
            self._measure()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_started:  # finished inside the block
            return
        try:
            if kind is None:
                self.measure()
        except BaseException:
            self._interrupt()
            raise
        if kind is None:
            self._is_started = False
            self._tracked.finish()
        else:
            self._interrupt()

    def _require_started(self, method: str) -> None:
        """Raise RuntimeError where a run has not begun, of which the store may hold one of the same name."""
        if not self._is_started:
            raise RuntimeError(
                f"expected a started tracker for {method}(), got one that is not started or has finished; call start() "
                "or use with"
            )

    def _last_stored(self) -> tuple[int, int | None]:
        """Return the last step of the run in the store and the tokens seen until then; both 0 where it has none."""
        run = self._tracked.run
        refresh(self._store)
        if not (steps := self._store.steps(run)):
            return 0, 0
        rows = self._store.to_pandas(run, columns=["step", "tokens_seen"])
        tokens = rows.loc[rows["step"] == steps[-1], "tokens_seen"].dropna()
        return steps[-1], None if tokens.empty else int(tokens.max())

    def _interrupt(self) -> None:
        """Leave the views to a command: whoever saves a checkpoint on an error must not wait for them."""
        self._is_started = False
        self._tracked.flush()
        self._tracked.name_commands()

    def _measure(self) -> None:
        self._tracked.measure(
            self._model,
            self._now,
            tokens_seen=self._tokens_seen,
            scalars=self._scalars,
            root_module=self._root_module,
        )
        self._scalars.pop(VALIDATION_LOSS, None)
