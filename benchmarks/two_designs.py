"""Draw one training run measured by two sampling designs: its dimension and anisotropy by step, in
one figure.

    python benchmarks/two_designs.py --run decoder docs/runs/decoder docs/sampling/decoder_dense \\
        --run encoder docs/runs/encoder docs/sampling/encoder_dense \\
        --output docs/sampling/two_designs.png

Each --run names a title, the store of the default design and that of the dense one, as
benchmarks/remeasure.py makes them. The curves are means over the blocks that have a value at most
steps; the band is the mean of the blocks' 95% intervals, which bounds that of the mean.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

from repdyn import open_store

_STYLES = {"independent": ("#004C7F", "independent vectors"), "dense": ("#E8820C", "dense windows")}
_METRICS = {"two_nn": "intrinsic dimension (TwoNN)", "anisotropy": "anisotropy"}


def block_mean(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return value, low and high by step: means over the blocks that have a value at most steps."""
    chosen = rows[(rows["metric"] == metric) & (rows["subset"] == "all") & (rows["layer"] > 0)]
    values = chosen.pivot_table("value", "layer", "step", dropna=False).astype(float)
    is_mostly_there = values.notna().mean(axis=1) > 0.5
    blocks = values[is_mostly_there]
    steps = blocks.columns[blocks.notna().all()]
    shared = chosen[chosen["layer"].isin(blocks.index) & chosen["step"].isin(steps)]
    return shared.groupby("step")[["value", "low", "high"]].mean()


def draw(panel: Axes, stores: dict[str, pd.DataFrame], metric: str) -> None:
    """Draw the curves of both designs."""
    for design, rows in stores.items():
        means = block_mean(rows, metric)
        colour, label = _STYLES[design]
        panel.plot(means.index, means["value"], color=colour, marker="o", markersize=3, label=label)
        if means["low"].notna().all():
            panel.fill_between(
                means.index,
                means["low"].astype(float),
                means["high"].astype(float),
                color=colour,
                alpha=0.2,
            )
    panel.set_xscale("symlog", linthresh=1)
    panel.set_ylim(0, None)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--run", nargs=3, action="append", required=True, metavar=("TITLE", "DEFAULT", "DENSE")
    )
    parser.add_argument("--output", type=Path, required=True, help="the figure, a PNG")
    options = parser.parse_args()
    metrics = list(_METRICS)
    figure, panels = plt.subplots(
        len(metrics) + 1,
        len(options.run),
        figsize=(4.6 * len(options.run), 7.4),
        sharex=True,
        sharey="row",
        squeeze=False,
    )
    for column, (title, *paths) in enumerate(options.run):
        stores = {
            name: open_store(path).to_pandas() for name, path in zip(_STYLES, paths, strict=True)
        }
        for panel, metric in zip(panels[:, column], metrics, strict=False):
            draw(panel, stores, metric)
        losses = stores["independent"]
        losses = losses.query("metric == 'train/loss'").sort_values("step")
        panels[-1, column].plot(
            losses["step"], losses["value"], color="0.3", marker="o", markersize=3
        )
        panels[-1, column].set(xlabel="step", ylim=(0, None))
        panels[0, column].set_title(title)
    for panel, label in zip(
        panels[:, 0], [*_METRICS.values(), "training loss (nats per token)"], strict=True
    ):
        panel.set_ylabel(label)
    panels[0, 0].legend(frameon=False)
    figure.suptitle(
        "The same checkpoints, sampled in two ways: only dense windows show a rise of the "
        "decoder's dimension",
        fontsize=11,
    )
    figure.tight_layout()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.output, dpi=140)
    print(options.output)


if __name__ == "__main__":
    main()
