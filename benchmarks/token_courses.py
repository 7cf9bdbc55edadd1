"""The dimension of tiny decoders while they train, by clouds with and without equal tokens.

    OMP_NUM_THREADS=1 python -m benchmarks.token_courses courses --data DATA
    OMP_NUM_THREADS=1 python -m benchmarks.token_courses grid
    python -m benchmarks.token_courses judge

DATA is a folder with enwiki_extract.txt.xz; --text takes another text, a file of enwik8 (.gz),
whose rows go to courses_enwik8.csv. Brute force in float64, with the clouds of nearest_tokens.py.
Rows are written after each checkpoint; the same command goes on with what is left. The last judges
both tables by docs/neighbours/criteria_again.md, into signs.csv.
"""

from __future__ import annotations

import argparse
import gzip
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from benchmarks.nearest_tokens import (
    LENGTH,
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

N = 2048
"""Vectors of each cloud."""
STEPS = (0, 60, 300)
BLOCKS = (1, 4)
MODELS = (
    (256, "learned"),
    (256, "rotary"),
    (4096, "learned"),
    (4096, "rotary"),
    (512, "learned"),
    (512, "rotary"),
    (256, "none"),
    (4096, "none"),
)
FEWEST = 512
NEAR = 0.1
"""Largest fraction of near duplicates of a cloud that has a value."""
MARGIN = np.log(1.1)
COURSES = OUTPUT / "courses.csv"
OTHER_TEXT = OUTPUT / "courses_enwik8.csv"
GRID = OUTPUT / "grid.csv"
SIGNS = OUTPUT / "signs.csv"
Verdict = dict[str, object]


# Courses over training


def courses(options: argparse.Namespace) -> None:
    """Train each model with each seed and measure its clouds at STEPS, unless that is done."""
    table = COURSES
    if options.text is None:
        text = wikipedia(options.data)
    else:
        table = OTHER_TEXT
        text = gzip.decompress(options.text.read_bytes()).decode(errors="ignore")
    rows = pd.read_csv(table).to_dict("records") if table.exists() else []
    held_out = slice(len(text) // 2, 6_000_000)
    finished = {(row["vocabulary"], row["positions"], row["seed"]) for row in rows if row["last"]}
    start = time.monotonic()
    for seed in options.seeds:
        for n_tokens, positions in MODELS:
            is_wanted = options.only is None or f"{n_tokens}-{positions}" in options.only
            if not is_wanted or (n_tokens, positions, seed) in finished:
                continue
            model = {"vocabulary": n_tokens, "positions": positions, "seed": seed}
            rows = [row for row in rows if {name: row[name] for name in model} != model]
            encode = tokenized(n_tokens, text)
            training = encode(text[:1_500_000])
            windows = cut(encode(text[held_out]), LENGTH, N)
            decoder = tiny_model(positions, n_tokens, seed)
            for step in trained(decoder, training, seed):
                for values in clouds(decoder, windows):
                    rows.append({**model, "step": step, **values, "last": step == STEPS[-1]})
                pd.DataFrame(rows).to_csv(table, index=False, float_format="%.5g")
                print(f"{time.monotonic() - start:.0f} s: {model}, step {step}", flush=True)


def trained(model: nn.Module, ids: Tensor, seed: int) -> Iterator[int]:
    """Train a model with a warm-up of 20 steps and a constant rate, yielding at each of STEPS."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)
    generator = torch.Generator().manual_seed(seed)
    rows = ids[: len(ids) // LENGTH * LENGTH].view(-1, LENGTH)
    for step in range(STEPS[-1] + 1):
        if step in STEPS:
            model.eval()
            yield step
            model.train()
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1, (step + 1) / 20)
        batch = rows[torch.randint(0, len(rows), (16,), generator=generator)]
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def clouds(model: nn.Module, windows: Tensor) -> Iterator[dict[str, object]]:
    """Measure BLOCKS on clouds of N vectors of the windows; ``all`` is today's sampling."""
    n_dense = -(-N // (LENGTH - 1))
    few = hidden(model, windows[:N_WINDOWS])
    many = hidden(model, windows)
    for block in BLOCKS:
        everything = all_vectors(windows[:N_WINDOWS], few[block])
        numbers = everything.windows
        apart = all_vectors(windows, many[block])
        dense = all_vectors(windows[:n_dense], few[block][:n_dense])
        drawn = {
            "all": everything[draw(None, numbers, N, PER_WINDOW, 0)],
            "inputs": everything[draw(everything.inputs, numbers, N, PER_WINDOW, 0)],
            "types": everything[draw(everything.tokens, numbers, N, PER_WINDOW, 0)],
            "one of a window": apart[draw(None, apart.windows, N, 1, 0)],
            "one of a window, inputs": apart[draw(apart.inputs, apart.windows, N, 1, 0)],
            "dense": dense[draw(None, dense.windows, N, LENGTH, 0)],
            "dense, inputs": dense[draw(dense.inputs, dense.windows, N, LENGTH, 0)],
        }
        for name, cloud in drawn.items():
            rule = "none" if name.startswith("dense") else "window"
            values = measure(cloud, rule, error=True)
            near = near_duplicates(cloud)
            yield {"block": block, "cloud": name, **values, "near_duplicates": near}


@torch.no_grad()
def hidden(model: nn.Module, ids: Tensor) -> dict[int, Tensor]:
    """Return the hidden states of BLOCKS, (windows, length, width), without the output head."""
    passes = [
        model.base_model(input_ids=batch, output_hidden_states=True).hidden_states
        for batch in ids.split(64)
    ]
    return {block: torch.cat([states[block] for states in passes]) for block in BLOCKS}


def near_duplicates(cloud: Cloud) -> float:
    """Return the fraction of vectors with another one within a hundredth of the radius."""
    squares = (cloud.vectors - cloud.vectors.mean(0)).square().sum(1)
    distances = torch.cdist(cloud.vectors, cloud.vectors).fill_diagonal_(torch.inf)
    return float((distances.min(1).values < 0.01 * squares.mean().sqrt()).double().mean())


# Sums of a token's and a position's vector


def grid(_: argparse.Namespace) -> None:
    """Measure pairs of a token and a position, and a Gaussian of the same covariance."""
    n_tokens = 118
    n_positions = LENGTH - 1
    frequencies = 1 / np.arange(1, n_tokens + 1)
    frequencies /= frequencies.sum()
    rows = []
    for d in (8, 16, 64):
        for seed in range(8):
            generator = torch.Generator().manual_seed(seed)
            random = np.random.default_rng(seed)
            tokens = torch.tensor(random.choice(n_tokens, 60_000, p=frequencies))
            positions = torch.tensor(random.integers(0, n_positions, 60_000))
            labels = tokens * n_positions + positions
            alone = torch.arange(len(labels))
            pairs = draw(labels, alone, N, 1, seed)
            of_token = torch.randn(n_tokens, d, generator=generator).double()
            of_position = torch.randn(n_positions, d, generator=generator).double()
            sums = of_token[tokens[pairs]] + of_position[positions[pairs]]
            root = torch.linalg.cholesky(sums.T.cov())
            normal = torch.randn(len(sums), d, generator=generator).double() @ root.T
            number = torch.arange(len(sums))
            for name, vectors in (("pairs", sums), ("gaussian", normal)):
                cloud = Cloud(
                    vectors=vectors,
                    tokens=tokens[pairs],
                    positions=positions[pairs],
                    windows=number,
                )
                rows.append({"d": d, "draw": seed, "cloud": name, **measure(cloud)})
    pd.DataFrame(rows).to_csv(GRID, index=False, float_format="%.5g")
    print(pd.DataFrame(rows).groupby(["d", "cloud"])["dimension"].agg(["mean", "std"]))


# Verdicts


def judge(_: argparse.Namespace) -> None:
    """Write what the criteria say of each model, and print it."""
    rows = pd.read_csv(COURSES)
    has_value = (rows["n"] >= FEWEST) & (rows["near_duplicates"] <= NEAR)
    rows["dimension"] = rows["dimension"].where(has_value)
    index = ["vocabulary", "positions", "block", "cloud", "seed"]
    by_step = rows.pivot_table("dimension", index, "step", dropna=False)
    change = np.log(by_step[STEPS[-1]] / by_step[STEPS[0]]).dropna()
    levels = by_step.groupby(level=index[:-1]).mean()
    after_warm_up = np.log(by_step[STEPS[-1]] / by_step[STEPS[1]]).dropna()
    later = after_warm_up.groupby(level=index[:-1]).agg(sign).rename(f"from {STEPS[1]}")
    signs = change.groupby(level=index[:-1]).agg([sign, "count", "min", "max"])
    table = levels.join(signs, how="inner").rename(columns={"sign": "verdict", "count": "seeds"})
    table[["min", "max"]] = np.expm1(table[["min", "max"]])
    table = table.join(later)
    table.reset_index().to_csv(SIGNS, index=False, float_format="%.4g")
    print(table.to_string(float_format="%.3g"))
    for line in (*_of_pairs(change), *_of_difference(rows), *_of_grid()):
        print(line)


def sign(changes: pd.Series) -> str:
    """Say whether changes of all seeds are above, below or within the margin of 10%."""
    if (changes > MARGIN).all():
        return "rises"
    if (changes < -MARGIN).all():
        return "falls"
    return "absent" if (changes.abs() <= MARGIN).all() else "undecided"


def _of_pairs(change: pd.Series) -> Iterator[str]:
    """Say how far all and inputs change alike, with rotary positions."""
    by_cloud = change.unstack("cloud").xs("rotary", level="positions")
    gap = (by_cloud["all"] - by_cloud["inputs"]).dropna().abs()
    alike = int((gap < np.log(1.25)).sum())
    yield f"rotary: all and inputs change alike in {alike} of {len(gap)} cells; {gap.max():.3f}"


def _of_difference(rows: pd.DataFrame) -> Iterator[str]:
    """Say in how many cells inputs differ from all vectors, by how often the same input is nearest;
    criterion 6 of the first ones."""
    cell = ["vocabulary", "positions", "seed", "step", "block"]
    by_cloud = rows.pivot_table(["dimension", "same_input"], cell, "cloud")
    change = (by_cloud["dimension"]["inputs"] / by_cloud["dimension"]["all"] - 1).abs().dropna()
    same = by_cloud["same_input"]["all"].loc[change.index]
    often = change.where(same > 0.2).dropna()
    rarely = change.where(same < 0.05).dropna()
    yield f"same input above 0.2: over 25% apart in {(often > 0.25).sum()} of {len(often)}"
    yield f"same input below 0.05: under 15% apart in {(rarely < 0.15).sum()} of {len(rarely)}"


def _of_grid() -> Iterator[str]:
    if not GRID.exists():
        return
    means = pd.read_csv(GRID).groupby(["d", "cloud"])["dimension"].mean().unstack()
    for d, values in means.iterrows():
        allowed = 3 * values["gaussian"] / N**0.5
        gap = values["pairs"] - values["gaussian"]
        yield f"grid, d = {d}: {gap:+.2f} from {values['gaussian']:.2f}, allowed {allowed:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=["courses", "grid", "judge"])
    parser.add_argument("--data", type=Path, help="folder with the text")
    parser.add_argument("--text", type=Path, help="another text (default: that in DATA)")
    names = [f"{n_tokens}-{positions}" for n_tokens, positions in MODELS]
    parser.add_argument("--only", nargs="+", choices=names, help="models (default: all)")
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2))
    options = parser.parse_args()
    torch.set_num_threads(1)
    {"courses": courses, "grid": grid, "judge": judge}[options.study](options)


if __name__ == "__main__":
    main()
