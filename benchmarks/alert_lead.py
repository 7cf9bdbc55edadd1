"""Measure how many steps before the loss the alerts are raised, on trainings made to diverge.

    OMP_NUM_THREADS=1 python benchmarks/alert_lead.py                       # three seeds: half an hour on two cores
    OMP_NUM_THREADS=1 python benchmarks/alert_lead.py --seeds 1 -o runs/alert_lead

Trains configs/diverging.yaml, whose learning rate rises until the training fails, and a control for each run: the
same at the quickstart's learning rate, which does not fail and should raise no alert. The loss speaks at the first step
at which its mean over the last 20 steps lies 10 % above the lowest such mean before; it is taken at every step, the
geometry at every tenth. An alert with a negative lead came after the loss.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from machine import facts

from repdyn import open_store
from repdyn.alerts import Alert, find_alerts

ROOT = Path(__file__).parents[1]
WINDOW = 20
RISE = 1.1
CONTROL = ("--model.learning_rate", "2.0e-3", "--model.warmup_steps", "50")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each kind (default: %(default)s)")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("runs/alert_lead"), help="folder (default: %(default)s)"
    )
    options = parser.parse_args()
    lines = [
        "| run | the loss speaks at step | first alert of each rule and metric: step, lead | cells in all |",
        "|---|---|---|---|",
    ]
    for seed in range(options.seeds):
        for kind, more in (("diverging", ()), ("control", CONTROL)):
            folder = options.output / f"{kind}_{seed}"
            if not (folder / "done").exists():
                _train(folder, seed, more)
            lines.append(_line(f"{kind}, seed {seed}", folder))
            print(lines[-1], flush=True)
    about = facts(" ".join(["python", *sys.argv]))
    print("\n".join([*lines, "", *(f"{name}: {value}" for name, value in about.items())]))


def _train(folder: Path, seed: int, more: Sequence[str]) -> None:
    run = ["--run.folder", str(folder), "--run.loggers", "[]", "--seed_everything", str(seed)]
    config = ["fit", "--config", str(ROOT / "configs" / "diverging.yaml")]
    shutil.rmtree(folder, ignore_errors=True)  # of a training that was broken off
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.log").open("w") as log:
        line = [sys.executable, str(ROOT / "train.py"), *config, *run, *more]
        subprocess.run(line, check=True, stdout=log, stderr=log)
    (folder / "done").touch()


def _line(name: str, folder: Path) -> str:
    (run,) = folder.glob("diverging/*/")
    at = first_divergence(_losses(run / "metrics.csv"))
    store = open_store(run / "repdyn")
    alerts = find_alerts(store.to_pandas(store.runs()[0]))
    first_alerts = "; ".join(_first(alert, at) for alert in _first_alerts(alerts)) or "none"
    return f"| {name} | {'not at all' if at is None else at} | {first_alerts} | {len(alerts)} |"


def _losses(path: Path) -> pd.Series:
    rows = pd.read_csv(path).dropna(subset="train/loss")
    # metrics.csv counts a step's loss from 0, the store its weights after it
    return pd.Series(rows["train/loss"].to_numpy(), index=rows["step"].to_numpy() + 1)


def first_divergence(losses: pd.Series) -> int | None:
    """Return the first step with a mean loss well above the lowest before, or not finite; None if there is none."""
    means = losses.rolling(WINDOW).mean()
    high = (means > RISE * means.cummin().shift()) | losses.isna()
    return int(high.idxmax()) if bool(high.any()) else None


def _first_alerts(alerts: Sequence[Alert]) -> list[Alert]:
    """Return the first alert of each rule and metric, by step."""
    first = {(alert.rule, alert.metric): alert for alert in reversed(alerts)}
    return sorted(first.values(), key=lambda alert: alert.step)


def _first(alert: Alert, at: int | None) -> str:
    return f"{alert.rule} ({alert.subject}): {alert.step}" + ("" if at is None else f", {at - alert.step:+d}")


if __name__ == "__main__":
    main()
