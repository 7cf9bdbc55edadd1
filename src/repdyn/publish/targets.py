"""What each kind of logger can show, and how it is sent there."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec
from weakref import WeakKeyDictionary

from repdyn.utils.attempts import Attempt

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger
    from matplotlib.figure import Figure


STEP_KEY = "repdyn/step"
"""The x axis of everything logged to W&B from here."""
MLFLOW_BATCH = 1000
"""Largest number of metrics that MLflow takes at once."""
MLFLOW_TAG = 5000
"""Largest number of characters in a tag of MLflow."""

# names already defined in each W&B run: defining one again adds a record to the run's file
_defined: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
# keys of each TensorBoard writer that its layout shows
_laid_out: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


class Target:
    """Any of Lightning's loggers: it takes values, and nothing else is sent."""

    takes_images = False
    takes_pages = False
    """Whether it shows a page of HTML."""

    def __init__(self, logger: Logger) -> None:
        self._logger: Any = logger

    def log_values(self, values: Mapping[str, float], step: int) -> None:
        self._logger.log_metrics(dict(values), step=step)

    def log_alerts(self, lines: Sequence[str], step: int) -> None:
        """Show alerts as text."""

    def log_images(self, figures: Mapping[str, Figure], step: int, attempt: Attempt) -> None:
        """Show figures as images; they are left open."""

    def log_page(self, page: Path, name: str, step: int) -> None:
        """Show a page of HTML."""

    def log_config(self, config: Mapping[str, Any]) -> None:
        """Add what is known of the run to its configuration."""

    def log_summary(self, summary: Mapping[str, str]) -> None:
        """Show texts about the whole run."""


class WandbTarget(Target):
    """Weights & Biases."""

    takes_images = takes_pages = True

    def log_values(self, values: Mapping[str, float], step: int) -> None:
        # no step=: W&B silently drops a row whose step is less than its own counter
        self.log_media(values, step)

    def log_alerts(self, lines: Sequence[str], step: int) -> None:
        more = f" and {len(lines) - 1} more" if len(lines) > 1 else ""
        title = f"{lines[0].partition(': ')[0]}{more}"
        # W&B sends one alert per title and minute: the step makes each title unique
        self._logger.experiment.alert(title=title, text="\n".join(lines), level="WARN")

    def log_images(self, figures: Mapping[str, Figure], step: int, attempt: Attempt) -> None:
        import wandb  # an optional dependency, present wherever a WandbLogger is

        images = {}
        for name, figure in figures.items():
            with attempt():
                images[name] = wandb.Image(figure)
        self.log_media(images, step)

    def log_page(self, page: Path, name: str, step: int) -> None:
        import wandb

        self.log_media({name: wandb.Html(page.read_text(encoding="utf-8"), inject=False)}, step)

    def log_media(self, media: Mapping[str, Any], step: int) -> None:
        """Log values or objects of W&B, such as images and tables, on the axis of steps."""
        if media:
            run = self._logger.experiment
            # W&B takes an asterisk for a pattern of names
            named = {name.replace("*", "-"): value for name, value in media.items()}
            _define(run, named)
            run.log({STEP_KEY: step, **named})

    def log_config(self, config: Mapping[str, Any]) -> None:
        self._logger.experiment.config.update(dict(config), allow_val_change=True)

    def log_summary(self, summary: Mapping[str, str]) -> None:
        self._logger.experiment.summary.update(dict(summary))


class TensorBoardTarget(Target):
    """TensorBoard: values also have a layout for the tab Custom Scalars."""

    takes_images = True

    def log_values(self, values: Mapping[str, float], step: int) -> None:
        super().log_values(values, step)
        writer = self._logger.experiment
        shown = _laid_out.setdefault(writer, set())
        if not values.keys() <= shown:
            shown |= values.keys()
            # TensorBoard shows the last layout of a run, so that it must hold the keys of earlier ones
            writer.add_custom_scalars(layout_of(shown))

    def log_alerts(self, lines: Sequence[str], step: int) -> None:
        self._logger.experiment.add_text("alerts", "  \n".join(lines), global_step=step)

    def log_images(self, figures: Mapping[str, Figure], step: int, attempt: Attempt) -> None:
        for name, figure in figures.items():
            with attempt():
                self._logger.experiment.add_figure(name, figure, global_step=step, close=False)

    def log_config(self, config: Mapping[str, Any]) -> None:
        # as text: its hyperparameters are written once, by the training
        self._logger.experiment.add_text("repdyn/config", _listed(config))

    def log_summary(self, summary: Mapping[str, str]) -> None:
        self._logger.experiment.add_text("repdyn/summary", _listed(summary))


class MLflowTarget(Target):
    """MLflow: images, pages and alerts are artifacts."""

    takes_images = takes_pages = True

    def log_values(self, values: Mapping[str, float], step: int) -> None:
        # brackets of a metric's settings are not allowed in its names
        items = [(re.sub(r"[^\w/. -]", "-", name, flags=re.ASCII), value) for name, value in values.items()]
        for start in range(0, len(items), MLFLOW_BATCH):
            self._logger.log_metrics(dict(items[start : start + MLFLOW_BATCH]), step=step)

    def log_alerts(self, lines: Sequence[str], step: int) -> None:
        self._logger.experiment.log_text(self._logger.run_id, "\n".join(lines), f"alerts/step_{step:08d}.txt")

    def log_images(self, figures: Mapping[str, Figure], step: int, attempt: Attempt) -> None:
        for name, figure in figures.items():
            with attempt():
                self._logger.experiment.log_figure(self._logger.run_id, figure, f"{name}/step_{step:08d}.png")

    def log_page(self, page: Path, name: str, step: int) -> None:
        text = page.read_text(encoding="utf-8")
        self._logger.experiment.log_text(self._logger.run_id, text, f"{name}.html")

    def log_config(self, config: Mapping[str, Any]) -> None:
        from mlflow.entities import RunTag  # an optional dependency, present wherever an MLFlowLogger is

        # tags, since a resumed run cannot change a parameter
        tags = [RunTag(name, str(value)[:MLFLOW_TAG]) for name, value in config.items()]
        self._logger.experiment.log_batch(self._logger.run_id, tags=tags)

    def log_summary(self, summary: Mapping[str, str]) -> None:
        self.log_config(summary)


_TARGETS: dict[str, type[Target]] = {
    "WandbLogger": WandbTarget,
    "TensorBoardLogger": TensorBoardTarget,
    "MLFlowLogger": MLflowTarget,
}


def target_of(logger: Logger) -> Target:
    """Return the target that a logger writes to."""
    lightning: Any = sys.modules.get("lightning.pytorch.loggers")  # not imported here: it takes longer than torch
    kinds = _TARGETS.items() if lightning is not None else ()
    return next((kind for name, kind in kinds if isinstance(logger, getattr(lightning, name))), Target)(logger)


def _define(run: Any, names: Iterable[str]) -> None:
    """Put each name on the axis of steps; only an exact name overrides the "*" that WandbLogger defines.

    A dot that is not escaped would lead into a nested value.
    """
    defined = _defined.setdefault(run, set())
    if not defined:
        run.define_metric(STEP_KEY)
    for name in names:
        if name not in defined:
            run.define_metric(name.replace(".", "\\."), step_metric=STEP_KEY)
            defined.add(name)


def _listed(values: Mapping[str, Any]) -> str:
    """Return values as lines of Markdown; indented, so that nothing in them is taken for markup."""
    return "\n".join(f"    {name}: {value}" for name, value in values.items())


Layout = dict[str, dict[str, list[str | list[str]]]]
"""Chart type and keys by category and title, as ``SummaryWriter.add_custom_scalars`` takes it."""


def layout_of(keys: Collection[str]) -> Layout:
    """Return a category for each metric and token subset: a chart of its layers, and one of mean, minimum and maximum.

    Args:
        keys: names of logged values, as :func:`repdyn.publish.keys.logged_values` makes them; others are left out.

    >>> layout_of(["two_nn/layer_00", "two_nn/mean", "train/loss"])
    {'two_nn': {'two_nn: layers': ['Multiline', ['^two_nn/layer_\\\\d+$']], 'two_nn: mean, min, max': \
['Multiline', ['^two_nn/(mean|min|max)$']]}}
    """
    layout: Layout = {}
    for section in dict.fromkeys(key.rpartition("/")[0] for key in sorted(keys) if key.endswith("/mean")):
        patterns = {"layers": r"layer_\d+", "mean, min, max": "(mean|min|max)"}
        charts = {
            title: f"^{re.escape(section)}/{pattern}$"
            for title, pattern in patterns.items()
            if any(re.fullmatch(f"{re.escape(section)}/{pattern}", key) for key in keys)
        }
        layout[section] = {f"{section}: {title}": ["Multiline", [tag]] for title, tag in charts.items()}
    return layout


P = ParamSpec("P")


def rank_zero_only(function: Callable[P, None]) -> Callable[P, None]:
    """Return a function that does nothing on the ranks on which Lightning's ``rank_zero_only`` does nothing.

    Without Lightning imported there is none of its loggers either, and callers alone determine the rank.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        lightning: Any = sys.modules.get("lightning_utilities.core.rank_zero")
        if not getattr(getattr(lightning, "rank_zero_only", None), "rank", None):
            function(*args, **kwargs)

    return call
