"""Run a study: its options, one model after another, tables as CSV, figures in one style, and a summary."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, TypeAlias, cast

import numpy as np
import pandas as pd
import yaml
from cyclopts import Parameter
from cyclopts.validators import Path as PathValidator
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike
from rich.text import Text
from tqdm import tqdm

from repdyn.figures.drawing import save
from repdyn.probe import Probe
from repdyn.probe.design import DENSE
from repdyn.reading import LoadedModel, load_models
from repdyn.tables.style import DIVERGING, SUBSET_COLOURS
from repdyn.text.corpus import load_corpus
from repdyn.utils.arguments import ModelOptions
from repdyn.utils.console import PrintableConsole
from repdyn.utils.files import write_atomically

Folder: TypeAlias = Annotated[Path, Parameter(alias="-o", validator=PathValidator(file_okay=False))]
"""The option of the folder for tables and figures."""
_MAX_NUMBERED = 16
"""Heads that leave room for a number in each cell."""


class Study(ABC):
    """Base class of a study: its options, its measurement of one model, and its output.

    A subclass checks its options and reads its texts in ``__init__``, before any model is loaded, measures one model at
    a time in :meth:`measure`, and combines models in :meth:`finish`.

    Args:
        options: those of its command, by name.
    """

    with_heads = False
    """Whether models are loaded with their language-modelling heads."""

    def __init__(self, options: Any) -> None:
        self.options = options

    @abstractmethod
    def measure(self, loaded: LoadedModel) -> None:
        """Measure one model, whose weights are released afterwards."""

    def finish(self) -> None:  # noqa: B027 (most studies are finished with each model)
        """Write what needs the results of all models."""

    def write(self, output: Output, subfolder: str = "") -> None:
        """Write tables and figures below the output folder, and print where they are."""
        folder = self.options.output / subfolder
        print_line(f"tables and figures: {folder} ({len(output.write(folder))} files)")


def run_study(study: type[Study], models: ModelOptions, options: Mapping[str, Any]) -> None:
    """Run a study on one model after another.

    Args:
        study: the class.
        models: how they are loaded.
        options: names of the ``models``, the folder ``output``, and what the study itself needs.
    """
    begun = study(SimpleNamespace(**{**vars(models), **options}))
    for loaded in load_models(begun.options, with_heads=begun.with_heads):
        begun.measure(loaded)
    begun.finish()


def read_phrases(path: Path | None) -> dict[str, list[str]]:
    """Read classes of words and phrases, such as names or idioms.

    Args:
        path: YAML that maps each class to a list, or CSV (``.csv``) with the columns class and phrase; None for none.
    """
    if path is None:
        return {}
    if path.suffix == ".csv":
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
        if {"class", "phrase"} <= set(table):
            return {str(name): phrases.tolist() for name, phrases in table.groupby("class", sort=False)["phrase"]}
    else:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        lists = found.values() if isinstance(found, dict) else [None]
        if all(isinstance(of, list) and all(isinstance(phrase, str) for phrase in of) for of in lists):
            return found
    raise ValueError(
        f"expected classes with lists of words or phrases, got {path}; write YAML as 'names: [Anna, New York]', with "
        "words such as 'no' in quotes, or CSV with the columns class and phrase"
    )


def text_probe(
    loaded: LoadedModel, options: Any, classes: Sequence[str], phrases: Mapping[str, Sequence[str]] | None = None
) -> Probe:
    """Return a probe of a text for a model, with classes of words and of phrases."""
    settings = {
        "sequence_length": min(options.sequence_length, loaded.context),
        "max_vectors": options.max_vectors,
        "design": DENSE,  # studies average over tokens, and take intervals from whole sequences
        "classes": classes,
        "phrases": phrases,
    }
    if options.text == "enwik8":
        return Probe.enwik8(loaded.tokenizer, **settings)
    corpus = load_corpus(options.text)
    return Probe.from_texts([corpus.data.decode(errors="replace")], loaded.tokenizer, name=corpus.name, **settings)


@dataclass(frozen=True)
class Output:
    """Tables and figures by their path in the output folder, without a suffix."""

    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)

    def write(self, folder: Path) -> list[Path]:
        """Write everything below a folder; return the files."""
        files = [folder / f"{name}.csv" for name in self.tables]
        for file, table in zip(files, self.tables.values(), strict=True):
            write_atomically(file, lambda path, rows=table: rows.to_csv(path, index=False))
        for name in self.figures:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
        return [*files, *save(self.figures, folder)]


def join_tables(tables: Mapping[Any, pd.DataFrame], *names: str) -> pd.DataFrame:
    """Concatenate tables, their keys as the first columns, of these names; empty if there is no table."""
    return pd.concat(tables, names=[*names]).reset_index([*names]).reset_index(drop=True) if tables else pd.DataFrame()


def print_title(name: str, details: str = "") -> None:
    """Print a bold title, with details behind it."""
    PrintableConsole().print(Text.assemble((name, "bold"), f"  {details}" if details else ""), soft_wrap=True)


def print_line(text: str) -> None:
    """Print a line as it is, markup included."""
    PrintableConsole().print(text, markup=False, highlight=False, soft_wrap=True)


def print_table(table: pd.DataFrame, *columns: str) -> None:
    """Print a table, or some of its columns, with four digits and empty cells for what is missing."""
    print_line(table[[*columns] or table.columns].to_string(index=False, na_rep="", float_format="{:.4g}"))


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[float], None]]:
    """Show a bar in the terminal that follows the share, in [0, 1], that it is called with."""
    with tqdm(total=1.0, desc=title, leave=False, bar_format="{desc} {percentage:3.0f}% {bar} {elapsed}") as bar:

        def progress(share: float) -> None:
            bar.update(share - bar.n)

        yield progress


def series_colour(number: int) -> str:
    """Return the colour of one of several series."""
    return SUBSET_COLOURS[number] if number < len(SUBSET_COLOURS) else f"C{number % 10}"


def layer_axis(*panels: Axes, label: str = "layer") -> None:
    """Label x axes that count layers, with ticks at whole numbers."""
    for axes in panels:
        axes.set_xlabel(label)
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))


def line_with_band(
    axes: Axes,
    x: ArrayLike,
    values: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    *,
    band_alpha: float = 0.2,
    **look: Any,
) -> None:
    """Draw a line and a band from ``low`` to ``high`` in its colour."""
    axes.fill_between(np.asarray(x), low, high, color=look["color"], alpha=band_alpha, linewidth=0)
    axes.plot(x, values, **look)


def heads_size(values: pd.DataFrame) -> tuple[float, float]:
    """Return the size of a figure with a cell for each layer (rows) and head (columns)."""
    return min(11.0, 2.5 + 0.6 * values.shape[1]), 1.8 + 0.4 * len(values)


def draw_heads(axes: Axes, values: pd.DataFrame, is_bold: pd.DataFrame, label: str) -> None:
    """Draw a signed value of each layer (rows) and head (columns) as a colour, and as a number where there is room."""
    limit = float(np.nanmax(np.abs(values))) or 1.0
    image = axes.imshow(values, cmap=DIVERGING, vmin=-limit, vmax=limit, aspect="auto", origin="lower")
    axes.get_figure().colorbar(image, ax=axes, label=label)  # type: ignore[union-attr]
    axes.grid(False)
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_yticks(range(len(values)), values.index)
    if values.shape[1] <= _MAX_NUMBERED:
        for (row, column), value in np.ndenumerate(values.to_numpy()):
            weight = "bold" if is_bold.iloc[row, column] else "normal"
            look = {"fontsize": 7, "color": "white" if abs(value) > 0.6 * limit else "black", "weight": weight}
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", **look)


def stem(name: str, stack: str | None) -> str:
    """Return the name of a figure or table, with that of the stack in a model of several."""
    return name if stack is None else f"{name}_{stack}"


def select(table: pd.DataFrame, **values: object) -> pd.DataFrame:
    """Return the rows of a table with the given values in the given columns; None stands for a missing value."""
    for column, value in values.items():
        chosen = table[column].isna() if value is None else table[column] == value
        table = cast(pd.DataFrame, table.loc[chosen])
    return table
