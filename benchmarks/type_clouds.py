"""How the dimension of one vector of each distinct token depends on its number, draw and probe.

    OMP_NUM_THREADS=1 python -m benchmarks.type_clouds rows --data DATA
    python -m benchmarks.type_clouds judge

DATA is a folder with enwiki_extract.txt.xz. Brute force in float64, with the clouds of
nearest_tokens.py and the trainings of token_courses.py; the last prints what section 7 of
docs/neighbours/criteria_again.md says of the table.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from benchmarks.nearest_tokens import (
    LENGTH,
    N_DRAWS,
    N_WINDOWS,
    OUTPUT,
    PER_WINDOW,
    Cloud,
    all_vectors,
    cut,
    draw,
    measure,
    tiny_model,
    tokenized,
    wikipedia,
)
from benchmarks.token_courses import BLOCKS, N, hidden, trained

N_TOKENS = 4096
POSITIONS = ("learned", "rotary")
STEPS = (0, 300)
N_PROBES = 12
TABLE = OUTPUT / "type_clouds.csv"


# Rows


def rows(options: argparse.Namespace) -> None:
    """Measure each model at STEPS on disjoint probes, and write the table after each step."""
    text = wikipedia(options.data)
    encode = tokenized(N_TOKENS, text)
    training = encode(text[:1_500_000])
    windows = cut(encode(text[1_500_000:]), LENGTH, N_PROBES * N_WINDOWS)
    measured: list[dict[str, object]] = []
    start = time.monotonic()
    for positions in POSITIONS:
        model = tiny_model(positions, N_TOKENS)
        for step in trained(model, training, seed=0):
            if step not in STEPS:
                continue
            about = {"positions": positions, "step": step}
            for probe, ids in enumerate(windows.split(N_WINDOWS)):
                states = hidden(model, ids)
                for block in BLOCKS:
                    cell = {**about, "block": block, "probe": probe}
                    everything = all_vectors(ids, states[block])
                    measured += [{**cell, **row} for row in _of_probe(everything, probe)]
            pd.DataFrame(measured).to_csv(TABLE, index=False, float_format="%.5g")
            print(f"{time.monotonic() - start:.0f} s: {about}", flush=True)


def _of_probe(everything: Cloud, probe: int) -> Iterator[dict[str, object]]:
    """Measure even types of a probe with their interval; of the first probe by n and by draw."""
    types = even_types(everything, N, seed=0)
    yield {"cloud": "even", "draw": 0, **measure(everything[types], error=True)}
    if probe > 0:
        return
    first = draw(everything.tokens, everything.windows, N, PER_WINDOW, 0)
    yield {"cloud": "first", "draw": 0, **measure(everything[first])}
    yield {"cloud": "first, half", "draw": 0, **measure(everything[first[: N // 2]])}
    half = np.random.default_rng(1).permutation(len(types))[: N // 2]
    yield {"cloud": "even, half", "draw": 0, **measure(everything[types[half]])}
    chosen = everything.tokens[types]
    for seed in range(N_DRAWS):
        drawn = even_types(everything, N, seed)
        yield {"cloud": "drawn", "draw": seed, **measure(everything[drawn])}
        is_chosen = torch.isin(everything.tokens, chosen)
        among = everything[is_chosen]
        again = draw(among.tokens, among.windows, N, PER_WINDOW, seed)
        yield {"cloud": "drawn, types kept", "draw": seed, **measure(among[again])}


def even_types(everything: Cloud, n_most: int, seed: int) -> Tensor:
    """Draw one vector of each type, and some of these evenly."""
    n_all = N_WINDOWS * PER_WINDOW
    one_each = draw(everything.tokens, everything.windows, n_all, PER_WINDOW, seed)
    return one_each[np.random.default_rng(seed).permutation(len(one_each))[:n_most]]


# What the criteria say


def judge(_: argparse.Namespace) -> None:
    """Print coverage, spread over draws and dependence on n of each cell."""
    table = pd.read_csv(TABLE)
    cell = ["positions", "step", "block"]
    probes = table.query("cloud == 'even'").groupby(cell).apply(_coverage, include_groups=False)
    print(probes.to_string(float_format="%.3g"))
    print(probes[["covers_mean", "covers_other"]].mean().to_string(float_format="%.3f"))
    for cloud in ("drawn", "drawn, types kept"):
        values = table.query("cloud == @cloud").groupby(cell)["dimension"]
        print(f"spread over draws, {cloud}:", (values.std() / values.mean()).round(3).to_dict())
    by_cloud = table.query("probe == 0 and draw == 0").pivot_table("dimension", cell, "cloud")
    for cloud in ("even", "first"):
        change = by_cloud[cloud] / by_cloud[f"{cloud}, half"] - 1
        print(f"1,024 to 2,048 {cloud} types:", change.round(3).to_dict())


def _coverage(probes: pd.DataFrame) -> pd.Series:
    """Return how often intervals contain the mean over the probes, and the value of another one."""
    value = probes["dimension"].to_numpy()
    error = probes["std_error"].to_numpy()
    covers_mean = np.abs(value - value.mean()) <= 1.96 * error
    # an interval for another probe is one for the difference of two
    apart = np.abs(value[:, None] - value) <= 1.96 * np.sqrt(2) * error[:, None]
    is_other = ~np.eye(len(value), dtype=bool)
    return pd.Series(
        {
            "n": probes["n"].mean(),
            "mean": value.mean(),
            "spread": value.std(ddof=1),
            "error_of_spread": error.mean() / value.std(ddof=1),
            "covers_mean": covers_mean.mean(),
            "covers_other": apart[is_other].mean(),
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=["rows", "judge"])
    parser.add_argument("--data", type=Path, help="folder with the text")
    options = parser.parse_args()
    torch.set_num_threads(1)
    {"rows": rows, "judge": judge}[options.study](options)


if __name__ == "__main__":
    main()
