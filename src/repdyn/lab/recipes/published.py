"""Values per layer and checkpoint that others published, beside those of a run;
docs/reproduce.md#published-values.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from repdyn.metrics import metric_info, resolve
from repdyn.probe.design import INDEPENDENT, SUBSETS
from repdyn.store.schema import FINISHED
from repdyn.utils.files import safe_file_name, write_atomically
from repdyn.views.charts.axes import axis_of_lines
from repdyn.views.charts.description import Axis, Chart, Line, Panel
from repdyn.views.charts.lines import notes, step_colours
from repdyn.views.charts.on_matplotlib import draw, save
from repdyn.views.display import display_of
from repdyn.views.tables.runs import MeasuredRun
from repdyn.views.tables.style import metric_title, short_subset_title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_VALUES = Path(__file__).with_name("published.parquet")
_PANEL = (6.4, 4.2)
_N_TOKENS = 10_000
_LAST = 143_000
"""The step of Pythia that its branch ``main`` holds."""


class Quantity(NamedTuple):
    """Maps a published quantity to a metric, and names where the two differ."""

    metric: str
    """Name with settings and subset; {k} is the scale that the source chose."""
    n_vectors: int | None = None
    """Number of vectors that the value depends on; None where it hardly does."""
    add: float = 0.0
    """To be added to a published value."""
    differs: str = ""
    """What differs although the values are drawn beside each other."""
    refused: str = ""
    """Why they are not."""


_LAST_TOKENS = (
    "theirs are last tokens of whole texts of the Pile with the model in 8 bit, mean over five "
    "disjoint sets; they lack the embedding output, and their last layer, after the final norm, is "
    "left out"
)
QUANTITIES = {
    "gride": Quantity("gride_32[k={k}]@last_token", _N_TOKENS, differs=_LAST_TOKENS),
    "pr": Quantity("participation_ratio@last_token", _N_TOKENS, differs=_LAST_TOKENS),
    "pca99": Quantity(
        "components_99@last_token",
        _N_TOKENS,
        add=1.0,
        differs=(
            "theirs count the directions before 99% is reached, one less, which is added; "
            f"{_LAST_TOKENS}"
        ),
    ),
    "renyi2_prompt_entropy": Quantity(
        "prompt_entropy[order=2]",
        differs=(
            "theirs are whole paragraphs of WikiText-103 in bfloat16, of up to 2,048 tokens: the "
            "shape compares, the number does not; their last layer, after the final norm, is left "
            "out"
        ),
    ),
    "renyi2_prompt_entropy_nats": Quantity(
        "prompt_entropy[order=2]",
        refused="it is in nats, and the share of the largest possible entropy is compared",
    ),
    "prompt_entropy": Quantity(
        "prompt_entropy[order=1]",
        refused="it is of the short texts of MTEB, whose lengths decide the value",
    ),
    "lidar": Quantity(
        "",
        refused="its views of a text come from an augmenter, where the metric lidar takes vectors",
    ),
    "dime": Quantity(
        "",
        refused="its views of a text come from an augmenter, where the metric dime takes vectors",
    ),
}
"""How each published quantity is measured here: the one place that decides what is drawn beside
what.
"""
_ASKED = {
    "quantity": "quantities",
    "subset": "tokens",
    "n_vectors": "vectors in a batch",
    "n_layers": "last layers",
}
"""Columns in which rows must agree with what is published, in the order in which they are looked
at.
"""


@cache
def published_values() -> pd.DataFrame:
    """Return all published values: source, model, revision, layer, metric, value, data, note, and
    the scale k.
    """
    values = pd.read_parquet(_VALUES)
    is_last = (values["revision"] == "main") & values["model"].str.startswith("pythia")
    scales = values["note"].str.extract(r"k=(\d+)")[0].fillna("")
    return values.assign(revision=values["revision"].mask(is_last, f"step{_LAST}"), k=scales)


class Comparison(NamedTuple):
    """One run beside what is published of its model."""

    run: MeasuredRun
    values: pd.DataFrame
    """The run's rows of each quantity and checkpoint that agree (columns quantity and label), with
    value_published (NaN at a layer that has none), source and note."""
    sentences: list[str]
    """What differs of quantities that are drawn, and why others are not."""

    def table(self) -> pd.DataFrame:
        """Return own and published value of each layer and checkpoint, with their names."""
        columns = ["run", "revision", "layer", "metric", "subset", "value", "low", "high", "source"]
        known = self.values.dropna(subset="value_published")
        return known.loc[:, [*columns, "value_published", "note"]]

    def draw(self) -> Figure:
        """Draw a panel for each quantity: own curves over layers by checkpoint, published values as
        diamonds.
        """
        panels = []
        for _, drawn in self.values.groupby("quantity", sort=False):
            lines = []
            by_checkpoint = drawn.groupby("label", sort=False)
            for (label, cells), colour in zip(
                by_checkpoint, step_colours(by_checkpoint.ngroups), strict=True
            ):
                names = ("layer", "value", "low", "high", "value_published")
                layers, values, low, high, published = (
                    cells[name].to_numpy(float) for name in names
                )
                lines.append(
                    Line(x=layers, y=values, band=(low, high), colour=colour, label=str(label))
                )
                points = {"marker": "D", "marker_size": 5.0, "dash": "none"}
                lines.append(Line(x=layers, y=published, colour=colour, **points))
            metric, subset = drawn[["metric", "subset"]].iloc[0]
            has_scales = len(set(drawn["metric"])) > 1
            title = display_of(metric).panel if has_scales else metric_title(metric)
            panels.append(
                Panel(
                    title=f"{title}, {short_subset_title(subset)}",
                    x=Axis(label="layer (0 = embedding output)", is_integer=True),
                    y=axis_of_lines(metric, lines),
                    lines=lines,
                    legend="right",
                )
            )
        chart = Chart(
            title=f"{self.run.label}: measured (lines) and published (diamonds)",
            caption=notes("bands: 95% intervals; what differs is printed with the figure"),
            panels=panels,
            size=(_PANEL[0], _PANEL[1] * len(panels)),
        )
        return draw(chart)


def compare_published(runs: Sequence[MeasuredRun]) -> list[Comparison]:
    """Put published values beside those of runs, where model, quantity, tokens, numbers of vectors
    and layers agree.

    Args:
        runs: named after the published model, as a sweep names them: EleutherAI/pythia-6.9b.

    Returns:
        A comparison for each run of a model of which values are published.
    """
    published = published_values()
    tables = []
    for run in runs:
        model = _model_of(run)
        is_of_model = published["model"] == model
        of_model = published.loc[is_of_model]
        if of_model.empty:
            continue
        measured = run.rows.assign(
            quantity=[*map(_quantity, run.rows["metric"], run.rows["settings"])],
            n_layers=run.rows["layer"].max(),
            revision="step" + run.rows["step"].astype(str),
        )
        measured.loc[measured["stage"] == FINISHED, "revision"] = (
            f"step{_LAST}" if model.startswith("pythia") else "main"
        )
        comparison = Comparison(run, pd.DataFrame(), [])
        for _, theirs in of_model.groupby(["metric", "data"], sort=False):
            rows, sentences = _compare(measured, theirs)
            comparison = Comparison(
                run, pd.concat([comparison.values, *rows]), comparison.sentences + sentences
            )
        tables.append(comparison)
    return tables


def _model_of(run: MeasuredRun) -> str:
    """Return the model that a run is named after, without the probe or store that its name may end
    in.
    """
    return run.name.partition(" ")[0].rpartition("/")[2].lower()


def _compare(
    measured: pd.DataFrame, published: pd.DataFrame
) -> tuple[list[pd.DataFrame], list[str]]:
    """Return the rows of each checkpoint beside one published quantity of a model, and what there
    is to say of it.
    """
    source, metric, data = map(str, published[["source", "metric", "data"]].iloc[0])
    quantity = QUANTITIES[metric]
    title = f"{metric} of {source}"
    if quantity.refused:
        return [], [f"{title} ({data}) is not drawn: {quantity.refused}."]
    tables = []
    reasons = []
    last = published["layer"].max()
    for _, theirs in published.groupby(["revision", "k"], sort=False):
        revision, k = map(str, theirs[["revision", "k"]].iloc[0])
        (request,) = resolve([quantity.metric.format(k=k)], subsets=SUBSETS)
        quantity_asked = (
            _quantity(request.name, request.settings_json),
            request.subset,
            quantity.n_vectors,
            last,
        )
        is_at_revision = measured["revision"] == revision
        rows = measured.loc[is_at_revision]
        reason = f"checkpoint {revision} was not measured"
        # one condition after another, so that the reason names the one that left nothing
        for (column, what), value in zip(_ASKED.items(), quantity_asked, strict=True):
            if rows.empty or value is None:
                continue
            there = sorted(map(str, rows[column].unique()))
            is_as_published = rows[column] == value
            rows = rows.loc[is_as_published]
            reason = (
                f"the {what} differ at {revision}: {', '.join(there)} measured, {value} published"
            )
        if rows.empty:
            reasons.append(reason)
            continue
        # theirs is after the final norm there, a state that is not measured here
        theirs = theirs.loc[theirs["layer"] < last, ["source", "layer", "value", "note"]]
        theirs = theirs.assign(value=theirs["value"] + quantity.add)
        rows = rows.assign(quantity=metric, label=f"{revision}, k = {k}" if k else revision)
        tables.append(rows.merge(theirs, how="left", on="layer", suffixes=("", "_published")))
    tables.sort(key=lambda rows: int(rows["step"].iloc[0]))
    sentences = (
        [f"{title} is drawn at {len(tables)} checkpoints: {quantity.differs}."] if tables else []
    )
    if reasons:
        elsewhere = " elsewhere" if tables else ""
        others = f" ({len(reasons)} such checkpoints)" if len(reasons) > 1 else ""
        sentences.append(f"{title} is not drawn{elsewhere}: {reasons[0]}{others}.")
    return tables, sentences


def _quantity(metric: str, settings: str) -> str:
    """Return what is measured, whatever its name: "gride {"k": 32}"."""
    return f"{str(metric_info(metric).kernel).rpartition(':')[2]} {settings}"


def how_to_measure(runs: Sequence[MeasuredRun]) -> list[str]:
    """Return what is published of which models, and the command that measures one of them as
    published.
    """
    published = published_values()
    published = published.loc[
        ~published["metric"].isin([name for name, of in QUANTITIES.items() if of.refused])
    ]
    lines = []
    for _, rows in published.groupby(["source", "metric"], sort=False):
        source, metric = map(str, rows[["source", "metric"]].iloc[0])
        models = ", ".join(rows["model"].unique())
        lines.append(
            f"{metric} of {source}, layers {rows['layer'].min()} to {rows['layer'].max()}: {models}"
        )
    names = {*map(_model_of, runs)}
    # one last token of each window
    per_window = INDEPENDENT.vectors_per_window or 1
    n_vectors = str(_N_TOKENS * per_window)
    chosen = published.loc[
        published["model"].isin([*names & {*published["model"]}] or ["pythia-160m"])
    ]
    for _, rows in chosen.groupby(["model", "source"], sort=False):
        model, source = map(str, rows[["model", "source"]].iloc[0])
        scales = rows[["metric", "k"]].drop_duplicates().itertuples(index=False)
        metrics = [QUANTITIES[metric].metric.format(k=k) for metric, k in scales]
        is_last = any(name.endswith("@last_token") for name in metrics)
        steps = sorted(
            rows["revision"].unique(), key=lambda name: int(re.sub(r"\D", "", name) or 0)
        )
        owner = {
            "pythia": "EleutherAI",
            "opt": "facebook",
            "mamba": "state-spaces",
            "bert": "google-bert",
        }
        name = f"{owner[model.partition('-')[0]]}/{model}"
        words = ["repdyn", "sweep", name]
        if steps != ["main"]:
            words += ["--revisions", ",".join(steps)]
        words += ["--metrics", *map(shlex.quote, metrics)]
        if is_last:
            words += ["--max-vectors", n_vectors, "--batch-vectors", n_vectors]
        lines.append(f"a folder of the files of {model} is recognised by --name {name}")
        lines.append(f"to measure {model} as {source}: {' '.join(words)} --text FILE")
    return lines


def show_published(runs: Sequence[MeasuredRun], folder: Path) -> bool:
    """Print what is compared with published values and what is not; write figures and tables into a
    folder, and return whether there are any."""
    compared = compare_published(runs)
    for comparison in compared:
        print(f"{comparison.run.label}:")
        for sentence in comparison.sentences:
            print(f"  {sentence}")
        if len(comparison.values):
            name = safe_file_name(comparison.run.name.replace("/", "_"))
            for path in save({name: comparison.draw()}, folder):
                print(f"  {path}")
            table = comparison.table()
            write_atomically(
                folder / f"{name}.csv", lambda path, table=table: table.to_csv(path, index=False)
            )
    return any(len(comparison.values) for comparison in compared)
