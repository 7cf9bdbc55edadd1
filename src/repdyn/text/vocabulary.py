"""How many distinct bytes and characters a text has, raw and cleaned, against the 205 of the paper.

python -m repdyn.text.vocabulary enwik8_prefix.gz
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from repdyn.text.corpus import Corpus
from repdyn.text.source import load_corpus

PAPER_CHARACTERS = 205
"""The "vocabulary of 205 distinct characters" of the paper; raw enwik8 has as many distinct byte values."""


@dataclass(frozen=True)
class Vocabulary:
    """Sizes of a text and of the alphabets it is written in."""

    name: str
    n_bytes: int
    byte_values: int
    """Distinct byte values, in [1, 256]."""
    characters: int
    """Distinct Unicode characters; bytes that are no UTF-8 (a character cut in two) count for none."""


def vocabulary(corpus: Corpus) -> Vocabulary:
    """Count the distinct bytes and characters of a text.

    >>> vocabulary(Corpus("greeting", "héhé".encode()))
    Vocabulary(name='greeting', n_bytes=6, byte_values=3, characters=2)
    """
    characters = set(corpus.data.decode(errors="ignore"))
    return Vocabulary(corpus.name, len(corpus.data), len(set(corpus.data)), len(characters))


def vocabulary_table(vocabularies: Sequence[Vocabulary]) -> Table:
    """The counts as a table for the terminal."""
    table = Table(
        "text", caption=f'The paper\'s "{PAPER_CHARACTERS} distinct characters" are the byte values of raw enwik8.'
    )
    for heading in ("bytes", "byte values", "characters"):
        table.add_column(heading, justify="right")
    for counted in vocabularies:
        counts = (counted.n_bytes, counted.byte_values, counted.characters)
        table.add_row(counted.name, *(f"{count:,}" for count in counts))
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the vocabulary of a text, raw and, if it is a Wikipedia dump, cleaned."""
    parser = argparse.ArgumentParser(
        prog="python -m repdyn.text.vocabulary",
        description=main.__doc__,
        epilog="example: python -m repdyn.text.vocabulary enwik8.zip",
    )
    parser.add_argument("source", metavar="PATH", help='text file, plain, .gz, .xz or .zip; or "enwik8", or "builtin"')
    parser.add_argument("--max-bytes", type=int, help="count only so many bytes from the start")
    parser.add_argument("--cache-dir", help="where downloads and cleaned text are kept (~/.cache/repdyn)")
    options = parser.parse_args(arguments)
    try:
        raw, cleaned = (
            load_corpus(options.source, clean=clean, max_bytes=options.max_bytes, cache_dir=options.cache_dir)
            for clean in (False, True)
        )
    except (OSError, ValueError) as error:
        parser.exit(1, f"{error}\n")
    texts = (raw, cleaned) if raw.name != cleaned.name else (raw,)
    Console().print(vocabulary_table([vocabulary(text) for text in texts]))


if __name__ == "__main__":
    main()
