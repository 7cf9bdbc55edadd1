"""Figures and summary of what a store holds, at any time."""

import argparse
from pathlib import Path

from repdyn.store import open_store
from repdyn.views.show import show_run


def main() -> None:
    """Draw and summarise one run of a store, or each run it holds."""
    parser = argparse.ArgumentParser(
        prog="python -m repdyn.views",
        description="Write the figures of a store and print its summary.",
        epilog="example: python -m repdyn.views runs/quickstart/TIME/repdyn",
    )
    parser.add_argument("store", type=Path, help="folder of a store")
    parser.add_argument("--run", help="one run of it (default: every run)")
    parser.add_argument("--probe", help="hash of the probe, where a run was measured on several")
    options = parser.parse_args()
    store = open_store(options.store)
    try:
        runs = [options.run] if options.run else store.runs()
        if not runs:
            raise ValueError(f"expected a store with measurements, found none in {options.store}")
        for run in runs:
            show_run(store, run, probe=options.probe)
    except ValueError as error:
        parser.exit(2, f"error: {error}\n")


if __name__ == "__main__":
    main()
