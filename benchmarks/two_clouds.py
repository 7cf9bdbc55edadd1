"""Draw two trainings, each measured on two clouds of the same layers: two stories of a dimension.

A byte-level GPT-2 with learned positions and a rotary GPT-NeoX, 4 blocks of 64 dimensions, are
trained for 200 steps on the language reference that ships with Python. TwoNN of each block is
measured on all vectors and on one vector of each distinct input (a token at a position), both
drawn from the same windows at the same checkpoints.

    OMP_NUM_THREADS=1 nice -n 19 python benchmarks/two_clouds.py

Made on 2026-11-29 by this command, in three minutes of one core, from seed 0: AdamW at 0.001,
16 windows of 80 bytes a step; 8 vectors of each of 512 held-out windows, and 2,048 distinct inputs.
Writes two_clouds.csv and two_clouds.png to docs/neighbours; --redraw draws the committed rows.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pandas as pd
import torch
from matplotlib.axes import Axes

from repdyn import Probe, Tracker, open_store
from repdyn.data.tokens import byte_tokenizer
from repdyn.models import build_model
from repdyn.probe.corpus import builtin_corpus

MODELS = {"gpt2": "learned positions (GPT-2)", "gpt_neox": "rotary positions (GPT-NeoX)"}
"""Titles by the family of the model."""
LENGTH = 80
BATCH = 16
SEED = 0
STEPS = (0, 5, 10, 20, 40, 70, 100, 150, 200)
COLUMNS = [
    *("run", "step", "layer", "metric", "subset", "value", "low", "high", "n_vectors"),
    *("same_token_fraction", "same_input_fraction", "reason"),
]
CLOUDS = {
    "all": ("#0072B2", "-", "all vectors"),
    "distinct_inputs": ("#D55E00", "--", "one vector of each distinct input"),
}
FRACTIONS = {
    "same_token_fraction": ("0.6", "same token"),
    "same_input_fraction": ("0.1", "same token at the same position"),
}


def texts() -> tuple[torch.Tensor, str]:
    """Return the first nine tenths of the text as tokens, and the last tenth as it is."""
    data = builtin_corpus().data
    end = len(data) * 9 // 10
    training = byte_tokenizer()(data[:end].decode(errors="ignore"), add_special_tokens=False)
    return torch.tensor(training["input_ids"]), data[end:].decode(errors="ignore")


def train(family: str, store: Path, tokens: torch.Tensor, held_out: str) -> None:
    """Train a model of a family, and measure it at the scheduled steps."""
    tokenizer = byte_tokenizer()
    probe = Probe.from_texts([held_out], tokenizer, sequence_length=LENGTH, max_vectors=4096)
    torch.manual_seed(SEED)
    model = build_model(
        family,
        vocab_size=len(tokenizer),
        hidden_size=64,
        n_layers=4,
        n_heads=4,
        context_length=LENGTH,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tracker = Tracker(model, probe, schedule=[*STEPS], metrics=["two_nn"], store=store, run=family)
    with tracker:
        for _ in range(STEPS[-1]):
            starts = torch.randint(len(tokens) - LENGTH, (BATCH,))
            batch = torch.stack([tokens[start : start + LENGTH] for start in starts.tolist()])
            loss = model(input_ids=batch, labels=batch).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            tracker.step(loss=loss)


def block_means(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the means over the blocks by step."""
    blocks = rows.query("layer > 0")
    names = ["value", "low", "high", *FRACTIONS]
    return pd.DataFrame(blocks.astype(dict.fromkeys(names, float)).groupby("step")[names].mean())


def draw_dimension(panel: Axes, rows: pd.DataFrame) -> None:
    """Draw the dimension on both clouds, each with its first and last value."""
    by_cloud = {subset: block_means(rows.query(f"subset == '{subset}'")) for subset in CLOUDS}
    highest = pd.concat([means["value"] for means in by_cloud.values()], axis="columns").max(axis=1)
    for subset, (colour, dash, label) in CLOUDS.items():
        means = by_cloud[subset]
        look = {"color": colour, "linestyle": dash, "marker": "o", "markersize": 4}
        panel.plot(means.index, means["value"], label=label, linewidth=2, **look)
        panel.fill_between(means.index, means["low"], means["high"], color=colour, alpha=0.15)
        for step, beside in ((means.index[0], -6), (means.index[-1], 6)):
            value = means["value"].loc[step]
            panel.annotate(
                f"{value:.1f}",
                (step, value),
                xytext=(beside, 0),
                textcoords="offset points",
                ha="right" if beside < 0 else "left",
                va="bottom" if value == highest.loc[step] else "top",
                color=colour,
                weight="bold",
            )


def draw(rows: pd.DataFrame, path: Path) -> None:
    """Draw a column for each model: the dimension, and below it what the nearest neighbour is."""
    figure, panels = plt.subplots(
        2, len(MODELS), figsize=(9, 5.6), sharex=True, sharey="row", height_ratios=(2.4, 1)
    )
    for (upper, lower), (family, title) in zip(panels.T, MODELS.items(), strict=True):
        of_run = rows.query(f"run == '{family}'")
        draw_dimension(upper, of_run)
        upper.set_title(title, loc="left")
        means = block_means(of_run.query("subset == 'all'"))
        for name, (colour, label) in FRACTIONS.items():
            lower.plot(
                means.index, means[name], color=colour, marker="o", markersize=3, label=label
            )
        lower.set_xscale("symlog", linthresh=5)
        lower.set_xticks(STEPS[:-3] + STEPS[-1:], [f"{step}" for step in STEPS[:-3] + STEPS[-1:]])
        lower.set(xlabel="training step", ylim=(0, 1.05))
        for panel in (upper, lower):
            panel.spines[["top", "right"]].set_visible(False)
            panel.grid(color="0.92")
    panels[0, 0].set_ylabel("intrinsic dimension (TwoNN),\nmean over the 4 blocks")
    panels[0, 0].set_ylim(0, 29)
    panels[0, 0].set_xlim(-2, 400)
    panels[1, 0].set_ylabel("fraction of all vectors\nwhose nearest is")
    panels[0, 1].legend(frameon=False, loc="upper right")
    panels[1, 1].legend(frameon=False, loc="center right")
    figure.suptitle(
        "The same checkpoints, two clouds of the same layers: where the nearest neighbour is the\n"
        "same input again, the dimension of all vectors tells another story",
        fontsize=11,
        x=0.01,
        ha="left",
    )
    figure.tight_layout()
    figure.savefig(path, dpi=140)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    folder = Path(__file__).parents[1] / "docs" / "neighbours"
    parser.add_argument("--output", type=Path, default=folder, help="folder of both files")
    parser.add_argument("--redraw", action="store_true", help="draw the rows that are there")
    options = parser.parse_args()
    table = options.output / "two_clouds.csv"
    if not options.redraw:
        tokens, held_out = texts()
        with tempfile.TemporaryDirectory() as store:
            for family in MODELS:
                train(family, Path(store), tokens, held_out)
            rows = open_store(store).to_pandas()
        rows = rows.query("metric == 'two_nn'").sort_values(["run", "step", "subset", "layer"])
        options.output.mkdir(parents=True, exist_ok=True)
        rows[COLUMNS].to_csv(table, index=False, float_format="%.5g")
    draw(pd.read_csv(table), options.output / "two_clouds.png")
    print(options.output / "two_clouds.png")


if __name__ == "__main__":
    main()
