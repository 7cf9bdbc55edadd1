"""The tracker for a custom training loop."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Unpack

from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from repdyn.capture.blocks import LayerPatterns, find_blocks
from repdyn.capture.wrappers import unwrapped
from repdyn.measurement.measure import check_model, check_probe
from repdyn.metrics import DEFAULT_METRICS, MetricLike
from repdyn.probe import Probe
from repdyn.store import Store, store_at
from repdyn.store.schema import LEARNING_RATE, LOSS, VALIDATION_LOSS, Checkpoint
from repdyn.tracking.options import TrackingArguments, TrackingOptions
from repdyn.tracking.origin import Origin
from repdyn.tracking.scalars import Scalar
from repdyn.tracking.schedule import ScheduleLike, ScheduleState
from repdyn.tracking.training import TrackedTraining
from repdyn.tracking.weights import weights_of
from repdyn.utils.files import absolute_place
from repdyn.utils.mistyped import options_of
from repdyn.utils.printing import warn

log = logging.getLogger(__name__)


class Tracker:
    """Measures every layer's anisotropy and intrinsic dimension at scheduled steps of any training
    loop.

        with Tracker(model, probe, schedule=100, store="runs/mine") as tracker:
            for batch in batches:
                ...
                optimizer.step()
                tracker.step(loss=loss)

    It measures on entering (step 0), at the scheduled steps and on leaving (the end), and changes
    nothing in the training. On leaving, figures are written beside the store and a summary is
    printed; after an error or Ctrl-C the log names the commands that make them. In a job of several
    processes it may be on all of them, or on the first.

    Each start is a run of its own in the store. A training that goes on passes the state that was
    saved with its checkpoint, ``Tracker(..., resume=checkpoint["tracker"])`` of
    ``tracker.state_dict()``, or its first step, ``Tracker(..., start=5000)``: then it goes on from
    the newest run of this name that has come so far.

    Args:
        model: what is trained, as it is called: bare, compiled, or wrapped by
            DistributedDataParallel or FSDP.
        probe: the tokens to measure on.
        schedule: as for :class:`repdyn.callbacks.RepresentationDynamics`; with "checkpoints", call
            :meth:`measure` where you save one.
        metrics, layers: as for :func:`repdyn.measure`.
        store: folder for the rows, by default ``repdyn``, or the URL of a remote store, to which
            they are uploaded in the background.
        start: optimizer steps taken before, in a resumed training.
        tokens_seen: tokens consumed before, in a resumed training; unknown unless given.
        resume: what :meth:`state_dict` returned when the checkpoint was saved that the training
            goes on from.
        averaged: a module of the same structure with averaged weights, such as an
            ``AveragedModel``, whose values are a second run, "NAME (averaged)".
        loggers: runs of W&B or Trackio (``[wandb.run]``), writers of TensorBoard
            (``[SummaryWriter("runs")]``), or any of Lightning's loggers, which work without its
            Trainer.
        n_steps: optimizer steps of the whole training, if known: the forecast of what measurements
            cost is then of it.
        options: as in :class:`repdyn.tracking.options.TrackingArguments`; the run is called by the
            name of the store's folder unless ``run`` is given; the loop itself must check
            :attr:`should_stop`.

    Raises:
        TypeError: the model is no ``nn.Module``, or the probe no :class:`repdyn.Probe`.
        ValueError: the configuration cannot work: an unknown metric, unidentifiable blocks.
    """

    def __init__(
        self,
        model: nn.Module,
        probe: Probe,
        schedule: ScheduleLike = "pythia",
        metrics: str | Sequence[MetricLike] = DEFAULT_METRICS,
        layers: LayerPatterns = None,
        store: str | Path | None = None,
        *,
        start: int = 0,
        tokens_seen: int | None = None,
        resume: Mapping[str, Any] | None = None,
        averaged: nn.Module | None = None,
        loggers: Iterable[Any] = (),
        n_steps: int | None = None,
        **options: Unpack[TrackingArguments],
    ) -> None:
        check_model(model)
        check_probe(probe)
        settings = options_of(
            TrackingOptions, type(self), metrics=metrics, layers=layers, **options
        )
        state = _resumed_state(resume)
        # what the checkpoint remembers counts more than what the script says each time
        start = int(state.get("step", start))
        _check_steps(start, n_steps)
        self._is_started = False
        self._n_steps = n_steps
        self._root_module: nn.Module | None = model
        self._model: nn.Module | None = unwrapped(model)
        average = averaged.module if isinstance(averaged, AveragedModel) else averaged
        self._averaged = None if average is None else unwrapped(average)
        if self._averaged is not None:
            _check_same_parameters(self._model, self._averaged)
        # raises where they cannot be told: here, before a training has taken hours
        find_blocks(self._model, layers)
        self._schedule = ScheduleState(schedule)
        self._start = start
        self.now = start
        """Optimizer steps taken."""
        # of a training that goes on, the count of tokens is unknown unless it is given
        default = tokens_seen if start else tokens_seen or 0
        self._tokens_seen: int | None = state.get("tokens_seen", default)
        self._scalars: dict[str, Scalar] = {}
        self._origin = Origin.of(state)
        place = absolute_place("repdyn" if store is None else store)
        self.store: Store = store_at(place, refresh=False)
        """The store that the rows are written to."""
        self._name = settings.run or self.store.path.resolve().name
        self._options = settings
        self._probe = probe
        self._loggers = tuple(loggers)
        settings.check_loggers(self._loggers)
        self._tracked: TrackedTraining | None = None
        self._released: tuple[weakref.ref[nn.Module] | None, ...] | None = None
        """Weak references to the modules of a tracker that has finished, for another start: model,
        root module and averaged module."""

    @property
    def should_stop(self) -> bool:
        """Return whether an alert whose rule has ``stop=True`` was raised.

        On several ranks with a whole model each, the first alone knows: let it tell the others at
        each step, by ``stop = [tracker.should_stop];
        torch.distributed.broadcast_object_list(stop)``, so that all stop at the same step.
        """
        return self._tracked is not None and self._tracked.should_stop

    def __repr__(self) -> str:
        """Return what is measured, where its rows go and how far it is, in a line."""
        state = "started" if self._is_started else "not started"
        return (
            f"Tracker({self._name!r}: {type(self._model).__name__}, {self._schedule.schedule!r}, "
            f"store {self.store.location!r}, step {self.now}, {state})"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy takes over, as one of the object that holds the tracker: the
        configuration, but no run.
        """
        # a copy begins a run of its own
        return {**self.__dict__, "_tracked": None, "_is_started": False, "_released": None}

    def state_dict(self) -> dict[str, Any]:
        """Return what to save with a checkpoint, of built-in types, for ``Tracker(...,
        resume=...)``.
        """
        run = self._tracked.state() if self._tracked else {}
        tokens = self._tokens_seen
        return {**run, "step": self.now, "tokens_seen": None if tokens is None else int(tokens)}

    def start(self) -> Tracker:
        """Start as ``with`` does on entering, for a loop that a ``with`` statement does not fit
        around.

        :meth:`finish` must be called at the end; after an error or Ctrl-C what was measured is in
        the store without it.
        """
        return self.__enter__()

    def finish(self) -> None:
        """Finish as ``with`` does on leaving: measure the last step, draw figures and print a
        summary.
        """
        self._require_started("finish")
        self.__exit__(None, None, None)

    def __enter__(self) -> Tracker:
        if self._is_started:
            raise RuntimeError(
                "expected a tracker that is not started, got one that is already; call start() once"
            )
        self._take_back_models()
        assert self._model is not None, "it was taken back"
        # a training that begins in the middle goes on from some run, even if its script did not
        # save which
        if self._origin is None and self.now > 0:
            self._origin = self._newest_run()
        tracked = TrackedTraining(
            self._options,
            probe=self._probe,
            name=self._name,
            store=self.store,
            model=self._model,
            step=self.now,
            schedule=self._schedule.schedule,
            root_module=self._root_module,
            n_steps=self._n_steps,
            origin=self._origin,
            loggers=lambda: self._loggers,
        )
        self._tracked = tracked
        self._schedule.has_time = tracked.cost.allows
        self._is_started = True
        # __exit__ is not called for what __enter__ raises
        try:
            if self._schedule.is_due(self.now, "start"):
                self._measure(tracked)
        except BaseException:
            self._interrupt(tracked)
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
            tokens: training tokens the step has consumed, over all processes. Omitted once, their
                sum is unknown.
            learning_rate: the current one, stored with the measurement:
                ``optimizer.param_groups[0]["lr"]``.
            validation_loss: that of a validation at or since the step before; stored with the next
                measurement.

        Raises:
            RuntimeError: the tracker is not started, or finished.
        """
        tracked = self._require_started("step")
        self.now += 1
        # for good: a sum that lacks one step is wrong
        if tokens is None or self._tokens_seen is None:
            self._tokens_seen = None
        else:
            self._tokens_seen += tokens
        # without the graph of a loss, which would keep the activations of the step in memory
        loss = loss.detach() if isinstance(loss, Tensor) else loss
        self._scalars |= {LOSS: loss, LEARNING_RATE: learning_rate}
        # it stays until a measurement takes it: a validation is rarer than a step
        if validation_loss is not None:
            self._scalars[VALIDATION_LOSS] = validation_loss
        if self._schedule.is_due(self.now):
            self._measure(tracked)
        tracked.count_step(self.now)

    def measure(self) -> None:
        """Measure now, whatever the schedule, unless this step has been measured.

        Raises:
            RuntimeError: the tracker is not started, or finished.
        """
        tracked = self._require_started("measure")
        if self._schedule.is_due(self.now, "end"):
            self._measure(tracked)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        tracked = self._tracked
        if not self._is_started or tracked is None:  # finished inside the block
            return
        # the end is measured, unless an error has ended the block
        try:
            if kind is None:
                self.measure()
        except BaseException:
            self._interrupt(tracked)
            raise
        if kind is not None:
            self._interrupt(tracked)
            return
        self._is_started = False
        if self.now == self._start and tracked.is_measuring:
            text = f"only step {self.now} is measured: tracker.step() was never called"
            warn(log, f"{text}; call it after each optimizer.step()")
        try:
            tracked.finish()
        finally:
            self._release_models()

    def _release_models(self) -> None:
        """Drop all references to the modules: a user keeps a tracker for its store, and must not
        keep a model in memory by it.
        """
        modules = (self._model, self._root_module, self._averaged)
        self._released = tuple(
            None if module is None else weakref.ref(module) for module in modules
        )
        self._model = None
        self._root_module = None
        self._averaged = None
        self._scalars = {}

    def _take_back_models(self) -> None:
        """Take the modules back for another start; RuntimeError where they are gone."""
        if self._model is not None:
            return
        references = self._released or ()
        modules = [None if reference is None else reference() for reference in references]
        if not modules or modules[0] is None or modules[1] is None:
            raise RuntimeError(
                "expected a tracker whose model is there, got one that has finished and let it go; "
                "make another Tracker(model, probe)"
            )
        self._model, self._root_module, self._averaged = modules

    def _require_started(self, method: str) -> TrackedTraining:
        """Return what tracks the training; RuntimeError before it has begun and after its end."""
        if not self._is_started or self._tracked is None:
            raise RuntimeError(
                f"expected a started tracker for {method}(), got one that is not started or has "
                "finished; call start() or use with"
            )
        return self._tracked

    def _newest_run(self) -> Origin | None:
        """Return the newest run of this name that has measured a step up to the first one of this
        training, if any.
        """
        # a remote store that does not answer is mentioned where the run begins
        with suppress(OSError):
            self.store.refresh()
        # by name, since nothing else is known of it; of those that had come so far, the newest
        paths = [path for path in self.store.paths() if path.run.name == self._name]
        so_far = [path for path in paths if any(step <= self.now for step in path.steps())]
        newest = max(so_far, key=lambda path: path.run.started, default=None)
        return None if newest is None else Origin(newest.run.id)

    def _interrupt(self, tracked: TrackedTraining) -> None:
        """Leave the views to a command: whoever saves a checkpoint on an error must not wait for
        them.
        """
        self._is_started = False
        tracked.store_waiting_rows()
        tracked.end_without_views()
        tracked.release()
        self._release_models()

    def _measure(self, tracked: TrackedTraining) -> None:
        assert self._model is not None, "called between start and finish"
        tracked.measure(
            self._model,
            Checkpoint(step=self.now, tokens_seen=self._tokens_seen),
            self._scalars,
            averaged=None if self._averaged is None else weights_of(self._averaged),
        )
        # step() has got all losses of this step: none comes later
        tracked.close_step()
        # unlike the training loss, it is not that of every step
        self._scalars.pop(VALIDATION_LOSS, None)


def _resumed_state(resume: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what a checkpoint remembers of its tracker; nothing without a checkpoint."""
    if not isinstance(resume, Mapping | None):
        raise TypeError(
            f"expected resume= to be what state_dict() returned, got {type(resume).__name__}; "
            "load the checkpoint that it was saved with"
        )
    return dict(resume or {})


def _check_steps(start: int, n_steps: int | None) -> None:
    """Raise ValueError where a training cannot have these numbers of steps."""
    if start < 0:
        raise ValueError(f"expected start >= 0, the optimizer steps taken before, got {start}")
    if n_steps is not None and n_steps < 1:
        raise ValueError(
            f"expected n_steps >= 1, the optimizer steps of the whole training, got {n_steps}"
        )


def _check_same_parameters(model: nn.Module, averaged: nn.Module) -> None:
    """Raise ValueError where the averaged module lacks a parameter of the model."""
    of_model = [name for name, _ in model.named_parameters()]
    of_average = {name for name, _ in averaged.named_parameters()}
    missing = [name for name in of_model if name not in of_average]
    if missing:
        raise ValueError(
            "expected averaged= to be a module of the same structure as the model, got one "
            f"without {len(missing)} of its {len(of_model)} parameters, as {missing[0]}; give a "
            "copy of the model"
        )
