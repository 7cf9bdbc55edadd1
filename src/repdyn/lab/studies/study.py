"""Run a study: its options, one model after another, tables as CSV, figures in one style, and a
summary.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, TypeAlias, cast

import pandas as pd
from cyclopts import Parameter
from cyclopts.validators import Path as PathValidator
from matplotlib.figure import Figure
from rich.text import Text

from repdyn.activations import LoadedModel, count_blocks, load_models
from repdyn.probe import Probe
from repdyn.probe.corpus import load_corpus
from repdyn.probe.design import DENSE
from repdyn.store import find_store
from repdyn.utils.arguments import ModelOptions
from repdyn.utils.console import PrintableConsole
from repdyn.utils.files import write_atomically
from repdyn.utils.records import read_yaml
from repdyn.views.charts.on_matplotlib import save
from repdyn.views.tables.frames import by_stack
from repdyn.views.tables.runs import select as select_runs
from repdyn.views.tables.style import of_stack, styled

Folder: TypeAlias = Annotated[
    Path,
    Parameter(
        alias="-o", validator=PathValidator(file_okay=False), help="Folder for tables and figures."
    ),
]


class Study(ABC):
    """Base class of a study, which checks its options and reads its texts in ``__init__``, before
    any model is loaded, measures one stack of one model at a time in :meth:`measure`, and combines
    models in :meth:`finish`."""

    with_heads = False
    """Whether models are loaded with their language-modelling heads."""
    tables: dict[str, pd.DataFrame]
    """To be written, by their path in the output folder, without a suffix."""
    figures: dict[str, Figure]
    """As the tables."""

    def __init__(self, options: Any) -> None:
        self.options = options
        self.tables = {}
        self.figures = {}

    def measure_model(self, loaded: LoadedModel) -> None:
        """Measure one model, whose weights are released afterwards: each stack of its blocks by
        itself.
        """
        for one in each_stack(loaded):
            self.measure(one)

    @abstractmethod
    def measure(self, loaded: LoadedModel) -> None:
        """Measure one stack of the blocks of a model; nothing is read of the layers of another."""

    def finish(self) -> None:  # noqa: B027 (most studies are finished with each model)
        """Write what needs the results of all models."""

    def add(self, name: str, table: pd.DataFrame, *columns: str) -> None:
        """Add a table to the output, and print it, or some of its columns."""
        self.tables[name] = table
        show(table, *columns)

    def stored_runs(self) -> Iterator[tuple[str, str, pd.DataFrame]]:
        """Yield title, hash of the probe and rows of each stack of each run of the option
        ``store``.
        """
        for (run, probe), of_run in select_runs(
            find_store(self.options.store), self.options.run
        ).items():
            for stack, rows in by_stack(of_run).items():
                yield of_stack(run, stack), probe, rows

    def write(self, subfolder: str = "") -> None:
        """Write the tables and figures so far below the output folder, print where they are, and
        begin with none.
        """
        folder = self.options.output / subfolder
        files = [folder / f"{name}.csv" for name in self.tables]
        for file, table in zip(files, self.tables.values(), strict=True):
            write_atomically(file, lambda path, rows=table: rows.to_csv(path, index=False))
        for name in self.figures:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
        files += save(self.figures, folder)
        show(f"tables and figures: {folder} ({len(files)} files)")
        self.tables = {}
        self.figures = {}


@styled
def run_study(study: type[Study], models: ModelOptions, options: Mapping[str, Any]) -> None:
    """Run a study with the ``options`` of its command, ``output`` and ``models`` among them, on one
    model at a time.
    """
    if not options["models"] and not options.get("store"):
        raise ValueError("expected a model or --store RUN, got neither; see --help")
    if options.get("run") and not options.get("store"):
        raise ValueError(
            "expected --run with --store, got it alone; name the store that holds the run"
        )
    begun = study(SimpleNamespace(**{**vars(models), **options}))
    for loaded in load_models(begun.options, with_heads=begun.with_heads):
        begun.measure_model(loaded)
    begun.finish()


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
            table = pd.read_csv(path, dtype=str, keep_default_na=False)[[*columns]]
        else:
            groups = (
                json.loads(path.read_text(encoding="utf-8"))
                if path.suffix == ".json"
                else read_yaml(path)
            )
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
    options: Any,
    classes: Sequence[str],
    phrases: Mapping[str, Sequence[str]] | None = None,
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
    return Probe.from_texts([corpus.text], loaded.tokenizer, name=corpus.name, **settings)


def join_tables(tables: Mapping[Any, pd.DataFrame], *names: str) -> pd.DataFrame:
    """Concatenate tables, their keys as the first columns, of these names; empty if there is no
    table.
    """
    return (
        pd.concat(tables, names=[*names]).reset_index([*names]).reset_index(drop=True)
        if tables
        else pd.DataFrame()
    )


def show_title(name: str, details: str = "") -> None:
    """Print a bold title, with details behind it."""
    PrintableConsole().print(
        Text.assemble((name, "bold"), f"  {details}" if details else ""), soft_wrap=True
    )


def show(table: str | pd.DataFrame, *columns: str) -> None:
    """Print a line as it is, or a table, or some of its columns, with four digits, and nothing for
    what is missing.
    """
    if isinstance(table, pd.DataFrame):
        chosen = table[[*columns]] if columns else table
        table = chosen.to_string(index=False, na_rep="", float_format="{:.4g}")
    PrintableConsole().print(table, markup=False, highlight=False, soft_wrap=True)


def select(table: pd.DataFrame, **values: object) -> pd.DataFrame:
    """Return the rows of a table with the given values in the given columns; None stands for a
    missing value.
    """
    for column, value in values.items():
        chosen = table[column].isna() if value is None else table[column] == value
        table = cast(pd.DataFrame, table.loc[chosen])
    return table
