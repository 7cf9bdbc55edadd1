"""Loggers: what each kind of logger shows of a run.

A :class:`Target` is a logger as everything that is logged from here sees it. The base class is any
logger of Lightning, which takes values alone; the others add what their service shows: images,
charts, pages, alerts. :func:`target_of` finds the one for a logger, by the names of its classes, so
that no service has to be installed.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

from repdyn.probe.design import DISTINCT
from repdyn.utils.attempts import attempts
from repdyn.utils.files import safe_file_name
from repdyn.views.tables.style import subset_title

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger
    from matplotlib.figure import Figure

    from repdyn.views.judging import RunInsights

STEP_KEY = "repdyn/step"
"""The x axis of everything logged to W&B from here."""
TOKENS_KEY = "repdyn/tokens"
"""Training tokens seen, for use as the x axis."""
Place: TypeAlias = Literal["config", "summary"]
"""Where a logger shows what is known of a whole run."""

# names already defined in each W&B run: defining one again adds a record to the run's file
_defined: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
# keys of each TensorBoard writer that its layout shows
_laid_out: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


_WITHOUT_REPEATS = {f"_{subset}": subset_title(subset) for subset in DISTINCT}
"""What the section of a metric on types or on distinct inputs has more in its name than that on all
tokens, and the name of its line in a chart of both."""
ALL_VECTORS = "all vectors"
"""Name of the line of all tokens in such a chart."""


def _sections_without_repeats(section: str, whole: Mapping[str, Sequence[float]]) -> dict[str, str]:
    """Return the sections of the same metric without repeats that have as many layers, each with
    the name of its line."""
    return {
        section + end: title
        for end, title in _WITHOUT_REPEATS.items()
        if len(whole.get(section + end, ())) == len(whole[section])
    }


class Target:
    """Any of Lightning's loggers: it takes values, and nothing else is sent."""

    takes_pages = False
    """Whether it shows a page of HTML."""
    takes_charts = False
    """Whether it shows a chart of several lines."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def log_values(self, values: Mapping[str, float], step: int) -> None:
        self._logger.log_metrics(dict(values), step=step)

    def log_alerts(self, lines: Sequence[str], step: int) -> None:
        """Show alerts as text."""

    def log_images(self, figures: Mapping[str, Figure], step: int) -> None:
        """Show figures as images, which are left open; an error in one does not affect the
        others.
        """
        with attempts() as attempt:
            for name, figure in figures.items():
                with attempt():
                    self.log_image(name, figure, step)

    def log_image(self, name: str, figure: Figure, step: int) -> None:
        """Show a figure as an image."""

    def log_lines(
        self, name: str, x: str, at: Sequence[int], lines: Mapping[str, Sequence[float]], step: int
    ) -> None:
        """Show a chart of several lines over one axis, which is called ``x``, with values ``at``
        these places.
        """

    def log_page(self, page: Path, name: str, step: int) -> None:
        """Show a page of HTML."""

    def log_config(self, values: Mapping[str, Any], section: Place = "config") -> None:
        """Add what is known of the whole run to its configuration, or to its summary."""


class WandbTarget(Target):
    """Weights & Biases."""

    takes_pages = True
    takes_charts = True

    def log_values(self, values: Mapping[str, float], step: int) -> None:
        # no step=: W&B silently drops a row whose step is less than its own counter
        self.log_media(values, step)
        profiles: defaultdict[str, dict[int, float]] = defaultdict(dict)
        for name, value in values.items():
            section, _, layer = name.partition("/layer_")
            if layer.isdecimal():
                profiles[section][int(layer)] = value
        whole = {
            section: [profile[layer] for layer in sorted(profile)]
            for section, profile in profiles.items()
            if len(profile) == 1 + max(profile)  # every layer is logged
        }
        beside = {section: _sections_without_repeats(section, whole) for section in whole}
        in_charts_of_others = {name for names in beside.values() for name in names}
        for section, profile in whole.items():
            if section in in_charts_of_others:
                continue
            lines = {ALL_VECTORS if beside[section] else section: profile}
            lines |= {title: whole[name] for name, title in beside[section].items()}
            self.log_lines(f"{section}_over_depth", "layer", range(len(profile)), lines, step)

    def log_lines(
        self, name: str, x: str, at: Sequence[int], lines: Mapping[str, Sequence[float]], step: int
    ) -> None:
        # an optional dependency, present wherever a WandbLogger is
        from wandb.plot import (
            line_series,
        )

        # browsers read no NaN
        values = [
            [None if math.isnan(value) else value for value in line] for line in lines.values()
        ]
        chart = line_series(list(at), values, list(lines), name, x)
        # W&B stores its table under this path
        self.log_media({f"charts/{name.replace('/', '_')}": chart}, step)

    def log_alerts(self, lines: Sequence[str], step: int) -> None:
        more = f" and {len(lines) - 1} more" if len(lines) > 1 else ""
        title = f"{lines[0].partition(': ')[0]}{more}"
        # W&B sends one alert per title and minute: the step makes each title unique
        self._logger.experiment.alert(title=title, text="\n".join(lines), level="WARN")

    def log_images(self, figures: Mapping[str, Figure], step: int) -> None:
        # W&B compares figures with pyplot, and does not import it
        import matplotlib.pyplot  # noqa: F401
        import wandb  # an optional dependency, present wherever a run of it is

        images = {}
        with attempts() as attempt:
            for name, figure in figures.items():
                with attempt():
                    images[name] = wandb.Image(figure)
            self.log_media(images, step)

    def log_page(self, page: Path, name: str, step: int) -> None:
        import wandb

        self.log_media({name: wandb.Html(page.read_text(encoding="utf-8"), inject=False)}, step)

    def log_media(self, media: Mapping[str, Any], step: int) -> None:
        """Log values or objects of W&B, such as images and tables, on the axis of steps."""
        if not media:
            return
        run = self._logger.experiment
        # W&B takes an asterisk for a pattern of names
        named = {name.replace("*", "-"): value for name, value in media.items()}
        defined = _defined.setdefault(run, set())
        if not defined:
            run.define_metric(STEP_KEY)
        for name in (name for name in named if name not in defined):
            # only an exact name overrides the "*" that WandbLogger defines; a dot would lead into a
            # nested value
            run.define_metric(name.replace(".", "\\."), step_metric=STEP_KEY)
        defined.update(named)
        run.log({STEP_KEY: step, **named})

    def log_config(self, values: Mapping[str, Any], section: Place = "config") -> None:
        may_change = {"allow_val_change": True} if section == "config" else {}
        getattr(self._logger.experiment, section).update(dict(values), **may_change)


class TensorBoardTarget(Target):
    """TensorBoard: values also have a layout for the tab Custom Scalars."""

    def log_values(self, values: Mapping[str, float], step: int) -> None:
        super().log_values(values, step)
        writer = self._logger.experiment
        shown = _laid_out.setdefault(writer, set())
        if not values.keys() <= shown:
            shown.update(values)
            # TensorBoard shows the last layout of a run, so that it must hold the keys of earlier
            # ones
            writer.add_custom_scalars(layout_of(shown))

    def log_alerts(self, lines: Sequence[str], step: int) -> None:
        self._logger.experiment.add_text("alerts", "  \n".join(lines), global_step=step)

    def log_image(self, name: str, figure: Figure, step: int) -> None:
        self._logger.experiment.add_figure(name, figure, global_step=step, close=False)

    def log_config(self, values: Mapping[str, Any], section: Place = "config") -> None:
        # as text: its hyperparameters are written once, by the training
        self._logger.experiment.add_text(f"repdyn/{section}", _listed(values))


class MLflowTarget(Target):
    """MLflow: images, pages and alerts are artifacts."""

    takes_pages = True

    def log_values(self, values: Mapping[str, float], step: int) -> None:
        # brackets of a metric's settings are not allowed in its names
        named = {
            re.sub(r"[^\w/. -]", "-", name, flags=re.ASCII): value for name, value in values.items()
        }
        super().log_values(named, step)

    def log_alerts(self, lines: Sequence[str], step: int) -> None:
        self._logger.experiment.log_text(
            self._logger.run_id, "\n".join(lines), f"alerts/step_{step:08d}.txt"
        )

    def log_image(self, name: str, figure: Figure, step: int) -> None:
        self._logger.experiment.log_figure(
            self._logger.run_id, figure, f"{name}/step_{step:08d}.png"
        )

    def log_page(self, page: Path, name: str, step: int) -> None:
        text = page.read_text(encoding="utf-8")
        self._logger.experiment.log_text(self._logger.run_id, text, f"{name}.html")

    def log_config(self, values: Mapping[str, Any], section: Place = "config") -> None:
        # an optional dependency, present wherever an MLFlowLogger is
        from mlflow.entities import (
            RunTag,
        )

        # tags, since a resumed run cannot change a parameter
        tags = [RunTag(name, str(value)) for name, value in values.items()]
        self._logger.experiment.log_batch(self._logger.run_id, tags=tags)


class TrackioTarget(Target):
    """Trackio."""

    takes_pages = True

    def log_values(self, values: Mapping[str, Any], step: int) -> None:
        # a step given to a run that another counts would move the steps at which that one logs
        at = {} if isinstance(self._logger, _Bare) else {"step": step}
        self._logger.experiment.log({STEP_KEY: step, **values}, **at)

    def log_alerts(self, lines: Sequence[str], step: int) -> None:
        self._logger.experiment.alert(
            title=lines[0].partition(": ")[0], text="\n".join(lines), step=step
        )

    def log_images(self, figures: Mapping[str, Figure], step: int) -> None:
        self.log_values(figures, step)

    def log_page(self, page: Path, name: str, step: int) -> None:
        import trackio  # an optional dependency, present wherever a run of it is

        self.log_values({name: trackio.Html(page.read_text(encoding="utf-8"), inject=False)}, step)

    def log_config(self, values: Mapping[str, Any], section: Place = "config") -> None:
        import trackio

        # as text: Trackio keeps the configuration that a run has at its first values
        self._logger.experiment.log({f"repdyn/{section}": trackio.Markdown(_listed(values))})


class _Bare:
    """A run of W&B or Trackio, or a writer of TensorBoard, that is given without a logger of
    Lightning around it.
    """

    def __init__(self, experiment: Any) -> None:
        self.experiment = experiment

    def log_metrics(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self.experiment.add_scalar(name, value, step)
        self.experiment.flush()


_TARGETS: dict[str, type[Target]] = {
    "WandbLogger": WandbTarget,
    "TensorBoardLogger": TensorBoardTarget,
    "MLFlowLogger": MLflowTarget,
    "TrackioLogger": TrackioTarget,
    "wandb.Run": WandbTarget,
    "trackio.Run": TrackioTarget,
    "torch.SummaryWriter": TensorBoardTarget,
    "tensorboardX.SummaryWriter": TensorBoardTarget,
}
"""By the class: loggers of whichever of Lightning's two packages by its name, runs and writers by
package and name.
"""


def target_of(logger: Any) -> Target:
    """Return the target that a logger writes to, or that a run or a writer without a logger is."""
    for base in type(logger).__mro__:
        if kind := _TARGETS.get(base.__name__):
            return kind(logger)
        if kind := _TARGETS.get(f"{base.__module__.partition('.')[0]}.{base.__name__}"):
            return kind(_Bare(logger))
    if not callable(getattr(logger, "log_metrics", None)):
        raise TypeError(
            "expected loggers such as wandb.run, a SummaryWriter or one of Lightning's, got "
            f"{logger!r}"
        )
    return Target(logger)


def _listed(values: Mapping[str, Any]) -> str:
    """Return values as lines of Markdown; indented, so that nothing in them is taken for markup."""
    return "\n".join(f"    {name}: {value}" for name, value in values.items())


def layout_of(keys: Collection[str]) -> dict[str, dict[str, list[Any]]]:
    """Return a category for each metric and subset of the logged values, as
    ``SummaryWriter.add_custom_scalars`` takes it: a chart of its layers, and one of mean, minimum
    and maximum; where a metric has a section without repeats too, a chart of both means.

    >>> charts = layout_of(["two_nn/layer_00", "two_nn/mean", "train/loss"])["two_nn"]
    >>> charts["two_nn: layers"]
    ['Multiline', ['^two_nn/layer_\\\\d+$']]
    >>> charts["two_nn: mean, min, max"]
    ['Multiline', ['^two_nn/(mean|min|max)$']]
    """
    layout = {}
    for section in dict.fromkeys(
        key.rpartition("/")[0] for key in sorted(keys) if key.endswith("/mean")
    ):
        charts = (
            {"layers": r"layer_\d+"}
            if any(key.startswith(f"{section}/layer_") for key in keys)
            else {}
        )
        charts["mean, min, max"] = "(mean|min|max)"
        beginning = f"^{re.escape(section)}/"
        layout[section] = {
            f"{section}: {title}": ["Multiline", [f"{beginning}{end}$"]]
            for title, end in charts.items()
        }
        ends = [end for end in _WITHOUT_REPEATS if f"{section}{end}/mean" in keys]
        if ends:
            both = f"^{re.escape(section)}({'|'.join(ends)})?/mean$"
            title = f"{section}: mean with and without repeats"
            layout[section][title] = ["Multiline", [both]]
    return layout


def each_target(loggers: Iterable[Logger], job: Callable[[Target], None]) -> None:
    """Call ``job(target)`` for each logger; an error in one does not affect the others, after which
    the first is raised."""
    with attempts() as attempt:
        for logger in loggers:
            with attempt():
                job(target_of(logger))


def named_figures(
    figures: Mapping[str, Figure], stack: str | None = None, prefix: str = ""
) -> dict[str, Figure]:
    """Return figures by their names in the loggers, ``figures/NAME``, or ``figures/STACK/NAME``."""
    folder = "figures" if stack is None else f"figures/{safe_file_name(stack)}"
    return {f"{folder}/{prefix}{safe_file_name(name)}": figure for name, figure in figures.items()}


def named_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return values of a configuration or a summary by their names in the loggers, which have those
    of the training,
    too: ``repdyn/``, a prefix, the name."""
    return {f"repdyn/{prefix}{name}": value for name, value in config.items()}


def log_status(
    insights: Sequence[RunInsights], loggers: Iterable[Logger], prefix: str = ""
) -> None:
    """Log the status of a run and the most important statement on it to the summary of the run:
    ``repdyn/status`` and ``repdyn/headline``, a prefix before both names, ``repdyn/decoder/status``
    in a model with several stacks."""
    summary: dict[str, str] = {}
    for statements in insights:
        stack = f"{statements.stack}/" if statements.stack else ""
        summary |= named_config(
            {"status": statements.status, "headline": statements.headline}, f"{stack}{prefix}"
        )
    each_target(loggers, lambda target: target.log_config(summary, "summary"))
