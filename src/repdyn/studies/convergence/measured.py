"""From a loaded model to its results: the text and the sentences it reads, and its cosines on them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tqdm import tqdm

from repdyn.text.source import load_corpus
from repdyn.hub.errors import model_errors
from repdyn.probe import Probe
from repdyn.probe.design import DENSE
from repdyn.studies.convergence.bootstrap import SequenceSums
from repdyn.studies.convergence.cosines import token_cosines
from repdyn.studies.convergence.generated_sentences import sentence_probe
from repdyn.studies.convergence.results import Result
from repdyn.studies.models import LoadedModel
from repdyn.tables.style import of_stack

WORDS = ("function", "content", "frequent", "rare")
"""Classes of words of the text."""
OF_TEXT = ("all", "no_sink")
OF_SENTENCES = ("simple", "complex")


def results_of(subject: LoadedModel, options: argparse.Namespace) -> list[Result]:
    """Run a model over the text, and over made-up sentences where they are asked for.

    Args:
        subject: the model.
        options: text, sequence_length, max_vectors, words, sentences, layers; as on the command line.

    Returns:
        One for each stack of its blocks.

    Raises:
        ValueError, OSError: a text that is too short, or cannot be had.
        CheckpointError: the model cannot be measured.
    """
    text = _text_probe(subject, options)
    found = _sums(subject, text, (*OF_TEXT, *options.words), options.layers, "text")
    if options.sentences:
        made = _sentence_probe(subject, options.sentences)
        of_sentences = _sums(subject, made, OF_SENTENCES, options.layers, "sentences")
        found = {stack: {**sums, **of_sentences[stack]} for stack, sums in found.items()}
    return [Result(of_stack(subject.name, stack), text.hash, sums) for stack, sums in found.items()]


def _text_probe(subject: LoadedModel, options: argparse.Namespace) -> Probe:
    settings = {
        "sequence_length": min(options.sequence_length, subject.context),
        "max_vectors": options.max_vectors,
        "design": DENSE,  # means over tokens, whose intervals come from the sequences themselves
        "classes": options.words,
    }
    if options.text == "enwik8":
        return Probe.enwik8(subject.tokenizer, **settings)
    corpus = load_corpus(options.text)
    return Probe.from_texts([corpus.data.decode(errors="replace")], subject.tokenizer, name=corpus.name, **settings)


def _sentence_probe(subject: LoadedModel, n: int) -> Probe:
    try:
        return sentence_probe(subject.tokenizer, n, sequence_length=subject.context)
    except ValueError as error:
        raise ValueError(
            f"{subject.name} cannot read made-up sentences: {error}; --sentences 0 does without"
        ) from error


def _sums(
    subject: LoadedModel, probe: Probe, subsets: Sequence[str], layers: str | None, what: str
) -> dict[str | None, dict[str, SequenceSums]]:
    """By stack and subset."""
    with model_errors(f"{subject.name} cannot be measured"), _bar(f"{subject.name}: {what}") as progress:
        stacks = token_cosines(subject.model, probe, subsets, layers, progress=progress)
    return {one.stack: {name: one.summed(probe.sample(name)) for name in subsets} for one in stacks}


@contextmanager
def _bar(title: str) -> Iterator[Callable[[float], None]]:
    with tqdm(total=1.0, desc=title, leave=False, bar_format="{desc} {percentage:3.0f}% {bar} {elapsed}") as bar:

        def progress(share: float) -> None:
            bar.update(share - bar.n)

        yield progress
