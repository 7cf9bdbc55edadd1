"""The page of a published store: what it contains, made from its rows, and how to read and cite it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd
import yaml

from repdyn.figures.files import save
from repdyn.figures.run import mean_over_layers, profile_over_depth
from repdyn.store import Store
from repdyn.tables.designs import sampling
from repdyn.tables.frames import is_finished, measurements, metrics_of, subsets_of

PREVIEW = "preview.png"
_PREVIEWED = ("two_nn", "anisotropy")
_MAX_LISTED = 40
_MAX_CONFIGS = 50


def write_card(
    store: Store, folder: Path, url: str, licence: str | None = None, author: str | None = None
) -> list[Path]:
    """Write README.md with the fields of a dataset card, and a figure; return the files.

    Args:
        store: as it is published, without local paths.
        folder: for the files.
        url: under which the store is published.
        licence: identifier such as "cc-by-4.0"; the card says that there is none unless given.
        author: whom to cite; nobody is named unless given.

    Raises:
        ValueError: nothing is measured.
    """
    frame = store.to_pandas(categorical=True)
    rows = frame.loc[frame["layer"].notna() & frame["value"].notna()]
    if rows.empty:
        raise ValueError(f"expected measurements in {store.location}, got none; push with --no-card")
    folder.mkdir(parents=True, exist_ok=True)
    figures = _preview(frame, folder)
    card = folder / "README.md"
    card.write_text(
        "\n".join(
            [
                "---",
                yaml.safe_dump(_fields(store, licence), sort_keys=False, allow_unicode=True).strip(),
                "---",
                "",
                *_text(rows, url, licence, author, has_preview=bool(figures)),
                "",
            ]
        ),
        encoding="utf-8",
    )
    return [card, *figures]


def _fields(store: Store, licence: str | None) -> dict[str, object]:
    runs = store.runs()
    configs = [{"config_name": "all", "data_files": "*/*.parquet", "default": True}]
    if 1 < len(runs) <= _MAX_CONFIGS:
        configs += [{"config_name": run, "data_files": f"{store.folder_of(run).name}/*.parquet"} for run in runs]
    fields: dict[str, object] = {"license": licence} if licence else {}
    return fields | {
        "pretty_name": "Geometry of the layers of " + _listed(runs, 3),
        "tags": ["repdyn", "representation-geometry", "training-dynamics", "tabular"],
        "configs": configs,
    }


def _text(rows: pd.DataFrame, url: str, licence: str | None, author: str | None, *, has_preview: bool) -> list[str]:
    probes = {str(probe): of_probe for probe, of_probe in rows.groupby("probe", observed=True)}
    metrics = {metric: subsets_of(rows, metric) for metric in metrics_of(rows)}
    versions = sorted({f"repdyn {row[0]}, torch {row[1]}, transformers {row[2]}" for row in _versions(rows)})
    return [
        "# Geometry of transformer layers",
        "",
        "Measurements of the geometry of every layer of transformer models, one row for each value, made with repdyn.",
        *(["", f"![Geometry of the layers of one run]({PREVIEW})"] if has_preview else []),
        "",
        "| run | model | weights | checkpoints | steps | layers |",
        "|---|---|---|---|---|---|",
        *(_run_line(str(run), of_run) for run, of_run in list(rows.groupby("run", observed=True))[:_MAX_LISTED]),
        *([f"| and {rows['run'].nunique() - _MAX_LISTED} more | | | | | |"] * (rows["run"].nunique() > _MAX_LISTED)),
        "",
        "Metrics: " + ", ".join(f"`{metric}` ({', '.join(subsets)})" for metric, subsets in metrics.items()) + ".",
        "",
        *(f"Probe `{probe}`: {_cell(sampling(of_probe))}." for probe, of_probe in probes.items()),
        "",
        f"Measured with {'; '.join(versions)}, from {str(rows['measured_at'].min())[:10]} to "
        f"{str(rows['measured_at'].max())[:10]}. The folder `certificates` has who measured which files, and their "
        "checksums.",
        "",
        "## Read it",
        "",
        "```python",
        "import repdyn",
        "",
        f'frame = repdyn.open_store("{url}").to_pandas()',
        "```",
        "",
        f"`repdyn report {url}` writes a page with all figures, `repdyn pull {url} FOLDER` copies the store, and "
        f"`repdyn sweep MODEL --reuse {url}` measures only what is missing. Each row has the checkpoint with its "
        "commit, the hash of the probe, the settings of the metric, and the versions; `value` is NaN for the stated "
        "`reason`.",
        "",
        "## Licence and citation",
        "",
        f"Licence of the measurements: {licence or 'none is stated'}. The weights have licences of their own.",
        "",
        "```bibtex",
        *_citation(rows, url, author),
        "```",
        "",
        "Cite the models by their own publications, and repdyn by its CITATION.cff.",
    ]


def _citation(rows: pd.DataFrame, url: str, author: str | None) -> list[str]:
    """Return the entry for BibTeX; the commit of the dataset tells which version of it was read."""
    last = str(max(rows["measured_at"].unique()))[:10]
    address = url.replace("hf://", "https://huggingface.co/", 1)
    title = "Geometry of the layers of " + _listed([str(run) for run in rows["run"].unique()], 3)
    fields = {"author": author, "title": title, "year": last[:4], "url": address, "note": f"Measured until {last}"}
    plain = {name: re.sub(r"[{}\\`]", "", text) for name, text in fields.items() if text}
    return ["@misc{measurements,", *(f"  {name} = {{{text}}}," for name, text in plain.items()), "}"]


def _run_line(run: str, rows: pd.DataFrame) -> str:
    models = _listed([str(model) for model in rows["model"].unique()], 2)
    steps = rows["step"].unique()
    extent = f"{min(steps)} to {max(steps)}" if len(steps) > 1 else str(steps[0])
    cells = (_cell(run), _cell(models), _weights(rows), str(len(steps)), extent, str(rows["layer"].max() + 1))
    return f"| {' | '.join(cells)} |"


def _weights(rows: pd.DataFrame) -> str:
    """Return where the weights are, with links; "live" for a training."""
    origins = {str(origin).partition("@")[0] for origin in rows["checkpoint"].dropna().unique()}
    published = {name for name in origins if re.fullmatch(r"[\w.-]+/[\w.-]+", name)}
    links = [f"[{_cell(name)}](https://huggingface.co/{name})" for name in sorted(published)]
    return _listed([*links, *(_cell(name) for name in sorted(origins - published))], 2) or "live"


def _versions(rows: pd.DataFrame) -> Iterable[tuple[str, str, str]]:
    columns = ["repdyn_version", "torch_version", "transformers_version"]
    return rows[columns].astype(str).drop_duplicates().itertuples(index=False, name=None)


def _preview(frame: pd.DataFrame, folder: Path) -> list[Path]:
    """Draw the run with the most checkpoints; models of several stacks have no figure."""
    measured = frame.loc[frame["layer"].notna() & frame["stack"].isna() & frame["head"].isna()]
    if measured.empty:
        return []
    run, probe = measured.groupby(["run", "probe"], observed=True)["step"].nunique().idxmax()
    one = frame.loc[(frame["run"] == run) & (frame["probe"] == probe)]
    metrics = metrics_of(measurements(one))
    chosen = [metric for metric in _PREVIEWED if metric in metrics] or metrics[:1]
    # a finished model has no steps
    figure = profile_over_depth(one, chosen[0]) if is_finished(measurements(one)) else mean_over_layers(one, chosen)
    written = save({PREVIEW.removesuffix(".png"): figure}, folder)
    return [path for path in written if path.name == PREVIEW]


def _listed(names: Sequence[str], most: int) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _cell(text: str) -> str:
    """Return a text that stays in its cell and is no markup."""
    return "".join(f"\\{mark}" if mark in "|`<>[]*" else mark for mark in text.replace("\n", " "))
