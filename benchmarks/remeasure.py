"""Measure the saved checkpoints of a run of train.py again, by any sampling design.

    python benchmarks/remeasure.py runs/decoder_enwik8/TIME --name decoder \\
        --output docs/runs/decoder
    python benchmarks/remeasure.py runs/decoder_enwik8/TIME --name decoder \\
        --design dense --output docs/sampling/dense

The probe is made of the run's own held-out text, as its config.yaml says. The rows of the training
loss are taken over from the run's store; those of the learning rate follow from its schedule, where
the run did not store them. Interrupt it at any time: the same command goes on with the checkpoints
that are left.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import transformers
import yaml
from tqdm import tqdm

from repdyn import Probe, measure
from repdyn.data.datamodule import TextDataModule
from repdyn.measurement.options import MeasurementOptions
from repdyn.metrics import DEFAULT_METRICS
from repdyn.models import objective_of
from repdyn.probe.design import DESIGNS, INDEPENDENT
from repdyn.store import MeasurementKey, Store, read_rows
from repdyn.store.schema import Checkpoint, Row, provenance

_LEARNING_RATE = "train/learning_rate"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="folder of a run of train.py")
    parser.add_argument("--output", type=Path, required=True, help="store for the rows")
    parser.add_argument("--name", help="name of the run in the rows (default: that of the folder)")
    parser.add_argument(
        "--design", choices=list(DESIGNS), default=INDEPENDENT.name, help="(default: %(default)s)"
    )
    parser.add_argument(
        "--metrics", nargs="+", default=list(DEFAULT_METRICS), help="(default: %(default)s)"
    )
    parser.add_argument("--steps", type=int, nargs="+", help="only these of the checkpoints")
    options = parser.parse_args()
    steps = {
        int(path.name.removeprefix("step")): path
        for path in options.run.glob("hf_checkpoints/step*")
    }
    if not steps:
        parser.error(
            f"expected a run of train.py with checkpoints in hf_checkpoints/, got {options.run}"
        )
    config = yaml.safe_load((options.run / "config.yaml").read_text())
    probe = _probe(config, options.design)
    store = Store(options.output)
    store.save_probe(probe)
    scalars = _scalars(options.run, config)
    name = options.name or options.run.parent.name
    chosen = MeasurementOptions(metrics=options.metrics).identity(probe)
    chosen_steps = steps if options.steps is None else steps.keys() & options.steps
    for step in tqdm(sorted(chosen_steps), unit="checkpoint"):
        key = MeasurementKey(run=name, step=step, probe=probe.hash, metrics=chosen)
        if key not in store:
            tokens = step * config["data"]["batch_size"] * config["data"]["sequence_length"]
            model = _load(steps[step])
            checkpoint = Checkpoint(
                run=name, model=type(model).__name__, step=step, tokens_seen=tokens
            )
            rows = measure(model, probe, options.metrics, checkpoint=checkpoint).rows
            own = [row.with_columns(run=name, probe=probe.hash) for row in scalars.get(step, ())]
            store.write(key, [*rows, *own])


def _probe(config: dict[str, Any], design: str) -> Probe:
    data = config["data"] | {"design": design, "max_vectors": 16384, "batch_vectors": 4096}
    return TextDataModule(**data | {"objective": objective_of(config["model"]["family"])}).probe()


def _load(folder: Path) -> transformers.PreTrainedModel:
    architecture = transformers.AutoConfig.from_pretrained(folder).architectures[0]
    return getattr(transformers, architecture).from_pretrained(folder)


def _scalars(run: Path, config: dict[str, Any]) -> dict[int, list[Row]]:
    """Return the stored rows of loss and learning rate of the run, by step."""
    by_step: dict[int, list[Row]] = {}
    for path in sorted((run / "repdyn").glob("*/*.parquet")):
        for row in read_rows(path):
            if row.layer is None:
                by_step.setdefault(row.step, []).append(row)
    for step, rows in by_step.items():
        if not any(row.metric == _LEARNING_RATE for row in rows):
            rate = _learning_rate(step, config)
            rows.append(rows[0].with_columns(metric=_LEARNING_RATE, value=rate, **provenance()))
    return by_step


def _learning_rate(step: int, config: dict[str, Any]) -> float:
    """Return the rate by the schedule of :class:`repdyn.models.LanguageModel`: warm-up, then a
    cosine to a tenth.
    """
    peak = config["model"]["learning_rate"]
    warmup = config["model"]["warmup_steps"]
    if step < warmup:
        return peak * step / warmup
    progress = (step - warmup) / max(1, config["trainer"]["max_steps"] - warmup)
    return peak * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))


if __name__ == "__main__":
    main()
