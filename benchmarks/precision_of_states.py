"""Measure the effect of half precision on the geometry: the same weights and tokens in float32, float16 and bfloat16.

python benchmarks/precision_of_states.py MODEL_FOLDER PROBE.safetensors

Prints, for each metric and subset, the largest relative difference from float32 over the layers, and the largest
standard deviation over batches. Layers with few distinct vectors, which compare with nothing, are left out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from repdyn import Probe, measure
from repdyn.checkpoints.loading import Loading
from repdyn.checkpoints.weights import DTYPES, load_model
from repdyn.tables.frames import measurements

CELL = ["metric", "subset", "layer"]


def profile(folder: Path, probe: Probe, dtype: str) -> pd.DataFrame:
    """Return value and spread of each metric, subset and layer."""
    rows = measurements(measure(load_model(folder, Loading(dtype=dtype)), probe).to_pandas())
    return rows.set_index(CELL)[["value", "std"]].dropna()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder with config.json and weights")
    parser.add_argument("probe", type=Path, help="probe file, as every store keeps one in probes/")
    options = parser.parse_args()
    probe = Probe.load(options.probe)
    exact = profile(options.model, probe, "float32")
    table = pd.DataFrame({"std over batches": exact["std"] / exact["value"]})
    for dtype in DTYPES:
        if dtype != "float32":
            table[dtype] = (profile(options.model, probe, dtype)["value"] / exact["value"] - 1).abs()
    largest = table.groupby(level=["metric", "subset"]).max()
    print(largest.map("{:.2%}".format).to_string())


if __name__ == "__main__":
    main()
