"""Tables and figures of the sampling study, from the values in its folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from repdyn.probe.design import INDEPENDENT
from repdyn.utils.files import write_atomically
from sampling.study import METRICS, Value, coverage

_KEYS = ["model", "layer"]
_COLUMNS = 3


def write_report(folder: Path, facts: Mapping[str, str]) -> list[Path]:
    """Write tables.md and two figures next to designs.csv and values.csv.

    Args:
        folder: of the study.
        facts: where, when and with what it ran, by name.

    Returns:
        The files written.
    """
    designs, values = pd.read_csv(folder / "designs.csv"), pd.read_csv(folder / "values.csv")
    designs = relative_to_reference(designs)
    heading = "# The sampling study: tables\n\n" + "".join(f"- {name}: {fact}\n" for name, fact in facts.items())
    text = "\n".join([heading, _default_table(values), _design_table(designs), _metric_table(values)])
    write_atomically(folder / "tables.md", lambda path: path.write_text(text, encoding="utf-8"))
    draw_designs(designs, folder / "designs.png")
    draw_shares(designs, folder / "same_window.png")
    return [folder / name for name in ("tables.md", "designs.png", "same_window.png")]


def relative_to_reference(designs: pd.DataFrame) -> pd.DataFrame:
    """Add the reference of each row and the relative deviation from it.

    The reference takes one vector of each window, at the same window length where that was measured, otherwise at the
    default's.
    """
    n = designs["n_vectors"] == 4096
    reference = designs[(designs["vectors_per_window"] == 1) & n].set_index([*_KEYS, "window_tokens"])["two_nn"]
    default = min(INDEPENDENT.window_tokens or 64, int(designs["window_tokens"].max()))
    found = [
        reference.get((model, layer, length), reference.get((model, layer, default), np.nan))
        for model, layer, length in zip(*(designs[name] for name in (*_KEYS, "window_tokens")), strict=True)
    ]
    return designs.assign(reference=found, deviation=designs["two_nn"] / np.array(found) - 1)


def _default_table(values: pd.DataFrame) -> str:
    """Return a table of the default probe, four batches, against one vector of each window, block by block."""
    rows = ["## The default design against one vector per window (TwoNN, mean over blocks and worst block)", ""]
    rows += ["| model | default | one per window | dense | mean deviation | largest | dense, mean deviation |"]
    rows += ["|---|---|---|---|---|---|---|"]
    two_nn = values[values["metric"] == "two_nn"]
    for model, of_model in two_nn.groupby("model", sort=False):
        means = of_model.groupby(["design", "layer"])["value"].mean().unstack("design")
        if "one vector per window" not in means or means["independent"].isna().all():
            reason = "no reference" if "one vector per window" not in means else "not comparable: near duplicates"
            rows.append(f"| {model} | {reason} | | | | | |")
            continue
        off = means["independent"] / means["one vector per window"] - 1
        dense = means["dense"] / means["one vector per window"] - 1
        rows.append(
            f"| {model} | {means['independent'].mean():.2f} | {means['one vector per window'].mean():.2f} | "
            f"{means['dense'].mean():.2f} | {off.mean():+.1%} | {off.loc[off.abs().idxmax()]:+.1%} | "
            f"{dense.mean():+.0%} |"
        )
    return "\n".join(rows) + "\n"


def _design_table(designs: pd.DataFrame) -> str:
    """Return a table of every cell, mean over blocks."""
    rows = ["## Every design (TwoNN, mean over blocks; deviation from one vector per window)", ""]
    rows += ["| model | window | per window | n | own window | TwoNN | mean deviation | largest | same-window share |"]
    rows += ["|---|---|---|---|---|---|---|---|---|"]
    keys = ["model", "window_tokens", "vectors_per_window", "n_vectors", "own_window_excluded"]
    for (model, length, share, n, excluded), cell in designs.groupby(keys, sort=False):
        worst = cell["deviation"].loc[cell["deviation"].abs().idxmax()] if cell["deviation"].notna().any() else np.nan
        rows.append(
            f"| {model} | {length} | {share} | {n} | {'left out' if excluded else 'counted'} | "
            f"{cell['two_nn'].mean():.2f} | {cell['deviation'].mean():+.1%} | {worst:+.1%} | "
            f"{cell['same_window_share'].mean():.1%} |"
        )
    return "\n".join(rows) + "\n"


def _metric_table(values: pd.DataFrame) -> str:
    """Return a table of the deviation by dense sampling and the coverage of intervals for each metric."""
    models = list(values["model"].unique())
    rows = ["## Every metric: deviation from independent points, and coverage of the 95 % interval", ""]
    rows += ["Deviation: mean over blocks and models of |value / value on one vector per window - 1|.", ""]
    rows += ["| metric | default | dense | coverage | " + " | ".join(models) + " |"]
    rows += ["|---|---|---|---|" + "---|" * len(models)]
    fresh = values[values["design"] == "independent"]
    covered = {model: coverage(_as_values(of_model)) for model, of_model in fresh.groupby("model", sort=False)}
    for metric in METRICS:
        means = (
            values[values["metric"] == metric].groupby(["design", "model", "layer"])["value"].mean().unstack("design")
        )
        off = {
            name: (means[name] / means["one vector per window"] - 1).abs().mean() for name in ("independent", "dense")
        }
        found = [covered.get(model, {}).get(metric) for model in models]
        counted = [share for share in found if share is not None]
        overall = sum(share * n for share, n in counted) / max(1, sum(n for _, n in counted))
        cells = ["" if share is None else f"{share[0]:.0%}" for share in found]
        rows.append(
            f"| {metric} | {off['independent']:.1%} | {off['dense']:.1%} | {overall:.1%} | " + " | ".join(cells) + " |"
        )
    return "\n".join(rows) + "\n"


def _as_values(table: pd.DataFrame) -> list[Value]:
    return [Value(**row) for row in table.to_dict("records")]


def _grid_of_models(models: list[str]) -> tuple[plt.Figure, list[plt.Axes]]:
    n_rows = -(-len(models) // _COLUMNS)
    figure, axes = plt.subplots(n_rows, _COLUMNS, figsize=(10, 2.6 * n_rows), layout="constrained", squeeze=False)
    for panel in axes.ravel()[len(models) :]:
        panel.set_visible(False)
    return figure, list(axes.ravel())


def draw_designs(designs: pd.DataFrame, path: Path) -> None:
    """Draw the dimension, mean over blocks, against vectors per window, one panel for each model."""
    length = int(designs.loc[designs["vectors_per_window"] > 1, "window_tokens"].mode()[0])
    chosen = designs[(designs["window_tokens"] == length) & (designs["n_vectors"] == 4096)]
    models = list(chosen["model"].unique())
    figure, panels = _grid_of_models(models)
    for panel, model in zip(panels, models, strict=False):
        of_model = chosen[chosen["model"] == model]
        means = of_model.groupby(["own_window_excluded", "vectors_per_window"])["two_nn"].mean()
        reference = means[True, 1]
        panel.axhspan(0.9 * reference, 1.1 * reference, color="0.92")
        panel.axhline(reference, color="0.4", linewidth=1)
        styles = {False: ("#D55E00", "own window counted"), True: ("#0072B2", "own window left out")}
        for excluded, (colour, label) in styles.items():
            curve = means.get(excluded)
            if curve is not None:
                curve = curve if excluded else pd.concat([pd.Series({1: reference}), curve])
                panel.plot(curve.index, curve.to_numpy(), color=colour, marker="o", markersize=4, label=label)
        panel.axvline(INDEPENDENT.vectors_per_window or 1, color="0.4", linewidth=0.8, linestyle=":")
        panel.set(
            title=model, xscale="log", ylim=(0, None), xlabel="vectors per window", ylabel="TwoNN, mean over blocks"
        )
        panel.set_xticks(shares := sorted(chosen["vectors_per_window"].unique()), [str(share) for share in shares])
        panel.minorticks_off()
    panels[0].legend(frameon=False, fontsize=8)
    figure.suptitle(f"Dense windows deflate the dimension (windows of {length} tokens, n = 4,096; grey: ± 10%)")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def draw_shares(designs: pd.DataFrame, path: Path) -> None:
    """Draw the deviation from independent points against the share of same-window neighbours, block by block."""
    chosen = designs[(designs["n_vectors"] == 4096) & (designs["vectors_per_window"] > 1)]
    figure, panel = plt.subplots(figsize=(6.5, 4.2), layout="constrained")
    panel.axhspan(-0.1, 0.1, color="0.92")
    for excluded, colour, label in ((False, "#D55E00", "own window counted"), (True, "#0072B2", "own window left out")):
        cells = chosen[chosen["own_window_excluded"] == excluded]
        panel.scatter(cells["same_window_share"], cells["deviation"], s=9, color=colour, alpha=0.6, label=label)
    panel.set(
        xlabel="share of vectors whose nearest neighbour is in their own window",
        ylabel="TwoNN / TwoNN of independent points - 1",
        title="The more own-window neighbours count, the lower the estimate",
    )
    panel.legend(frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
