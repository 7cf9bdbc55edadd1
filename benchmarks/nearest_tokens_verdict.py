"""Judge the tables of nearest_tokens.py by docs/neighbours/criteria.md.

    python benchmarks/nearest_tokens_verdict.py

Writes docs/neighbours/verdict.csv: for each criterion in how many cells it holds, and which fail. A
cell is a model, a step and a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

FOLDER = Path(__file__).parents[1] / "docs" / "neighbours"
LENGTH = 80
"""Tokens of a window of the main text."""
FEWEST = 512
"""Least number of types that are judged."""
CELL = ["model", "step", "block"]
MAIN_TEXT = "wikipedia"
Line = dict[str, object]


def line(criterion: str, cells: pd.Series) -> Line:
    """Say in how many cells a criterion holds, and where it does not."""
    failing = cells.index[~cells]
    return {
        "criterion": criterion,
        "cells": len(cells),
        "holding": int(cells.sum()),
        "failed": "; ".join("/".join(map(str, cell)) for cell in failing),
    }


@dataclass(frozen=True)
class Tables:
    """The rows of all studies of models, and their means by cell and cloud on the main text."""

    tiny: pd.DataFrame
    value: pd.DataFrame
    spread: pd.DataFrame
    std_error: pd.DataFrame
    same_input: pd.DataFrame
    same_token: pd.DataFrame
    size: pd.DataFrame

    @classmethod
    def read(cls) -> Tables:
        """Read the studies of tiny models and of published weights."""
        tiny = pd.read_csv(FOLDER / "tiny.csv")
        tiny["model"] = tiny.vocabulary.astype(str) + " tokens, positions " + tiny.positions
        published = pd.read_csv(FOLDER / "pretrained.csv")
        published = published.assign(step=10**6, text=MAIN_TEXT, length=LENGTH)
        rows = pd.concat([tiny, published])
        # the last cloud of a cell; a study that was ended early leaves cells without it
        complete = rows.query("cloud == 'gaussian, plain'").set_index(CELL).index
        rows = rows[rows.set_index(CELL).index.isin(complete)]
        is_main = (rows.text == MAIN_TEXT) & (rows.length == LENGTH)
        by_cloud = rows[is_main].groupby([*CELL, "cloud"])
        return cls(
            tiny=tiny,
            value=by_cloud.dimension.mean().unstack(),
            spread=by_cloud.dimension.std().unstack(),
            std_error=by_cloud.std_error.mean().unstack(),
            same_input=by_cloud.same_input.mean().unstack(),
            same_token=by_cloud.same_token.mean().unstack(),
            size=by_cloud.n.mean().unstack(),
        )

    @property
    def is_trained(self) -> np.ndarray:
        """Return (n_cells,) bool: whether the model of a cell was trained."""
        return self.value.index.get_level_values("step") > 0

    def change(self, cloud: str, other: str) -> pd.Series:
        """Return by how much the value of a cloud differs from that of another, as a fraction."""
        return self.value[cloud] / self.value[other] - 1


def known_dimension() -> Iterator[Line]:
    """Judge criterion 1, by the clouds of known dimension."""
    rows = pd.read_csv(FOLDER / "synthetic.csv")
    means = rows.groupby(["d", "cloud"]).agg(n=("n", "mean"), dimension=("dimension", "mean"))
    value = means.dimension.unstack()
    n_types = means.n.unstack()["one of each type"]
    dimension = value.index.to_series()
    allowed = 3 * dimension / n_types**0.5
    for name in ("one of each type", "without the same token", "second of a third token"):
        holds = (value[name] - value["without repeats"]).abs() <= allowed
        yield line(f"1 known dimension: {name} within 3 d / sqrt(n)", _named(holds))
    is_low = value["today"] < dimension / 2
    yield line("1 known dimension: today below d / 2", _named(is_low))


def reach_and_draw(tables: Tables) -> Iterator[Line]:
    """Judge criteria 2 and 3: enough distinct inputs, whichever occurrence is drawn."""
    yield line("2 reach: at least 2,000 inputs measured", tables.size["inputs"] >= 2000)
    for name in ("inputs", "types"):
        is_large = tables.size[name] >= FEWEST
        is_close = tables.spread[name] / tables.value[name] <= 0.05
        yield line(f"3 draw: sd of {name} at most 5%", is_close[is_large])


def number_and_length(tables: Tables) -> Iterator[Line]:
    """Judge criteria 4 and 5: the number of vectors and the length of windows."""
    change = tables.change("inputs", "inputs, 1024").abs()[tables.is_trained]
    plain = tables.change("plain", "plain, 1024").abs()[tables.is_trained]
    medians = f"medians {change.median():.3f}, plain {plain.median():.3f}"
    yield line(f"4 n: 1,024 to 2,048 at most 10% ({medians})", change <= 0.1)
    is_on_main_text = tables.tiny.text == MAIN_TEXT
    on_main_text = tables.tiny[is_on_main_text]
    lengths = on_main_text.groupby([*CELL, "length", "cloud"]).dimension.mean().unstack()
    of_inputs = _range(lengths["inputs, 1024"])
    of_all = _range(lengths["plain, 1024"])
    later = of_inputs.index.get_level_values("step") > 0
    holds = ((of_inputs <= 0.2) | (of_inputs <= of_all))[later]
    medians = f"medians {of_inputs[later].median():.3f}, plain {of_all[later].median():.3f}"
    yield line(f"5 length: range at most 20% or today's ({medians})", holds)


def _range(values: pd.Series) -> pd.Series:
    """Return the range over lengths of windows, as a fraction of the mean."""
    by_length = values.unstack("length").dropna()
    return (by_length.max(axis=1) - by_length.min(axis=1)) / by_length.mean(axis=1)


def difference(tables: Tables) -> Iterator[Line]:
    """Judge criterion 6: another value only where today's is that of equal inputs."""
    change = tables.change("inputs", "plain").abs()
    is_often = tables.same_input["today"] > 0.2
    is_rare = tables.same_input["today"] < 0.05
    yield line("6 differs by over 25% where same input > 0.2", (change > 0.25)[is_often])
    yield line("6 differs by under 15% where same input < 0.05", (change < 0.15)[is_rare])


def null_models(tables: Tables) -> Iterator[Line]:
    """Judge criterion 7: a Gaussian of the same covariance, and shuffled text."""
    gaussian = tables.value["gaussian, plain"]
    gap = (tables.value["gaussian, inputs"] - gaussian).abs()
    allowed = 3 * gaussian / tables.size["gaussian, plain"] ** 0.5
    yield line("7a Gaussian: labels alone do nothing", gap <= allowed)
    is_text = (tables.tiny.length == LENGTH) & (tables.tiny.cloud == "inputs, 1024")
    by_text = tables.tiny[is_text].groupby([*CELL, "text"]).dimension.mean().unstack().dropna()
    ratio = (by_text[MAIN_TEXT] / by_text[f"{MAIN_TEXT}, shuffled"]).map(np.log).abs()
    is_random = ratio.index.get_level_values("step") == 0
    is_learned = ratio.index.get_level_values("model").str.endswith("learned")
    is_alike = (ratio < np.log(1.25))[is_random & is_learned]
    yield line("7b random weights: shuffled within 1.25", is_alike)
    upper = tables.value["inputs"] + 2.8 * tables.std_error["inputs"]
    is_below = (upper < gaussian)[tables.is_trained]
    yield line("7c trained: below the Gaussian by its interval", is_below)


def training(tables: Tables) -> Iterator[Line]:
    """Judge criterion 8: one story over vocabularies."""
    is_learned = tables.value.index.get_level_values("model").str.endswith("learned")
    for name in ("inputs", "today", "plain"):
        by_step = tables.value[is_learned][name].unstack("step").dropna(subset=[0, 300])
        yield line(f"8 falls from 0 to 300: {name}", by_step[300] < by_step[0])


def types(tables: Tables) -> Iterator[Line]:
    """Judge the criteria of types, and what would count against distinct inputs."""
    change = tables.change("types", "inputs").abs() > 0.25
    is_large = tables.size["types"] >= FEWEST
    is_same_token = tables.same_token["inputs"] > 0.3
    yield line(
        "types 4: differ from inputs by over 25% where same token > 0.3",
        change[is_large & is_same_token],
    )
    is_same_input = tables.same_input["today"] > 0.2
    yield line(
        "against: types differ from inputs by over 25% where same input > 0.2",
        change[is_same_input & is_large],
    )
    half = tables.change("types, half", "types").abs()
    yield line("types 3: half of them within 15%", (half <= 0.15)[is_large])
    third = tables.change("today, second of a third token", "types").abs()
    yield line("third token: within 15% of types", (third < 0.15)[is_large])


def rules(tables: Tables) -> Iterator[Line]:
    """Judge the ways to draw: which positions, and whether the own window counts."""
    sampled = "inputs among the sampled"
    change = tables.change(sampled, "inputs, as many as among the sampled").abs()
    allowed = np.maximum(0.1, 3 / tables.size[sampled] ** 0.5)
    yield line("positions: all or sampled agree", change <= allowed)
    for name in ("inputs", "inputs, at most 80 of a window", "inputs, at most 4 of a window"):
        with_own = tables.change(f"{name}, own window allowed", name).abs()
        yield line(f"own window: {name}, changes by at most 5%", with_own <= 0.05)


def coverage() -> Iterator[Line]:
    """Judge criterion 9, by the probes of other windows."""
    rows = pd.read_csv(FOLDER / "coverage.csv").set_index(["model", "block", "cloud"])
    is_enough = rows.n >= FEWEST
    rows = rows[is_enough]
    for cloud in ("inputs", "types"):
        if cloud in rows.index.get_level_values("cloud"):
            yield _covered(cloud, rows.xs(cloud, level="cloud"))


def _covered(cloud: str, rows: pd.DataFrame) -> Line:
    """Say how often intervals hold the mean over probes and the value of another probe."""
    in_mean = []
    in_other = []
    ratios = []
    # Student's t of 63 degrees of freedom
    half_width = 1.998 * np.sqrt(2)
    for _, probes in rows.groupby(level=[0, 1]):
        values = probes.dimension.to_numpy()
        errors = probes.std_error.to_numpy()
        in_mean.append(np.abs(values - values.mean()) <= 1.96 * errors)
        gaps = np.abs(values[:, None] - values)
        inside = gaps <= half_width * errors[:, None]
        in_other.append(inside[~np.eye(len(values), dtype=bool)])
        ratios.append(float(errors.mean() / values.std(ddof=1)))
    share_of_means = np.concatenate(in_mean).mean()
    share_of_others = np.concatenate(in_other).mean()
    return {
        "criterion": (
            f"9 coverage of {cloud}: mean {share_of_means:.3f}, another probe "
            f"{share_of_others:.3f}, std_error / spread {np.mean(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f})"
        ),
        "cells": len(ratios),
        "holding": int(sum(0.75 <= ratio <= 1.35 for ratio in ratios)),
        "failed": "",
    }


def _named(cells: pd.Series) -> pd.Series:
    """Return cells of one index level as those of several are, for :func:`line`."""
    return cells.set_axis(pd.MultiIndex.from_arrays([cells.index]))


def verdicts() -> Iterator[Line]:
    """Judge all criteria in their order."""
    tables = Tables.read()
    yield from known_dimension()
    yield from reach_and_draw(tables)
    yield from number_and_length(tables)
    yield from difference(tables)
    yield from null_models(tables)
    yield from training(tables)
    yield from types(tables)
    yield from rules(tables)
    yield from coverage()


if __name__ == "__main__":
    pd.DataFrame(verdicts()).to_csv(FOLDER / "verdict.csv", index=False)
