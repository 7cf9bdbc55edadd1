"""Run a study on one model after another: tables, figures in one style, and a summary."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeAlias, cast

import pandas as pd
from matplotlib.figure import Figure
from rich.text import Text

from repdyn.activations import LoadedModel, count_blocks, load_models
from repdyn.lab.studies.result import StudyResult
from repdyn.probe import Probe
from repdyn.probe.corpus import load_corpus
from repdyn.probe.design import DENSE
from repdyn.store import find_store
from repdyn.utils.arguments import ModelOptions
from repdyn.utils.records import read_yaml
from repdyn.views.tables.frames import by_stack
from repdyn.views.tables.runs import select as select_runs
from repdyn.views.tables.style import of_stack, styled

Subjects: TypeAlias = str | Path | LoadedModel | Sequence[str | Path] | Sequence[LoadedModel]
"""Models to study: their names, as ``repdyn study`` takes them, or loaded ones; one or several."""


class Follower(Protocol):
    """Sees what a study finds while it runs, as the command does, which prints and writes it."""

    def line(self, line: Text) -> None:
        """Take a line, or a table, of the summary."""

    def result(self, subfolder: str, result: StudyResult) -> None:
        """Take what is complete, to be saved below a subfolder."""


_FOLLOWER: ContextVar[Follower | None] = ContextVar("follower", default=None)


@contextmanager
def followed_by(follower: Follower) -> Iterator[None]:
    """Have a follower see what the studies inside find."""
    token = _FOLLOWER.set(follower)
    try:
        yield
    finally:
        _FOLLOWER.reset(token)


class Study(ABC):
    """Base class of a study, which checks its options and reads its texts in ``__init__``, before
    any model is loaded, measures one stack of one model at a time in :meth:`measure`, and combines
    models in :meth:`finish`."""

    with_heads = False
    """Whether models are loaded with their language-modelling heads."""
    tables: dict[str, pd.DataFrame]
    """Of the current part of the results, by their path in its folder, without a suffix."""
    figures: dict[str, Figure]
    """As the tables."""

    def __init__(self) -> None:
        self.tables = {}
        self.figures = {}
        self._lines: list[str] = []
        self._all_tables: dict[str, pd.DataFrame] = {}
        self._all_figures: dict[str, Figure] = {}

    def measure_model(self, loaded: LoadedModel) -> None:
        """Measure one model, whose weights are released afterwards: each stack of its blocks by
        itself.
        """
        for stack in each_stack(loaded):
            self.measure(stack)

    @abstractmethod
    def measure(self, loaded: LoadedModel) -> None:
        """Measure one stack of the blocks of a model; nothing is read of the layers of another."""

    def finish(self) -> None:  # noqa: B027 (most studies are finished with each model)
        """Complete what needs the results of all models."""

    def add(self, name: str, table: pd.DataFrame, *columns: str) -> None:
        """Add a table to the results, and it, or some of its columns, to the summary."""
        self.tables[name] = table
        self.show(table, *columns)

    def show(self, table: str | pd.DataFrame, *columns: str) -> None:
        """Add a line as it is to the summary, or a table, or some of its columns, with four digits,
        and nothing for what is missing.
        """
        if isinstance(table, pd.DataFrame):
            chosen = table[[*columns]] if columns else table
            table = chosen.to_string(index=False, na_rep="", float_format="{:.4g}")
        # as text and not as markup, in which a token such as [MASK] would vanish
        self._say(Text(table))

    def show_title(self, name: str, details: str = "") -> None:
        """Add a bold title to the summary, with details behind it."""
        self._say(Text.assemble((name, "bold"), f"  {details}" if details else ""))

    def _say(self, line: Text) -> None:
        self._lines.append(line.plain)
        if follower := _FOLLOWER.get():
            follower.line(line)

    def complete(self, subfolder: str = "") -> None:
        """Close the current part of the results, which is saved in a subfolder, and begin the next
        one.
        """
        prefix = f"{subfolder}/" if subfolder else ""
        if follower := _FOLLOWER.get():
            # what is written need not be kept: figures of many models take memory
            follower.result(subfolder, StudyResult(self.tables, self.figures, ""))
        else:
            self._all_tables |= {prefix + name: table for name, table in self.tables.items()}
            self._all_figures |= {prefix + name: drawn for name, drawn in self.figures.items()}
        self.tables = {}
        self.figures = {}

    @styled
    def run(self, models: Subjects, loading: ModelOptions) -> StudyResult:
        """Measure one model after another, and return what was found."""
        for loaded in _loaded(models, loading, with_heads=self.with_heads):
            self.measure_model(loaded)
        self.finish()
        return StudyResult(self._all_tables, self._all_figures, "\n".join(self._lines))


def named(models: Subjects) -> list[str] | list[LoadedModel]:
    """Return one or several models as a list.

    Raises:
        ValueError: names and loaded models together.
    """
    subjects = [models] if isinstance(models, str | Path | LoadedModel) else list(models)
    loaded = [model for model in subjects if isinstance(model, LoadedModel)]
    if loaded and len(loaded) < len(subjects):
        raise ValueError(
            "expected names of models, or loaded models, got both; load all of them with "
            "repdyn.load_model"
        )
    return loaded or [str(model) for model in subjects]


def require_subjects(models: Subjects, store: object = None, run: object = None) -> None:
    """Raise ValueError where there is neither a model nor a store to study, or a run of none."""
    if not named(models) and not store:
        raise ValueError("expected a model, or store=, got neither")
    if run and not store:
        raise ValueError(
            "expected run= with store=, got it alone; name the store that holds the run"
        )


def _loaded(models: Subjects, loading: ModelOptions, *, with_heads: bool) -> Iterator[LoadedModel]:
    """Yield models one at a time; the weights of those that are loaded here are released."""
    names: list[str] = []
    for model in named(models):
        if isinstance(model, LoadedModel):
            yield model
        else:
            names.append(model)
    if names:
        yield from load_models(names, with_heads=with_heads, **vars(loading))


def stored_runs(
    store: str | Path, runs: Sequence[str] | None
) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Yield title, hash of the probe and rows of each stack of each run of a store, or of some."""
    for (run, probe), of_run in select_runs(find_store(store), runs).items():
        for stack, rows in by_stack(of_run).items():
            yield of_stack(run, stack), probe, rows


def each_stack(loaded: LoadedModel) -> list[LoadedModel]:
    """Return a model once for each stack of its blocks, with its name, of whose layers alone
    functions then tell.
    """
    return [
        replace(loaded, name=of_stack(loaded.name, stack), stack=stack)
        for stack in count_blocks(loaded)
    ]


def read_groups(path: Path, *columns: str) -> pd.DataFrame:
    """Read groups of texts, such as phrases of classes, or changed sentences of kinds: columns
    group and texts.

    The file is CSV, or JSON or YAML that lists the texts of each group, or lists of them.
    """
    try:
        if path.suffix.lower() == ".csv":
            # words such as "null" and "NA" are words here, not missing values
            table = pd.read_csv(path, dtype=str, keep_default_na=False)[[*columns]]
        else:
            groups = (
                json.loads(path.read_text(encoding="utf-8"))
                if path.suffix == ".json"
                else read_yaml(path)
            )
            # a text would be taken apart into its characters
            if any(isinstance(items, str) for items in groups.values()):
                raise TypeError("a text in place of a list of them")
            rows = [
                [name, *(it if isinstance(it, list) else [it])]
                for name, items in groups.items()
                for it in items
            ]
            table = pd.DataFrame(rows, columns=[*columns], dtype=object)
        if not all(
            isinstance(text, str) and text.strip() for name in columns[1:] for text in table[name]
        ):
            raise TypeError("a text is empty, or a word such as 'no' is not in quotes")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"expected {path} to be CSV with the columns {', '.join(columns)}, or JSON or YAML "
            f"that lists the texts of each {columns[0]}: {error}; see --help"
        ) from error
    return pd.DataFrame(table)


def text_probe(
    loaded: LoadedModel,
    text: str,
    *,
    sequence_length: int,
    max_vectors: int,
    classes: Sequence[str] = (),
    phrases: Mapping[str, Sequence[str]] | None = None,
) -> Probe:
    """Return a probe of a text for a model, with classes of words and of phrases."""
    settings = {
        "sequence_length": min(sequence_length, loaded.context),
        "max_vectors": max_vectors,
        "design": DENSE,  # studies average over tokens, and take intervals from whole sequences
        "classes": classes,
        "phrases": phrases,
    }
    if text == "enwik8":
        return Probe.enwik8(loaded.tokenizer, **settings)
    corpus = load_corpus(text)
    return Probe.from_texts([corpus.text], loaded.tokenizer, name=corpus.name, **settings)


def select(table: pd.DataFrame, **values: object) -> pd.DataFrame:
    """Return the rows of a table with the given values in the given columns; None stands for a
    missing value.
    """
    for column, value in values.items():
        chosen = table[column].isna() if value is None else table[column] == value
        table = cast(pd.DataFrame, table.loc[chosen])
    return table
