"""Collect the rows of the finished runs of an experiment in one store, with a record of what they
were made from.

  python -m experiments.collect runs/matched_pair --output docs/experiment/rows

A run that is there already stays as it is; an unfinished one is left out, as are the probes, which
contain the text.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pyarrow as pa

from experiments.train import FINISHED
from repdyn import open_store
from repdyn.store.files import read_tables, write_table
from repdyn.store.schema import SCHEMA
from repdyn.utils.files import write_atomically

RECORD = "experiment.json"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.collect",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("experiment", type=Path, help="output folder of experiments.run")
    parser.add_argument("--output", type=Path, required=True, help="folder of the store")
    options = parser.parse_args()
    try:
        added = collect(options.experiment, options.output)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print(f"{len(added)} runs added to {options.output}" + "".join(f"\n  {name}" for name in added))


def collect(experiment: Path, output: Path) -> list[str]:
    """Copy the rows of finished runs into a store, and return the names of the runs that were
    added.

    Raises:
        ValueError: no record of an experiment, or the output holds rows of another plan, text or
            version.
        OSError: a file cannot be read or written.
    """
    if not (experiment / RECORD).exists():
        raise ValueError(
            f"expected the output folder of experiments.run, got {experiment}, which has no "
            f"{RECORD}"
        )
    record = json.loads((experiment / RECORD).read_text())
    target = output / RECORD
    collected = json.loads(target.read_text()) if target.exists() else {**record, "runs": {}}
    if differing := [name for name in record if collected.get(name) != record[name]]:
        raise ValueError(
            f"expected {output} to be of the same {', '.join(differing)} as {experiment}; choose "
            "another folder"
        )
    store = open_store(output)
    added = []
    for finished in sorted(experiment.glob(f"*/seed*/{FINISHED}")):
        for folder in sorted(
            path for path in finished.parent.iterdir() if (path / "probes").is_dir()
        ):
            source = open_store(folder)
            (run,) = source.runs()
            if run in collected["runs"]:
                continue
            history = source.path_of(run)
            parts = (
                [read_tables(segment.files()) for segment in history.segments] if history else []
            )
            write_table(store.folder_of(run) / "rows.parquet", pa.concat_tables(parts).cast(SCHEMA))
            collected["runs"][run] = json.loads(finished.read_text())
            added.append(run)
            write_atomically(
                target, lambda path: path.write_text(json.dumps(collected, indent=2) + "\n")
            )
    return added


if __name__ == "__main__":
    main()
