"""Run a study: load one model after another, and write tables, figures and a summary."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, TypeAlias

from cyclopts import Parameter
from cyclopts.validators import Path as PathValidator

from repdyn.probe import Probe
from repdyn.probe.design import DENSE
from repdyn.studies.models import LoadedModel, load_models
from repdyn.studies.output import Output, print_line
from repdyn.text.source import load_corpus
from repdyn.utils.arguments import ModelOptions

Folder: TypeAlias = Annotated[Path, Parameter(alias="-o", validator=PathValidator(file_okay=False))]
"""The option of the folder for tables and figures."""


class Study(ABC):
    """Base class of a study: its options, its measurement of one model, and its output.

    A subclass checks its options and reads its texts in ``__init__``, before any model is loaded, measures one model at
    a time in :meth:`measure`, and combines models in :meth:`finish`.

    Args:
        options: those of its command, by name.

    Raises:
        ValueError: options that contradict each other, or a text that cannot be used.
        OSError: a file that cannot be read.
    """

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


def run(study: type[Study], models: ModelOptions, options: Mapping[str, Any]) -> None:
    """Run a study on one model after another.

    Args:
        study: the class.
        models: how they are loaded.
        options: names of the ``models``, the folder ``output``, and what the study itself needs.

    Raises:
        ValueError, OSError: an invalid option, or a text that cannot be used.
        CheckpointError: a model that cannot be downloaded, loaded or run.
    """
    begun = study(SimpleNamespace(**{**vars(models), **options}))
    for loaded in load_models(begun.options):
        begun.measure(loaded)
    begun.finish()


def text_probe(loaded: LoadedModel, options: Any, classes: Sequence[str]) -> Probe:
    """Return a probe of a text for a model.

    Args:
        loaded: the model, whose context limits the length of the sequences.
        options: text, sequence_length, max_vectors; as on the command line.
        classes: word classes of its tokens.

    Raises:
        ValueError: a text that is too short.
        OSError: a text that cannot be read or downloaded.
    """
    settings = {
        "sequence_length": min(options.sequence_length, loaded.context),
        "max_vectors": options.max_vectors,
        "design": DENSE,  # studies average over tokens, and take intervals from whole sequences
        "classes": classes,
    }
    if options.text == "enwik8":
        return Probe.enwik8(loaded.tokenizer, **settings)
    corpus = load_corpus(options.text)
    return Probe.from_texts([corpus.data.decode(errors="replace")], loaded.tokenizer, name=corpus.name, **settings)
