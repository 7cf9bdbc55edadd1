"""The options of a sweep on the command line."""

from __future__ import annotations

import argparse
import math
import re
from dataclasses import dataclass
from pathlib import Path

from repdyn.hub.options import add_loading_options, add_timeout_option
from repdyn.metrics import DEFAULT_METRICS, METRICS
from repdyn.probe.class_names import CLASS_OPTIONS, CLASSES
from repdyn.probe.design import DESIGNS, INDEPENDENT, MAX_VECTORS
from repdyn.sweep.estimate import HARDWARE
from repdyn.text.corpus import cache_directory
from repdyn.text.source import DEFAULT_TEXT
from repdyn.utils.addresses import path_or_url
from repdyn.utils.arguments import SuggestingParser, at_least
from repdyn.utils.records import add_record_options

_EXAMPLES = """examples:
  %(prog)s --list-suites
  %(prog)s --suite pythia-70m --dry-run    what would be downloaded, hours and price
  %(prog)s --suite '*' --revisions log --dry-run --hardware gpu --price-per-hour 2.50 --bandwidth 100MB
  %(prog)s --suite pythia-70m --revisions log --max-disk 2GB
  %(prog)s --suite 'pythia-*-deduped' finished my_suite.yaml --store sweeps
  %(prog)s EleutherAI/pythia-70m --revisions step0,step512,step143000
  %(prog)s gpt2                          one finished model
  %(prog)s gpt2 --design paper           as in the published protocol
  %(prog)s runs/quickstart/TIME          a run's own checkpoints
  %(prog)s runs/quickstart/TIME/checkpoints --probe runs/quickstart/TIME/repdyn/probes/HASH.safetensors
  %(prog)s --suite pythia-70m --engine ray --workers 4
  %(prog)s --suite pythia-70m --store s3://bucket/sweeps    several machines may run this
  %(prog)s --suite pythia --shard "$((SLURM_ARRAY_TASK_ID + 1))/$SLURM_ARRAY_TASK_COUNT"

A sweep can be stopped at any time; the same command continues it. Exit status: 0 everything is measured; 1 some
checkpoints failed, for reasons that are stored (--retry-failed retries them); 2 invalid arguments; 3 no network, no
space on the disk, or rows that wait for upload; 130 interrupted.
"""
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


@dataclass(frozen=True)
class Shard:
    """The i-th of N equal parts of a sweep, i from 1."""

    index: int
    count: int


def parser(prog: str) -> argparse.ArgumentParser:
    """Return a parser with every option of a sweep."""
    top = SuggestingParser(
        prog=prog,
        usage="%(prog)s [SOURCE | --suite NAME ...] [options]",
        description="Measure published or local checkpoints on a fixed probe, through the same code as a live run.",
        epilog=_EXAMPLES,
        allow_abbrev=False,
    )
    _add_sources(top.add_argument_group("what to measure"))
    _add_probe(top.add_argument_group("the probe"))
    _add_measuring(top.add_argument_group("measurement"))
    execution = top.add_argument_group("execution")
    execution.add_argument(
        "--store", type=path_or_url, help="results: folder or URL (default: FOLDER/sweep, or sweeps)"
    )
    execution.add_argument(
        "--dry-run",
        action="store_true",
        help="show what remains, what would be downloaded, and an estimate of hours and price, and exit",
    )
    add_record_options(execution, when=", with --dry-run or --list-suites")
    add_running(execution)
    add_costs(top.add_argument_group("what --dry-run assumes for its estimate"))
    return top


def _add_sources(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "source",
        nargs="?",
        help="a run's folder, a folder of save_pretrained or .ckpt checkpoints, or a hub repository",
    )
    group.add_argument("--suite", nargs="+", metavar="NAME", help="suites, their models, patterns, or YAML files")
    group.add_argument("--list-suites", action="store_true", help="list the suites and their models, and exit")
    group.add_argument(
        "--revisions",
        default="all",
        help="all, log (closest to powers of two), every:10, or names or steps separated by commas (default: all)",
    )
    group.add_argument("--pattern", help="regular expression for revision names with a group 'step' (hub repository)")
    group.add_argument("--name", help="name of the run (default: the repository, or the last two parts of the path)")


def _add_probe(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--probe", type=Path, help="probe file (default: the run's own, or one made of --text)")
    add_text(group)
    group.add_argument(
        "--design",
        choices=list(DESIGNS),
        help="sampling design: independent (few vectors of each of many windows), dense, paper (the published "
        "protocol), or shuffled (as independent, the tokens of each window in random order); see docs/sampling.md "
        f"(default: {INDEPENDENT.name})",
    )
    group.add_argument(
        "--classes",
        nargs="+",
        choices=CLASS_OPTIONS,
        metavar="CLASS",
        default=["none"],
        help=f"word classes to measure as subsets, as in token_rank@rare: {', '.join(CLASSES)}; words for all of them "
        "(default: none)",
    )


def add_text(group: argparse._ArgumentGroup, default: str | None = None) -> None:
    """Add the options of the text and of the number of vectors.

    Args:
        group: where to add them.
        default: what to call their defaults, if they are not those of a sweep.
    """
    group.add_argument("--text", help=f"enwik8, builtin, or a path (default: {default or DEFAULT_TEXT})")
    of_design = "that of the design, or the model's context if shorter"
    group.add_argument(
        "--sequence-length", type=at_least(2), help=f"tokens in a window (default: {default or of_design})"
    )
    group.add_argument(
        "--max-vectors",
        type=at_least(3),
        help=f"vectors measured per layer, in batches of 4096 (default: {default or MAX_VECTORS})",
    )


def _add_measuring(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--metrics",
        nargs="+",
        default=list(DEFAULT_METRICS),
        help=f"{', '.join(METRICS)}, or all; with settings and on a subset, quoted for the shell: "
        "'two_nn[discard=0.8]', anisotropy@no_massive, 'two_nn[discard=0.8,duplicates=count]@no_sink', or on a view: "
        "two_nn@last_token, two_nn@window_mean, two_nn@differences, rank_me@last_token.normed "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--loss",
        action=argparse.BooleanOptionalAction,
        help="measure the loss, accuracy and calibration on the probe too, where a model has its output head (default: "
        "yes, except at checkpoints that were measured without it)",
    )
    group.add_argument(
        "--layers",
        type=_layers,
        help='name pattern of the blocks, such as "layers.*", or one for each of several stacks, '
        '"text=text_model.encoder.layers.*,vision=vision_model.encoder.layers.*" (default: detected)',
    )
    group.add_argument(
        "--token-positions",
        type=_positions,
        metavar="SLICE",
        help='positions of the tokens, such as "2:" after two learned vectors (default: all)',
    )
    add_forward_options(group)


def add_forward_options(group: argparse._ArgumentGroup) -> None:
    """Add the options of how a model is loaded and run."""
    add_loading_options(group, dtype=None)
    group.add_argument(
        "--device-map",
        choices=["auto", "balanced", "sequential"],
        help="distribute a large model over devices and disk",
    )
    group.add_argument("--tokens-per-forward", type=at_least(1), default=8192, help="(default: %(default)s)")


def _default_downloads() -> Path | None:
    """Return the folder of downloads in the cache; None if the user has none, which is an error once it is needed."""
    try:
        return cache_directory() / "downloads"
    except FileNotFoundError:
        return None


def add_running(group: argparse._ArgumentGroup) -> None:
    """Add the options of how checkpoints are downloaded and measured, which no value depends on."""
    group.add_argument("--retry-failed", action="store_true", help="retry checkpoints that failed before")
    group.add_argument("--max-disk", type=n_bytes, metavar="SIZE", help="disk space for weights, such as 20GB")
    group.add_argument(
        "--downloads",
        type=Path,
        default=_default_downloads(),
        help="folder of the weights until they are measured (default: %(default)s)",
    )
    add_timeout_option(group)
    group.add_argument("--engine", choices=["serial", "ray"], default="serial", help="(default: %(default)s)")
    group.add_argument(
        "--workers",
        type=at_least(1),
        default=2,
        help="concurrent checkpoints on each machine, with Ray (default: %(default)s)",
    )
    group.add_argument("--shard", type=_shard, metavar="I/N", help="measure the I-th of N equal parts, I from 1")


def add_costs(group: argparse._ArgumentGroup) -> None:
    """Add the options of the estimate of a plan."""
    group.add_argument(
        "--bandwidth", type=n_bytes, metavar="SIZE", default=50_000_000, help="download per second (default: 50MB)"
    )
    group.add_argument(
        "--hardware", choices=list(HARDWARE), default="gpu", help="one GPU, or one core (default: %(default)s)"
    )
    prices = ", ".join(f"{hardware.price:.2f} for {name}" for name, hardware in HARDWARE.items())
    group.add_argument(
        "--price-per-hour", type=_price, metavar="DOLLARS", help=f"price of that hardware (default: {prices})"
    )


def n_bytes(text: str) -> int:
    """Parse a size in bytes.

    >>> n_bytes("20GB"), n_bytes("1.5 TB"), n_bytes("300m"), n_bytes("1024")
    (20000000000, 1500000000000, 300000000, 1024)
    """
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,15})?)\s*([kmgt]?)b?\s*", text.lower())
    size = int(float(match[1]) * _UNITS[match[2]]) if match else 0
    if size == 0:
        raise argparse.ArgumentTypeError(f"expected a size such as 20GB or 500MB, got {text!r}")
    return size


def _price(text: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = math.nan
    if not 0 <= price < math.inf:
        raise argparse.ArgumentTypeError(f"expected a price in dollars, such as 2.50, got {text!r}")
    return price


def _layers(text: str) -> str | dict[str, str]:
    """Parse one pattern, or one for each stack as ``stack=pattern``, separated by commas."""
    if "=" not in text:
        return text
    parts = [part.partition("=") for part in text.split(",")]
    if not all(stack and pattern for stack, _, pattern in parts):
        raise argparse.ArgumentTypeError(f'expected "stack=pattern,stack=pattern", got {text!r}')
    return {stack.strip(): pattern.strip() for stack, _, pattern in parts}


def _positions(text: str) -> slice:
    from repdyn.capture.token_states import positions_from  # with torch, which other options do without

    try:
        return positions_from(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _shard(text: str) -> Shard:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(f"expected I/N with 1 <= I <= N, such as 1/8, got {text!r}")
    return Shard(int(match[1]), int(match[2]))
