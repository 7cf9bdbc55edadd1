"""Measure the dimension by sampling design, and the coverage of the intervals of the default design.

    python benchmarks/sampling_design.py --text wiki.txt.xz --output docs/sampling \\
        --model decoder-0=runs/decoder/hf_checkpoints/step0 --model small-random=models/small@random ...

For each model and each window length x vectors per window x number of vectors: TwoNN of every block with the neighbours
of a point's own window counted and left out, and for the reference, which takes one vector of each window. Then fresh
probes of the default design from disjoint windows of the same text: how often the 95 % interval of one covers the value
of another, metric by metric, and how far each metric is from its value on independent vectors.

Interrupt it at any time: what was measured is in --output, and the same command goes on with the rest.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch
from machine import facts
from sampling.models import FreshWindows, LoadedModel
from sampling.report import write_report
from sampling.study import (
    BATCH,
    REFERENCE_LENGTH,
    Cell,
    Value,
    as_rows,
    cells,
    dense_design,
    fresh_values,
    reference_design,
)
from tqdm import tqdm

from repdyn.probe.design import INDEPENDENT
from repdyn.text.source import load_corpus
from repdyn.utils.files import write_atomically

_LENGTHS = (40, 128, 256)
_SHARES = (4, 8, 16, 51)
_SIZES = (1024, 2048, 8192)


def grid(longest: int, full: bool) -> list[tuple[int, int, int, int]]:
    """Return window length, vectors per window, vectors and batches of every cell; the references come first."""
    own = min(REFERENCE_LENGTH, longest)
    default = INDEPENDENT.vectors_per_window or 1
    found = [(own, 1, BATCH, 2)]
    found += [(own, share, BATCH, 2) for share in _SHARES]
    if full:
        found += [(length, share, BATCH, 1) for length in _LENGTHS if length <= longest for share in (1, default)]
        found += [(own, share, n, 1) for n in _SIZES for share in (1, default)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", required=True, metavar="NAME=FOLDER", help="several times")
    parser.add_argument("--text", default="enwik8", help="text that none of the models was trained on")
    parser.add_argument("--bytes", type=int, default=8_000_000, help="of the end of the text (default: %(default)s)")
    parser.add_argument("--probes", type=int, default=5, help="fresh probes for the coverage (default: %(default)s)")
    parser.add_argument(
        "--full-grid", action="append", default=[], metavar="NAME", help="models to measure at other lengths and n too"
    )
    parser.add_argument(
        "--coverage-only", action="append", default=[], metavar="NAME", help="models too slow for the designs"
    )
    parser.add_argument("--output", type=Path, required=True, help="folder of the tables, figures and values")
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    options.output.mkdir(parents=True, exist_ok=True)
    try:
        subjects = [LoadedModel.load(spec) for spec in options.model]
        text = load_corpus(options.text).data[-options.bytes :].decode(errors="replace")
    except (OSError, ValueError) as error:
        parser.error(str(error))
    for subject in tqdm(subjects, unit="model"):
        windows = FreshWindows(text, subject.tokenizer)
        if subject.name not in options.coverage_only:
            _designs(subject, windows, options.output / "designs.csv", full=subject.name in options.full_grid)
        _coverage(subject, windows, options.output / "values.csv", options.probes)
    about = facts(shlex.join(["python", "benchmarks/sampling_design.py", *sys.argv[1:]]))
    for path in write_report(options.output, about):
        print(path)


def _designs(subject: LoadedModel, windows: FreshWindows, path: Path, full: bool) -> None:
    columns = ["model", "window_tokens", "vectors_per_window", "n_vectors"]
    known = _read(path)
    done = set() if known.empty else set(known[columns].itertuples(index=False, name=None))
    for length, share, n, n_batches in tqdm(grid(subject.context, full), desc=subject.name, leave=False):
        if (subject.name, length, min(share, length), n) not in done:
            _append(path, list(cells(subject, windows, length, min(share, length), n, n_batches)))


def _coverage(subject: LoadedModel, windows: FreshWindows, path: Path, n_probes: int) -> None:
    known = _read(path)
    done = set() if known.empty else set(known[["model", "design"]].itertuples(index=False, name=None))
    for design, count, n_batches in ((INDEPENDENT, n_probes, 4), (reference_design(), 1, 2), (dense_design(), 1, 4)):
        if (subject.name, design.name) not in done:
            probes = fresh_values(subject, windows, design, count, n_batches)
            bar = tqdm(probes, desc=f"{subject.name}, {design.name}", total=count, leave=False)
            _append(path, [value for values in bar for value in values])


def _read(path: Path) -> pd.DataFrame:
    return pd.read_csv(path) if path.is_file() else pd.DataFrame()


def _append(path: Path, found: Sequence[Cell | Value]) -> None:
    table = pd.concat([_read(path), pd.DataFrame(as_rows(found))])
    write_atomically(path, lambda place: table.to_csv(place, index=False, float_format="%.7g"))


if __name__ == "__main__":
    main()
