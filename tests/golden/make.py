"""Compute the golden values; ``cd tests && python -m golden.make`` writes them beside this file, in
a minute, and ``python -m golden.make --missing`` adds those of keys that have none yet.

Each part is a table from a key to a row of texts, numbers as ``float.hex``: equal texts are equal
bits.

- ``NAME.tsv`` for each of the tiny models: every metric on three sampling designs, and the loss on
  the probe. Where a metric cannot be computed, ``reason`` says why.
- ``logged.tsv``: what a logger receives from a training that is tracked, call by call, and what is
  stored.
- ``clouds.tsv``: which vectors of a probe of many tokens are drawn without repeats.
- ``tables.tsv``: ten committed runs as the views see them.
- ``swept.tsv``: the outcome of a sweep of two local checkpoints and one that is damaged.
- ``machine.json``: the processor and the versions that these were made with. A value that was added
  elsewhere begins with ``~``, and is compared within tolerances everywhere.

Times, paths and versions are left out.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import Any, TypeAlias

import lightning.pytorch as pl
import numpy as np
import pandas as pd
import torch
from lightning.pytorch.loggers.logger import DummyLogger
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from golden.models import MODELS, PROBES, model_of, probe_of
from repdyn import Probe, measure, open_store
from repdyn.probe.design import DISTINCT

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

Table: TypeAlias = dict[str, dict[str, str]]

ON_SUBSETS = (
    "two_nn@no_sink",
    "two_nn@rare",
    "two_nn@types",
    "two_nn[discard=0.5]",
    "anisotropy@no_massive",
    "anisotropy@last_token",
    "anisotropy@all.normed",
    "effective_rank_of_variance@window_mean",
    "effective_rank_of_variance@differences",
    "weight_norm",
    "weight_stable_rank",
)
"""Measured beside every metric on its own subsets, under the default design."""
COMPARED = ("anisotropy", "two_nn", "cka_previous", "mutual_knn_previous", "procrustes_previous")
COMMITTED = {
    "docs/experiment/rows": [
        f"seed2/{kind}.{which}" for kind in ("causal", "masked") for which in ("a", "b", "dense")
    ],
    "docs/runs/every_metric": ["all-MiniLM-L6-v2", "stories260K"],
    "docs/runs/decoder": ["decoder_wikipedia"],
    "docs/runs/topics": ["encoder"],
}
"""Runs by store."""


def exact(value: Any) -> str:
    """Return a value as text that is equal for equal bits."""
    if value is None or value is pd.NA:
        return "-"
    if isinstance(value, float):
        return value.hex()
    return " ".join(str(value).split())


def row_of(value: Any) -> dict[str, str]:
    fields = ("value", "std", "low", "high", "n_vectors", "n_unique", "reason")
    return {field: exact(getattr(value, field)) for field in fields}


def cell_of(row: Any) -> str:
    """Return what identifies a stored row within its checkpoint."""
    layer = "-" if pd.isna(row.layer) else f"{int(row.layer):02d}"
    head = "" if pd.isna(row.head) else f" head {int(row.head)}"
    stack = f"{row.stack} " if isinstance(row.stack, str) else ""
    subset = f"@{row.subset}" if isinstance(row.subset, str) else ""
    return f"{stack}{row.metric}{subset} {row.settings.replace(' ', '')} layer {layer}{head}"


def measured(name: str) -> Table:
    """Measure one tiny model with every design."""
    table: Table = {}
    for design, sizes in PROBES.items():
        probe = probe_of(design, **sizes, padded=name != "plain")
        metrics = ["all", *(ON_SUBSETS if design == "independent" else ())]
        profile = measure(model_of(name), probe, metrics, probe_loss=True)
        for row in [*profile.rows, *profile.scalars]:
            table[f"{design} {cell_of(row)}"] = row_of(row)
    return table


def stored(folder: Path) -> Table:
    """Return the measured values of a store, without what depends on time or machine."""
    rows = open_store(folder).to_pandas().astype(object)
    rows = rows.where(rows.notna() | rows.columns.isin(["value", "std"]), None)
    names = rows["metric"]
    rows = rows[
        rows["layer"].notna()
        | rows["reason"].notna()
        | names.str.match("(train|val|validation|probe)/")
    ]
    return {
        f"stored {row.run} step {row.step:02d} {row.revision or '-'} {cell_of(row)}": row_of(row)
        for row in rows.itertuples()
    }


class Job(pl.LightningModule):
    """A training with dropout, shuffling and a validation."""

    def __init__(self) -> None:
        super().__init__()
        self.network = model_of("plain")

    def training_step(self, tokens: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = cross_entropy(self.network(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        self.log("train/loss", loss)
        return loss

    def validation_step(self, tokens: torch.Tensor, batch_idx: int) -> None:
        self.log("val/mean", self.network(tokens).mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class MockLogger(DummyLogger):
    """Keeps what it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[dict[str, Any], int | None]] = []

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self.calls.append((dict(metrics), step))


def logged() -> Table:
    """Train with a tracker; return the calls of its logger and its rows."""
    from repdyn.callbacks import RepresentationDynamics

    pl.seed_everything(7, verbose=False)
    probe = probe_of("independent", 48, 2, padded=False)
    data = DataLoader(list(probe.tokens.view(48, -1)), batch_size=8, shuffle=True)
    logger = MockLogger()
    with tempfile.TemporaryDirectory() as folder, quiet():
        tracker = RepresentationDynamics(
            probe,
            3,
            COMPARED,
            store=Path(folder) / "store",
            model="network",
            run="golden",
            on_error="raise",
            report=False,
        )
        trainer = pl.Trainer(
            default_root_dir=folder,
            callbacks=[tracker],
            logger=logger,
            max_steps=8,
            accelerator="cpu",
            accumulate_grad_batches=2,
            val_check_interval=6,
            log_every_n_steps=1,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
        )
        trainer.fit(Job(), data, data)
        rows = stored(Path(folder) / "store")
    calls = {}
    for number, (metrics, step) in enumerate(logger.calls):
        for name in sorted(name for name in metrics if "seconds" not in name):
            key = f"call {number:02d} step {step} {name}"
            calls[key] = {"value": exact(float(metrics[name]))}
    return calls | rows


def swept() -> Table:
    """Sweep two checkpoints and a damaged one; return the exit status, what was reported, and the
    rows.
    """
    from analyze_checkpoints import main

    with tempfile.TemporaryDirectory() as place, handlers_restored():
        folder = Path(place) / "run"
        for step in (0, 8, 16):
            with quiet():
                model_of("gpt2", seed=step).save_pretrained(folder / f"step{step}")
        (folder / "step16" / "model.safetensors").write_bytes(b"damaged")
        probe_of("independent", 48, 2).save(folder / "probe.safetensors")
        arguments = [
            folder,
            "--probe",
            folder / "probe.safetensors",
            "--store",
            folder / "swept",
            "--name",
            "golden",
        ]
        options = ["--metrics", "anisotropy", "two_nn", "--downloads", folder / "downloads"]
        table: Table = {}
        for attempt in ("first", "second"):
            before = set(open_store(folder / "swept").path.rglob("*.parquet"))
            # a shard of the work has no views
            status = status_of(main, [*arguments, *options, "--device", "cpu", "--shard", "1/1"])
            written = set(open_store(folder / "swept").path.rglob("*.parquet")) - before
            table[f"{attempt} run"] = {"value": f"exit status {status}, {len(written)} new files"}
        for key, row in stored(folder / "swept").items():
            is_failure = key.endswith(" layer -") and row["reason"] != "-"
            # the wording belongs to other libraries
            table[key] = row | {"reason": "not measured"} if is_failure else row
    return table


def clouds() -> Table:
    """Return the subset without repeats that each probe is measured on, and its vectors."""
    rng = np.random.default_rng(2)
    table: Table = {}
    for n_tokens in (60, 60_000):
        words = np.minimum(rng.zipf(1.15, (512, 60)), n_tokens - 1)
        probe = Probe.from_tokens(words)
        table[f"{n_tokens} tokens"] = {"value": probe.without_repeats}
        for subset in DISTINCT:
            sample = probe.sample(subset)
            digest = hashlib.sha256(sample.astype("<i8").tobytes()).hexdigest()[:12]
            described = (
                f"{sample.shape[1]} vectors, the first {sample[0, :5].tolist()}, all {digest}"
            )
            table[f"{n_tokens} tokens, {subset}"] = {"value": described}
    return table


def tables() -> Table:
    """Return what the views see of ten committed runs: each curve's shape and values, and the
    findings.
    """
    from synthetic_runs import measured_runs

    from repdyn.views.judging.findings import findings
    from repdyn.views.tables.frames import by_stack

    table: Table = {}
    for store, names in COMMITTED.items():
        frame = open_store(ROOT / store).to_pandas()
        for run in measured_runs(frame[frame["run"].isin(names)]):
            first = run.name if run.stack is None else f"{run.name} {run.stack}"
            described = {
                "causal": run.causal,
                "parameters": run.parameters,
                "finished": run.finished,
            }
            described |= {"failed": run.n_failed, "steps": len(run.steps), "label": run.label}
            table[first] = {
                "value": ", ".join(f"{name} {value}" for name, value in described.items())
            }
            for (metric, subset), series in run.series.items():
                table[f"{first} {metric}@{subset}"] = {"value": curve(series.values)}
            if not run.finished:
                is_of_run = frame["run"] == run.name
                for finding in findings(by_stack(frame[is_of_run])[run.stack]):
                    # the sentence may be worded otherwise
                    verdict = [
                        str(finding.verdict),
                        *re.findall(r"-?\d[\d.,]*%?", finding.evidence),
                    ]
                    table[f"{first} {finding.name} {finding.subset}"] = {"value": " ".join(verdict)}
    return table


def curve(cells: Any) -> str:
    """Return the shape of values by layer and step, those of the last step, and a digest of all."""
    last = " ".join(f"{value:.6g}" for value in cells[:, -1])
    digest = hashlib.sha256(
        repr([float(value).hex() for value in cells.flat]).encode()
    ).hexdigest()[:12]
    return f"{cells.shape[0]} layers x {cells.shape[1]} steps; at the end {last}; all {digest}"


@contextmanager
def quiet() -> Iterator[None]:
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        yield


@contextmanager
def handlers_restored() -> Iterator[None]:
    """Restore what a command does to the handling of signals."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def status_of(command: Callable[[list[str]], object], arguments: Iterable[object]) -> object:
    """Return the exit status of a command."""
    with quiet():
        try:
            command([str(argument) for argument in arguments])
        except SystemExit as stop:
            return stop.code
    return 0


PARTS: dict[str, Callable[[], Table]] = {
    **{name: lambda name=name: measured(name) for name in MODELS},
    "clouds": clouds,
    "logged": logged,
    "swept": swept,
    "tables": tables,
}


def machine() -> dict[str, str]:
    """Return what the last bits of a value depend on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    fields = {
        name.strip(): text.strip()
        for name, _, text in (line.partition(":") for line in reversed(lines))
    }
    sets = {
        flag
        for flag in fields.get("flags", "").split()
        if flag.startswith(("avx", "fma", "amx", "sse4"))
    }
    packages = ("torch", "numpy", "scipy", "pandas", "transformers", "lightning")
    return {
        "processor": fields.get("model name", platform.processor()),
        "model": (
            f"family {fields.get('cpu family')}, model {fields.get('model')}, stepping "
            f"{fields.get('stepping')}"
        ),
        "instruction sets": " ".join(sorted(sets)),
        "torch uses": torch.backends.cpu.get_cpu_capability(),
        **{package: version(package) for package in packages},
    }


def path_of(part: str) -> Path:
    return HERE / f"{part}.tsv"


def write(name: str, table: Table) -> None:
    columns = list(dict.fromkeys(column for row in table.values() for column in row))
    lines = ["\t".join(["key", *columns])]
    lines += [
        "\t".join([key, *(row.get(column, "") for column in columns)])
        for key, row in sorted(table.items())
    ]
    path_of(name).write_text("\n".join(lines) + "\n")


def read(part: str) -> Table:
    (_, *columns), *rows = (line.split("\t") for line in path_of(part).read_text().splitlines())
    return {
        key: {column: text for column, text in zip(columns, texts, strict=True) if text}
        for key, *texts in rows
    }


ELSEWHERE = "~"
"""Begins a value that was computed on another machine than that of ``machine.json``."""


def with_missing(old: Table, new: Table, *, mark: str) -> Table:
    """Return the old rows, and new ones for keys that have none, with a mark before the values."""
    added = {
        key: {**row, "value": mark + row["value"]} for key, row in new.items() if key not in old
    }
    return old | added


def main(arguments: list[str]) -> None:
    sys.path.append(str(ROOT))  # with analyze_checkpoints.py, as pytest has it
    torch.set_num_threads(1)
    made_on = HERE / "machine.json"
    only_missing = arguments == ["--missing"]
    is_same_machine = only_missing and json.loads(made_on.read_text()) == machine()
    for name, compute in PARTS.items():
        table = compute()
        if only_missing:
            table = with_missing(read(name), table, mark="" if is_same_machine else ELSEWHERE)
        write(name, table)
        print(path_of(name).relative_to(ROOT))
    if not only_missing:
        made_on.write_text(json.dumps(machine(), indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
