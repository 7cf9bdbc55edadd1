"""Compare the status of short trainings with their losses at every step: how often is it a false
alarm?

    OMP_NUM_THREADS=1 python benchmarks/status_calibration.py
    OMP_NUM_THREADS=1 python benchmarks/status_calibration.py --runs 20 --seed 1 \\
        -o calibration.csv

The first is 120 trainings, some 20 minutes. Trains small decoders on the built-in text, each with
another seed and a learning rate drawn between 3e-4 and 1, which is held after a short warm-up, so
that some trainings go well and some fail. A training counts as failed if, at its end, the mean of
its last 20 losses lies 10% above the lowest such mean before, or is not finite. The status is that
of :func:`repdyn.insights`, which knows the loss at every tenth step only. Rates have 95% intervals
of Clopper and Pearson. A training is written to the file as soon as it is done, and is not
repeated.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd
import torch
from machine import facts
from scipy.stats import binomtest
from torch.optim.lr_scheduler import LRScheduler
from tqdm import tqdm

from repdyn import Probe, measure
from repdyn.data.tokens import byte_tokenizer
from repdyn.models import build_model
from repdyn.probe.corpus import load_corpus
from repdyn.store.frame import to_pandas
from repdyn.store.schema import LOSS, Checkpoint, scalar_row, to_table
from repdyn.views.judging import DescribedRun, stacks_of_run

STEPS, EVERY, WARMUP = 300, 10, 20
BATCH, LENGTH = 16, 64
WINDOW, RISE = 20, 1.1
LEARNING_RATES = 3e-4, 1.0
_DECADES = {
    3e-3: "went well, learning rate below 0.003",
    3e-2: "went well, 0.003 to 0.03",
    math.inf: "went well, above 0.03",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=120, help="trainings (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the first training (default: %(default)s)"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("status_calibration.csv"),
        help="file (default: %(default)s)",
    )
    options = parser.parse_args()
    text = load_corpus("builtin").data
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    probe = Probe.from_texts(
        [text[-400_000:].decode(errors="replace")],
        byte_tokenizer(),
        max_vectors=1024,
        batch_vectors=512,
    )
    done = pd.read_csv(options.output).to_dict("records") if options.output.exists() else []
    for seed in tqdm(range(options.seed, options.seed + options.runs), unit="training"):
        if seed not in {row["seed"] for row in done}:
            done.append(_training(seed, tokens, probe))
            pd.DataFrame(done).to_csv(options.output, index=False)
    print(_summary(pd.DataFrame(done)))
    for name, fact in facts(" ".join(["python", *sys.argv])).items():
        print(f"{name}: {fact}")


def _training(seed: int, tokens: torch.Tensor, probe: Probe) -> dict[str, object]:
    generator = torch.Generator().manual_seed(seed)
    low, high = (math.log(rate) for rate in LEARNING_RATES)
    rate = math.exp(low + (high - low) * float(torch.rand((), generator=generator)))
    torch.manual_seed(seed)
    model = build_model(
        "gpt_neox", vocab_size=260, hidden_size=64, n_layers=4, n_heads=2, context_length=LENGTH
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / WARMUP)
    )

    def step_loss() -> torch.Tensor:
        starts = torch.randint(len(tokens) - LENGTH, (BATCH,), generator=generator)
        batch = tokens[starts[:, None] + torch.arange(LENGTH)]
        return model(input_ids=batch, labels=batch).loss

    def update() -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    judged, losses = track(f"seed {seed}", model, probe, STEPS, step_loss, update, schedule)
    means = np.convolve(losses, np.ones(WINDOW) / WINDOW, mode="valid")
    rise = float(means[-1] / np.min(means)) if np.isfinite(means).all() else math.inf
    return {
        "seed": seed,
        "learning_rate": rate,
        "last_loss": losses[-1],
        "rise": rise,
        "status": judged.status[0],
    }


def track(
    name: str,
    model: torch.nn.Module,
    probe: Probe,
    steps: int,
    step_loss: Callable[[], torch.Tensor],
    update: Callable[[], None],
    schedule: LRScheduler,
    scalars: Mapping[str, Callable[[], float]] = MappingProxyType({}),
    measured: Callable[[int], bool] = lambda step: step % EVERY == 0,
) -> tuple[DescribedRun, list[float]]:
    """Train a model, measured at some steps with the loss of the step before and other scalars by
    name.

    Returns:
        The run as every view describes it, and its losses at every step.
    """
    losses = []
    rows = []
    for step in range(steps + 1):
        if measured(step):
            checkpoint = Checkpoint(run=name, step=step)
            rows += measure(model, probe, checkpoint=checkpoint, on_error="record").rows
            values = {scalar: evaluate() for scalar, evaluate in scalars.items()}
            if losses:
                values[LOSS] = losses[-1]
            rows += [
                scalar_row(checkpoint, scalar, value, probe=probe.hash)
                for scalar, value in values.items()
            ]
        if step == steps:
            break
        loss = step_loss()
        loss.backward()
        update()
        schedule.step()
        losses.append(loss.item())
    (run,) = stacks_of_run(to_pandas(to_table(rows)))
    return run, losses


def _summary(runs: pd.DataFrame) -> str:
    """Return a table of alarms among the trainings that went well, by learning rate, and among
    those that failed.
    """
    lines = ["| trainings | number | status failed | status watch or failed |", "|---|---|---|---|"]
    columns = zip(
        runs["learning_rate"].tolist(), runs["rise"].tolist(), runs["status"].tolist(), strict=True
    )
    groups: dict[str, list[str]] = {name: [] for name in (*_DECADES.values(), "failed")}
    for rate, rise, status in columns:
        decade = next(name for bound, name in _DECADES.items() if rate < bound)
        groups["failed" if rise >= RISE else decade].append(status)
    for name, statuses in groups.items():
        alarms = statuses.count("failed"), statuses.count("failed") + statuses.count("watch")
        lines.append(
            f"| {name} | {len(statuses)} | "
            f"{' | '.join(rate_text(number, len(statuses)) for number in alarms)} |"
        )
    return "\n".join(lines)


def rate_text(number: int, of: int) -> str:
    """Return a rate with its exact 95% interval, in percent."""
    if not of:
        return "none"
    interval = binomtest(number, of).proportion_ci(method="exact")
    return f"{number / of:.0%} [{interval.low:.0%}, {interval.high:.0%}]"


if __name__ == "__main__":
    main()
