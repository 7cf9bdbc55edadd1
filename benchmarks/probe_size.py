"""How many vectors a probe needs: how TwoNN and anisotropy drift, spread and cost as n grows.

    python benchmarks/probe_size.py
    python benchmarks/probe_size.py --model EleutherAI/pythia-70m --output docs/probe_size
    python benchmarks/probe_size.py --model runs/wide/hf_checkpoints/step300 --text enwik8.xz --layers 0,middle,last

Draws disjoint sets of n = 512, 1024, ... of a layer's states, and the same vectors as few large or many small batches.
Cubes of a known dimension come with it, and alone without --model. Layers: 0 is what enters the first block, "first"
the output of the first block, 1. --output names a folder for the tables, all numbers as CSV, and the figures.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from machine import facts
from sizes.cubes import DIMENSIONS, MOST, estimates
from sizes.report import cube_table, notes, study_tables, write
from sizes.states import Layer, pools, tokenizer_of
from sizes.study import Pool, Progress, Row, equal_plans, single_batches, sizes, study
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from repdyn.data.source import load_corpus
from repdyn.data.text import Corpus

_LEAST = 1024


def main() -> None:
    parser = _parser()
    options = parser.parse_args()
    try:
        corpus = load_corpus(options.text)
        # all of them before anything is computed, so that a mistyped name is told at once
        tokenizers = {model: tokenizer_of(model) for model in options.model}
    except (OSError, ValueError) as error:
        parser.error(str(error))
    told = facts(shlex.join(["python", "benchmarks/probe_size.py", *sys.argv[1:]]))
    told |= {"text": corpus.name} if options.model else {}
    told |= notes(options.repeats)
    print(*(f"{name}: {fact}" for name, fact in told.items()), "", sep="\n")
    rows: list[Row] = []
    tables: list[str] = []
    written: list[Path] = []
    for new, text in _parts(options, corpus, tokenizers):
        rows += new
        tables.append(text)
        tqdm.write(text)
        if options.output:  # after each, lest a later one that fails take hours of others with it
            written = write(options.output, told, tables, rows)
    for path in written:
        print(path)


def _parts(
    options: argparse.Namespace, corpus: Corpus, tokenizers: Mapping[str, PreTrainedTokenizerBase]
) -> Iterator[tuple[list[Row], str]]:
    """Rows and their tables: each layer of each model, and the cubes."""
    single, equal = single_batches(options.largest), equal_plans(options.largest)
    plans = list(dict.fromkeys([*single, *equal]))
    for model, tokenizer in tokenizers.items():
        states = _states(options, corpus, model, tokenizer)
        with tqdm(total=options.repeats * len(states), unit="round") as bar:
            for pool in states:
                rows = study(pool, plans, options.repeats, _shown_by(bar))
                yield rows, study_tables(rows, single, equal)
    few = [n for n in sizes(options.largest) if n <= MOST]
    with tqdm(total=len(few) * len(DIMENSIONS), unit="size") as bar:
        rows = estimates(few, options.repeats, _shown_by(bar))
    yield rows, cube_table(rows)


def _states(options: argparse.Namespace, corpus: Corpus, model: str, tokenizer: PreTrainedTokenizerBase) -> list[Pool]:
    """Twice as many as the largest batch has, so that two of those are disjoint."""
    shape = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
    with tqdm(total=1.0, desc=f"states of {model}", bar_format=shape) as bar:

        def show(share: float) -> None:
            bar.update(share - bar.n)

        try:
            return pools(model, tokenizer, corpus, options.layers, 2 * options.largest, show)
        except (OSError, RuntimeError, ValueError) as error:
            sys.exit(f"probe_size.py: error: {error}")


def _shown_by(bar: tqdm) -> Progress:
    def progress(what: str, done: int) -> None:
        if what:
            bar.set_description(what)
        bar.update(done)

    return progress


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", nargs="+", action="extend", default=[], metavar="MODEL", help="folders or hub names")
    add("--text", default="builtin", help='"builtin", "enwik8" or the path of a text, packed or not (default: builtin)')
    layers = "first, middle, last or numbers, apart by commas (default: first,middle,last)"
    add("--layers", type=_layers, default="first,middle,last", metavar="LIST", help=layers)
    add("--largest", type=_size, default=65536, metavar="N", help="vectors in a batch at most (default: 65536)")
    add("--repeats", type=_several, default=8, metavar="N", help="draws of each size (default: 8)")
    add("--output", type=Path, metavar="FOLDER", help="for probe_size.md, probe_size.csv and the figures")
    return parser


def _layers(text: str) -> list[Layer]:
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"first|middle|last|\d+", part) for part in parts):
        raise argparse.ArgumentTypeError(
            f"expected first, middle, last or numbers apart by commas, got {text!r}; 0 is what enters the first block"
        )
    return [int(part) if part.isdecimal() else part for part in parts]


def _size(text: str) -> int:
    n = int(text) if text.isdecimal() else 0
    if n < _LEAST or n.bit_count() != 1:
        raise argparse.ArgumentTypeError(
            f"expected a power of two of {_LEAST} or more, such as 16384, got {text!r}; sizes double from 512 on"
        )
    return n


def _several(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d*", text) or text == "1":
        raise argparse.ArgumentTypeError(f"expected a whole number of 2 or more, got {text!r}; one has no spread")
    return int(text)


if __name__ == "__main__":
    main()
