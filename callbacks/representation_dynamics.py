"""The tracker for Lightning, which measures the geometry of a model's layers during training."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from repdyn.callbacks.held_out import begun_with_taken_probe, of_lightning, probe_of_run
from repdyn.callbacks.scheduled import (
    LightningModule,
    ScheduledCallback,
    Trainer,
    run_folder,
    run_name,
    tracked_module,
)
from repdyn.capture.blocks import LayerPatterns
from repdyn.capture.wrappers import is_a
from repdyn.measurement.measure import check_probe
from repdyn.metrics import DEFAULT_METRICS, Metric
from repdyn.probe import Probe
from repdyn.store import Store, store_at
from repdyn.store.schema import LEARNING_RATE, LOSS, Checkpoint
from repdyn.tracking.budget import known_steps
from repdyn.tracking.options import TrackingArguments, TrackingOptions
from repdyn.tracking.origin import Origin
from repdyn.tracking.scalars import add_tokens
from repdyn.tracking.schedule import Schedule, ScheduleLike
from repdyn.tracking.training import TrackedTraining
from repdyn.tracking.weights import (
    Weights,
    learning_rate_of,
    weights_of,
    weights_of_optimizers,
)
from repdyn.utils.files import absolute_place
from repdyn.utils.mistyped import options_of

VALIDATION_LOSSES = (
    "val/loss",
    "val_loss",
    "validation/loss",
    "validation_loss",
    "valid_loss",
    "eval_loss",
)
"""Names under which a LightningModule may log its validation loss; the first that is logged is
stored.
"""


_OF_LIGHTNING = ("log", "log_dict")
"""Methods of the LightningModule that Lightning sets on each callback at the start of a fit: bound
methods, so that a callback which is kept would keep the module.
"""


class RepresentationDynamics(ScheduledCallback):
    """Measure every layer's anisotropy and intrinsic dimension at scheduled steps of a training
    run.

    The callback does not affect the training: losses, weights, RNG state and each module's
    train/eval flag are bit for bit those of a run without it. Rows are written to the store first,
    then to every logger of the trainer. The last values are in ``trainer.callback_metrics`` as
    ``anisotropy/mean``, ``two_nn/layer_03`` and so on, for ``ModelCheckpoint(monitor=...)`` and
    ``EarlyStopping``. At the end (and on Ctrl-C or an error, once the checkpoint callbacks have
    saved) figures are saved next to the rows and a summary is printed; after SIGTERM the log names
    the commands for that.

    Each training is a run of its own in the store. One that goes on from a checkpoint has the
    checkpoint's run as its parent, and views show both as one curve. Averaged weights
    (``WeightAveraging``, ``StochasticWeightAveraging``, an ``AveragedModel`` in the module,
    schedule-free optimizers) are a second run, "NAME (averaged)".

    Args:
        probe: the probe to measure on. By default that of the datamodule's method ``probe()``, or
            else one that is taken from the validation data, or from the training data if there are
            none: 512 windows at most, which are read without a trace in the training. A line says
            what was taken; a training that goes on has the probe of its run.
        schedule: a number of steps, a list of steps, "pythia" (0, 1, 2, 4 ... 512, then every
            1000), "checkpoints" (whenever the trainer saves one), or a :class:`repdyn.Schedule`.
            Step 0 and the end are always measured.
        metrics, layers: as for :func:`repdyn.measure`.
        store: folder of the store, or a URL such as ``s3://bucket/prefix``; by default ``repdyn``
            in the run's folder, or the store of the checkpoint that a training goes on from, if
            that is in the trainer's root folder.
        model: attribute of the LightningModule that holds the model; by default the only Hugging
            Face model in it, or else the LightningModule itself.
        name: distinguishes several trackers of one trainer: a suffix of the run's name and a prefix
            of the names in the loggers ("teacher_anisotropy/layer_00").
        options: as in :class:`repdyn.tracking.options.TrackingArguments`; the run is called by the
            first logger's name and version unless ``run`` is given.

    Raises:
        ValueError: at the start of training, if the configuration is invalid.
    """

    def __init__(
        self,
        probe: Probe | None = None,
        schedule: ScheduleLike = "pythia",
        metrics: str | Sequence[str | Metric] = DEFAULT_METRICS,
        layers: LayerPatterns = None,
        store: str | Path | None = None,
        *,
        model: str | None = None,
        name: str = "",
        **options: Unpack[TrackingArguments],
    ) -> None:
        super().__init__(schedule)
        if probe is not None:
            check_probe(probe)
        self.options = options_of(
            TrackingOptions, type(self), metrics=metrics, layers=layers, **options
        )
        self.probe: Probe | None = probe
        self.model = model
        self.name = name
        self._requested_store = None if store is None else absolute_place(store)
        self._tracked: TrackedTraining | None = None
        """The training that is tracked, or was last; a callback may serve several in turn."""
        self._tokens_seen: int | Tensor | None = None
        self._loss: Tensor | None = None
        self._restored: dict[str, Any] | None = None

    def __repr__(self) -> str:
        """Return what is measured, and where its rows go once a training has begun."""
        where = f", store {self.store.location!r}" if self.store is not None else ""
        return (
            f"{type(self).__name__}({', '.join(map(str, self.options.metrics))}; "
            f"{self._schedule.schedule!r}{where})"
        )

    @property
    def store(self) -> Store | None:
        """Return the store of the current run; None before training starts and under
        ``fast_dev_run``.
        """
        return self._tracked.store if self._tracked else None

    @property
    def tracking_seconds(self) -> float:
        """Wall-clock time this process has spent on measuring, storing and logging in the current
        run.
        """
        return self._tracked.cost.seconds if self._tracked else 0.0

    @property
    def state_key(self) -> str:
        return self._generate_state_key(name=self.name)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy for another trial takes over: the configuration, but no training."""
        state = {**self.__dict__, "_tracked": None, "_restored": None, "_is_training": False}
        return {name: value for name, value in state.items() if name not in _OF_LIGHTNING}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if stage == "fit":
            self._restored = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_fit_start(trainer, pl_module)
        if is_a(trainer.strategy, "DeepSpeedStrategy"):
            raise ValueError(
                "expected a strategy that can run the model outside of the training step, got "
                "DeepSpeedStrategy; use DDP or FSDP, or save checkpoints during training and "
                "measure them afterwards with analyze_checkpoints.py"
            )
        self._require_name_of_its_own(trainer)
        make_probe: Any = getattr(getattr(trainer, "datamodule", None), "probe", None)
        if self.probe is None and callable(make_probe):
            self.probe = make_probe()
        if self._schedule.schedule == Schedule(at_checkpoints=True):
            self._require_no_monitor(trainer)

    def _require_name_of_its_own(self, trainer: Trainer) -> None:
        """Raise ValueError where another tracker of the trainer has the same name."""
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        names = [
            callback.name for callback in callbacks if isinstance(callback, RepresentationDynamics)
        ]
        if names.count(self.name) > 1:
            which = f"several called {self.name!r}" if self.name else "several without one"
            raise ValueError(
                f"expected trackers of different names in one trainer, got {which}; name all but "
                'one, as in RepresentationDynamics(probe, name="second")'
            )

    def _require_no_monitor(self, trainer: Trainer) -> None:
        """Raise ValueError where a ModelCheckpoint decides by a value that is measured only when it
        saves.
        """
        monitors = [getattr(callback, "monitor", None) for callback in trainer.checkpoint_callbacks]
        monitored = self.options.read_by(monitors)
        if monitored:
            raise ValueError(
                f"expected scheduled steps where a ModelCheckpoint monitors {monitored[0]!r}, "
                'which schedule="checkpoints" measures only after it was read; write schedule=N, '
                "with every_n_train_steps=N"
            )

    def begin(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # all ranks call it, since it broadcasts the folder; a call on the first alone would hang
        folder = run_folder(trainer)
        state = self._state_before(trainer)
        origin = Origin.of(state)
        store = self._requested_store
        if origin is not None:
            folders = [trainer.default_root_dir, *(logger.save_dir for logger in trainer.loggers)]
            store = store or origin.store_in(Path(folder) for folder in folders if folder)
            origin = origin.near(trainer.ckpt_path)
        name = self.options.run or run_name(trainer)
        opened = store_at(store or folder / "repdyn", refresh=False)
        begin = partial(
            TrackedTraining,
            self.options,
            name=f"{name}.{self.name}" if self.name else name,
            store=None if trainer.fast_dev_run else opened,
            model=tracked_module(pl_module, self.model),
            step=self.step,
            schedule=self._schedule.schedule,
            root_module=trainer.strategy.model,
            n_steps=known_steps(trainer.estimated_stepping_batches),
            origin=origin,
            loggers=lambda: trainer.loggers,
            label=self.name,
            settings=_settings(trainer, pl_module),
            monitors=_monitors(trainer),
        )
        probe = self.probe or probe_of_run(origin, opened)
        if probe is None:
            tracked = self._begun_with_taken_probe(begin, trainer, pl_module)
        else:
            tracked = begin(probe=probe)
        self._tracked = tracked
        self._schedule.has_time = tracked.cost.allows
        # unknown where a training goes on from a checkpoint that does not tell
        self._tokens_seen = state.get("tokens_seen") if self.step else 0
        self._loss = None
        self._learning_rate = learning_rate_of(trainer.optimizers)
        self._has_acted = False
        self._is_finished = False

    def _state_before(self, trainer: Trainer) -> dict[str, Any]:
        """Return the state that the training goes on from; an empty one where it begins anew.

        It is that of the checkpoint which the trainer has loaded. Without one, a second ``fit`` of
        the same trainer goes on from the first.
        """
        if trainer.ckpt_path is not None:
            return self._restored or {}
        return self._state() if self.step else {}

    def _begun_with_taken_probe(
        self, begin: Callable[..., TrackedTraining], trainer: Trainer, pl_module: LightningModule
    ) -> TrackedTraining:
        """Begin the tracking on a probe of the trainer's own data."""
        owners = (getattr(trainer, "datamodule", None), pl_module)
        tokenizers = (getattr(owner, "tokenizer", None) for owner in owners)
        return begun_with_taken_probe(
            lambda probe: begin(probe=probe),
            of_lightning(trainer),
            tracked_module(pl_module, self.model),
            next((tokenizer for tokenizer in tokenizers if callable(tokenizer)), None),
            tracker=type(self).__name__,
            calls_it=self.options.forward is None,
            is_silent=not trainer.is_global_zero,
        )

    def count(self, trainer: Trainer, batch: Any) -> None:
        self._tokens_seen = add_tokens(self._tokens_seen, batch, trainer.world_size)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        # Lightning has divided this loss by the number of batches in a step
        n_batches = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
        self._loss = loss * n_batches if isinstance(loss, Tensor) else None
        # read now: a step that waits for the module's own hooks is measured after a scheduler has
        # set the learning rate of the next one
        self._learning_rate = learning_rate_of(trainer.optimizers)
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def close(self) -> None:
        if self._tracked is not None:
            self._tracked.count_step(self.step)

    def is_monitored(self, trainer: Trainer) -> bool:
        return bool(self.options.read_by(_monitors(trainer)))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # not in the sanity check before the training, nor in trainer.validate()
        if self._tracked is not None and self._is_training:
            logged = trainer.callback_metrics
            self._tracked.validation_loss = next(
                (logged[name] for name in VALIDATION_LOSSES if name in logged), None
            )

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._tracked is not None and not self._is_finished:
            self._is_finished = True
            self._tracked.finish()
            self._release_module()

    def _release_module(self) -> None:
        """Drop all references to the module: a user keeps a callback for its store, and must not
        keep a model in memory by it.
        """
        for name in _OF_LIGHTNING:
            self.__dict__.pop(name, None)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        tracked = self._tracked
        if not self._is_training or tracked is None:
            return
        progress = trainer.fit_loop.epoch_loop.batch_progress.current
        # a step that waits is measured now, except on several ranks, of which perhaps only this one
        # has failed, and within a hook of the module, which may have changed half of the weights
        if trainer.world_size == 1 and progress.completed == progress.processed:
            with tracked.notices.errors(self.step, never_raise=True):
                self.settle(trainer, pl_module)
        tracked.store_waiting_rows()

    def interrupted(self, exception: BaseException) -> None:
        """Draw what was measured before an exception; after SIGTERM, which leaves no time, only log
        the commands that draw it.
        """
        if not self._is_training or self._tracked is None:
            return
        self._is_training = False
        self._is_finished = True
        if is_a(exception, "SIGTERMException"):
            self._tracked.end_without_views()
            self._tracked.release()
        else:
            self._tracked.finish(interrupted=True)
        self._release_module()

    def act(self, trainer: Trainer, pl_module: LightningModule) -> None:
        tracked = self._tracked
        assert tracked is not None, "acts from begin() on"
        # a single measurement is enough; after SIGTERM the trainer saves next
        if not ((trainer.fast_dev_run and self._has_acted) or trainer.received_sigterm):
            self._has_acted = True
            module = tracked_module(pl_module, self.model)
            trained, averaged = weights_of_optimizers(module, trainer.optimizers)
            tokens = None if self._tokens_seen is None else int(self._tokens_seen)
            tracked.measure(
                module,
                Checkpoint(step=self.step, trainer_step=trainer.global_step, tokens_seen=tokens),
                {LOSS: self._loss, LEARNING_RATE: self._learning_rate},
                weights=trained,
                averaged=averaged or next(_averages(trainer, pl_module, module), None),
                optimizers=trainer.optimizers,
            )
        values, stops = tracked.shared()
        trainer.callback_metrics.update(
            {name: torch.tensor(value) for name, value in values.items()}
        )
        means = {name: values.get(f"{tracked.prefix}{name}/mean") for name in DEFAULT_METRICS}
        shown = {
            f"{tracked.prefix}{name}": mean for name, mean in means.items() if mean is not None
        }
        # Rich's bar breaks its line where the values do not fit: two more make three lines of it
        if not is_a(trainer.progress_bar_callback, "RichProgressBar"):
            trainer.progress_bar_metrics.update(shown)
        trainer.should_stop |= stops

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        super().on_save_checkpoint(trainer, pl_module, checkpoint)
        # not by state_dict(): Lightning compares the states' keys before any hook, and its error on
        # two trackers of one name does not say what to do
        if state := self._state():
            checkpoint.setdefault("callbacks", {})[self.state_key] = state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._restored = state_dict

    def _state(self) -> dict[str, Any]:
        """Return the run and where it is, in built-in types only: a checkpoint is loaded with
        weights_only=True.
        """
        if self._tracked is None or (self._restored is not None and not self._is_training):
            return self._restored or {}
        tokens = self._tokens_seen
        return {**self._tracked.state(), "tokens_seen": None if tokens is None else int(tokens)}


def _monitors(trainer: Trainer) -> list[Any]:
    """Return the names that the callbacks of a trainer decide by."""
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    return [getattr(callback, "monitor", None) for callback in callbacks]


def _settings(trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
    """Return the hyperparameters of a training, its trainer's settings, and those that its
    optimizers began with.
    """
    names = (
        "max_epochs",
        "max_steps",
        "accumulate_grad_batches",
        "gradient_clip_val",
        "precision",
        "world_size",
    )
    settings = {
        "seed": os.environ.get("PL_GLOBAL_SEED"),
        **{name: getattr(trainer, name) for name in names},
    }
    for number, optimizer in enumerate(trainer.optimizers):
        kind = f"{type(optimizer).__name__}{number or ''}"
        defaults = getattr(optimizer, "defaults", {})
        settings |= {f"{kind}.{name}": value for name, value in defaults.items()}
    # the module's own hyperparameters come last: of equal names, hers count
    for module in (getattr(trainer, "datamodule", None), pl_module):
        settings |= getattr(module, "hparams_initial", {})
    return settings


def _averages(trainer: Trainer, pl_module: LightningModule, model: nn.Module) -> Iterator[Weights]:
    """Yield the averaged weights of a model that callbacks or the LightningModule hold."""
    yield from _averages_of_callbacks(trainer, pl_module, model)
    yield from _averages_in_module(pl_module, model)


def _averages_of_callbacks(
    trainer: Trainer, pl_module: LightningModule, model: nn.Module
) -> Iterator[Weights]:
    """Yield the weights that WeightAveraging and StochasticWeightAveraging have averaged.

    Both average the whole LightningModule, of which the model may be a part.
    """
    name_of_model = next(
        (name for name, module in pl_module.named_modules() if module is model), ""
    )
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        average = getattr(callback, "_average_model", None)
        n_averaged = getattr(average, "n_averaged", getattr(callback, "n_averaged", None))
        if isinstance(average, nn.Module) and n_averaged is not None and int(n_averaged):
            root = average.module if isinstance(average, AveragedModel) else average
            # by its name: the average is a copy, with other modules
            yield weights_of(root.get_submodule(name_of_model))


def _averages_in_module(pl_module: LightningModule, model: nn.Module) -> Iterator[Weights]:
    """Yield the weights of each AveragedModel that the LightningModule holds of the model, or of a
    part of it: of a module of the same class whose weights have the same names and shapes.
    """
    for holder in pl_module.modules():
        if not isinstance(holder, AveragedModel) or not int(holder.n_averaged):
            continue
        average = holder.module
        weights = weights_of(average)
        for prefix, submodule in model.named_modules():
            if submodule is not average and _is_same_architecture(submodule, average):
                yield {f"{prefix}.{name}".lstrip("."): weight for name, weight in weights.items()}


def _is_same_architecture(module: nn.Module, other: nn.Module) -> bool:
    """Return whether two modules are of the same class and their weights have the same names and
    shapes.
    """
    if type(module) is not type(other):
        return False
    shapes, others = (
        {name: weight.shape for name, weight in weights_of(either).items()}
        for either in (module, other)
    )
    return shapes == others
