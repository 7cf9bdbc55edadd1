"""The command line of analyze_checkpoints.py."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from repdyn.metrics import DEFAULT_METRICS, METRICS
from repdyn.probe import Probe
from repdyn.store import open_store
from repdyn.sweep.local import default_device, find_checkpoints, sweep
from repdyn.views.show import show_run

_EXAMPLES = """examples:
  %(prog)s runs/quickstart/TIME
  %(prog)s my_model/checkpoints --probe runs/quickstart/TIME/repdyn/probes/HASH.safetensors
  %(prog)s runs/quickstart/TIME --metrics anisotropy two_nn@no_sink --store sweep
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure local checkpoints, then write figures and print a summary; a second call finishes what is missing."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        folder = options.folder / "hf_checkpoints" if (options.folder / "hf_checkpoints").is_dir() else options.folder
        checkpoints = find_checkpoints(folder)
        probe = Probe.load(options.probe or _probe_of_run(options.folder))
        run = options.name or folder.resolve().relative_to(folder.resolve().parents[1]).as_posix()
        store = open_store(options.store or options.folder / "sweep")
        sweep(checkpoints, probe, store, run=run, metrics=options.metrics, layers=options.layers, device=options.device)
        show_run(store, run, probe=probe.hash)
    except (ValueError, OSError) as error:
        parser.exit(2, f"error: {error}\n")
    except KeyboardInterrupt:
        print("stopped; what is measured is stored, and the same command goes on from there", file=sys.stderr)
        sys.exit(130)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="analyze_checkpoints.py",
        description="Measure local checkpoints on a fixed probe, through the same code as a live run.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="a run's folder, or any folder of save_pretrained checkpoints")
    parser.add_argument("--probe", type=Path, help="probe file; by default the one in the run's own store")
    parser.add_argument("--store", type=Path, help="where the rows go (default: FOLDER/sweep)")
    parser.add_argument("--name", help="name in the rows (default: the last two parts of the folder's path)")
    parser.add_argument(
        "--metrics",
        nargs="+",
        default=list(DEFAULT_METRICS),
        help=f"among {', '.join(METRICS)}, each also as NAME@SUBSET (default: %(default)s)",
    )
    parser.add_argument("--layers", help='name pattern of the blocks, such as "layers.*" (default: found)')
    parser.add_argument("--device", default=default_device(), help="where the models run (default: %(default)s)")
    return parser


def _probe_of_run(folder: Path) -> Path:
    found = sorted((folder / "repdyn" / "probes").glob("*.safetensors"))
    if len(found) != 1:
        probes = folder / "repdyn" / "probes"
        raise ValueError(f"expected one probe in {probes}, found {len(found)}; name the probe with --probe FILE")
    return found[0]
