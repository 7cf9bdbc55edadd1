"""Run a study: parse its options, load one model after another, and write tables, figures and a summary."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

from repdyn.probe import Probe
from repdyn.probe.design import DENSE
from repdyn.studies.models import LoadedModel, add_model_options, load_models
from repdyn.studies.output import Output, print_line
from repdyn.text.source import load_corpus
from repdyn.utils.arguments import SuggestingParser, at_least


class Study(ABC):
    """Base class of a study: its options, its measurement of one model, and its output.

    A subclass checks its options and reads its texts in ``__init__``, before any model is loaded, measures one model at
    a time in :meth:`measure`, and combines models in :meth:`finish`.

    Args:
        options: parsed by :meth:`parser`.

    Raises:
        ValueError: options that contradict each other, or a text that cannot be used.
        OSError: a file that cannot be read.
    """

    help: ClassVar[str]
    """What the study answers, in a sentence."""
    examples: ClassVar[str]
    """Shown after the options; begins with "examples:"."""
    fewest_models: ClassVar[Literal[0, 1]] = 1

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options

    @classmethod
    def parser(cls, prog: str) -> argparse.ArgumentParser:
        """Return the parser of the study's command line."""
        parser = SuggestingParser(
            prog=prog,
            description=cls.help,
            epilog=cls.examples,
            allow_abbrev=False,
        )
        add_model_options(parser, fewest=cls.fewest_models)
        cls.add_options(parser)
        return parser

    @classmethod
    @abstractmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        """Add the options that only this study has."""

    @abstractmethod
    def measure(self, loaded: LoadedModel) -> None:
        """Measure one model, whose weights are released afterwards."""

    def finish(self) -> None:  # noqa: B027 (most studies are finished with each model)
        """Write what needs the results of all models."""

    @classmethod
    def main(cls, arguments: Sequence[str], prog: str) -> None:
        """Run the study on a command line.

        Raises:
            ValueError, OSError: an invalid option, or a text that cannot be used.
            CheckpointError: a model that cannot be downloaded, loaded or run.
            SystemExit: after ``--help``, or for an invalid command line.
        """
        study = cls(cls.parser(prog).parse_args(arguments))
        for loaded in load_models(study.options):
            study.measure(loaded)
        study.finish()

    def write(self, output: Output, subfolder: str = "") -> None:
        """Write tables and figures below the output folder, and print where they are."""
        folder = self.options.output / subfolder
        print_line(f"tables and figures: {folder} ({len(output.write(folder))} files)")


def add_number(
    parser: argparse._ActionsContainer, name: str, default: int, smallest: int, text: str, metavar: str | None = None
) -> None:
    """Add an option for a whole number of at least ``smallest``, with its default in the help text."""
    text = f"{text} (default: %(default)s)"
    parser.add_argument(name, type=at_least(smallest), default=default, metavar=metavar, help=text)


def add_layers_option(parser: argparse._ActionsContainer) -> None:
    """Add ``--layers``."""
    parser.add_argument("--layers", help='name pattern of the blocks, such as "layers.*" (default: detected)')


def text_probe(loaded: LoadedModel, options: argparse.Namespace, classes: Sequence[str]) -> Probe:
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
