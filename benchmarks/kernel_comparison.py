"""Compare the kernels with other packages: time relative to a bare matrix product, errors, memory.

    pip install scikit-dimension scikit-learn faiss-cpu threadpoolctl
    pip install --no-deps llm-microscope
    python benchmarks/kernel_comparison.py
    python benchmarks/kernel_comparison.py --output FOLDER
    python benchmarks/kernel_comparison.py --model runs/wide/hf_checkpoints/step300 \\
        --text enwik8 --clouds

Prints a table for each cloud; packages that are not installed are named in it. DADApy needs
numpy < 2 and so an environment of its own, llm-microscope its own folder on PYTHONPATH. --output
names a folder for the tables and all numbers as CSV.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from peers.clouds import SYNTHETIC, states
from peers.contenders import QUANTITIES, Contender, Quantity
from peers.report import header, table, write
from peers.rounds import Case, Row, compare
from torch import Tensor
from tqdm import tqdm

from repdyn.kernels import full_precision

# Not called kernels.py: transformers takes a module of that name for the hub's package, in every
# script of this folder.
_SIZES = [(4096, 768), (4096, 2048), (16384, 768)]
_NAMES = sorted({contender.name for quantity in QUANTITIES for contender in quantity.contenders})


def main() -> None:
    parser = _parser()
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error(
            "expected a CUDA device for --device cuda, found none; leave it out to compute on the "
            "CPU"
        )
    if not options.clouds and not options.model:
        parser.error(
            f"expected something to compute on, got no cloud; name --clouds {' '.join(SYNTHETIC)} "
            "or a --model"
        )
    device = torch.device(options.device)
    contenders = _contenders(options.only)
    command = shlex.join(["python", "benchmarks/kernel_comparison.py", *sys.argv[1:]])
    facts = header(device, options.threads, options.repeats, command, contenders)
    print(*(f"{name}: {fact}" for name, fact in facts.items()), "", sep="\n")
    rows, tables = _run(options, contenders, device)
    if options.output:
        for path in write(options.output, facts, tables, rows):
            print(path)


def _contenders(only: list[str] | None) -> dict[Quantity, list[Contender]]:
    """Return the selected contenders by quantity."""
    chosen = {
        quantity: [one for one in quantity.contenders if only is None or one.name in only]
        for quantity in QUANTITIES
    }
    return {quantity: some for quantity, some in chosen.items() if some}


def _run(
    options: argparse.Namespace, chosen: dict[Quantity, list[Contender]], device: torch.device
) -> tuple[list[Row], list[str]]:
    n_counts = len({rows for rows, _ in options.sizes})
    n_clouds = len(options.sizes) * len(options.clouds) + n_counts * len(options.model)
    rows = []
    tables = []
    with (
        tqdm(total=n_clouds * len(chosen) * len(options.threads), unit="table") as bar,
        full_precision(device),
    ):
        for name, x in _clouds(options):
            for quantity, contenders in chosen.items():
                bar.set_description(f"{quantity.name}, {name} {len(x)} x {x.shape[1]}")
                bar.set_postfix_str("float64 reference")
                reference = quantity.reference(x)
                for threads in options.threads:
                    case = Case(
                        quantity=quantity, cloud=name, x=x, reference=reference, threads=threads
                    )
                    new = compare(
                        case, contenders, options.repeats, options.limit, bar.set_postfix_str
                    )
                    rows += new
                    tables.append(table(quantity.title, new))
                    tqdm.write(tables[-1])
                    bar.update()
    return rows, tables


def _clouds(options: argparse.Namespace) -> Iterator[tuple[str, Tensor]]:
    """Yield names and points of the clouds; states are captured first, so that loading errors
    appear at once.
    """
    counts = sorted({rows for rows, _ in options.sizes})
    captured = [states(model, options.text, counts[-1], options.device) for model in options.model]
    for rows, columns in options.sizes:
        for name in options.clouds:
            yield name, SYNTHETIC[name](rows, columns).to(options.device)
    for name, x in captured:
        for count in counts:
            yield name, x[:count]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    sizes = (
        "of the clouds; states have columns of their own (default: 4096x768 4096x2048 16384x768)"
    )
    add("--sizes", type=_size, nargs="+", default=_SIZES, metavar="ROWSxCOLUMNS", help=sizes)
    add(
        "--clouds",
        nargs="*",
        choices=SYNTHETIC,
        default=list(SYNTHETIC),
        help="synthetic clouds (default: all)",
    )
    add(
        "--model",
        nargs="+",
        default=[],
        metavar="MODEL",
        help="folders or hub names, whose middle layer is captured",
    )
    add(
        "--text",
        default="builtin",
        help='for --model: "builtin", "enwik8" or a path (default: %(default)s)',
    )
    add(
        "--only",
        nargs="+",
        choices=_NAMES,
        metavar="NAME",
        help=f"contenders, of {', '.join(_NAMES)}",
    )
    add(
        "--threads",
        type=_positive,
        nargs="+",
        default=[torch.get_num_threads()],
        help="on the CPU (default: torch's)",
    )
    add("--repeats", type=_positive, default=7, help="rounds (default: %(default)s)")
    add(
        "--limit",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="that a first call may take (default: 60)",
    )
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--output", type=Path, metavar="FOLDER", help="for kernels.md and kernels.csv")
    return parser


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)x(\d+)", text)
    if not match or int(match[1]) < 10 or int(match[2]) < 4:
        raise argparse.ArgumentTypeError(
            f"expected ROWSxCOLUMNS such as 4096x768, at least 10x4, got {text!r}; give several "
            "apart by spaces"
        )
    return int(match[1]), int(match[2])


def _positive(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d*", text):
        raise argparse.ArgumentTypeError(f"expected a whole number of 1 or more, got {text!r}")
    return int(text)


if __name__ == "__main__":
    main()
