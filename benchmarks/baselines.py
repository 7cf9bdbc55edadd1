"""Compare trainings with earlier ones of the same recipe: how many planted faults are found, and
how often is a sound training furthest?

    OMP_NUM_THREADS=1 python benchmarks/baselines.py -o docs/baselines/trainings --minutes 90

The criteria, committed before the first training, are in docs/baselines/criteria.md; the recipes and
faults are those of status_faults.py, measured at the steps of its `--doubling`. Each recipe has one
sound training, baselines with other seeds and learning rates, and four faults. A training's rows
and outcome are written as soon as it is done, and it is not repeated; `--judge` trains nothing.
The tables are written beside them.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from machine import facts
from status_calibration import rate_text
from status_faults import FAULTS, LATE_FAULTS, Setting, trained

from repdyn.store.schema import VALIDATION_LOSS
from repdyn.views.judging import DescribedRun, stacks_of_run
from repdyn.views.judging.against import require_comparable
from repdyn.views.judging.baselines import FEWEST, Standing, standing_of

FIRST_SEED = 6000
N_RECIPES = 14
FAULTS_OF_RECIPE = 4
STAGES = (5, 10)
"""Numbers of baselines that all recipes get, one after the other."""
SPARE_BASELINES = 8
FACTOR = 2.0
"""Of "twice": the score over the highest of the baselines."""
RECIPES_WITH_LATE_FAULTS = 2
NUMBERS = (3, 5, 10)


@dataclass(frozen=True)
class Job:
    """One training."""

    recipe: int
    role: str
    """"sound", "baseline", or the name of a fault."""
    seed: int

    @property
    def fault(self) -> str:
        return "none" if self.role in {"sound", "baseline"} else self.role

    @property
    def name(self) -> str:
        return f"{self.recipe}_{self.role}_{self.seed}"

    @property
    def setting(self) -> Setting:
        """The recipe; that of a baseline with another learning rate."""
        setting = Setting.drawn(FIRST_SEED + self.recipe)
        if self.role != "baseline":
            return setting
        factor = 2 ** random.Random(self.seed).uniform(-1, 1)
        return setting._replace(rate=setting.rate * factor)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("baselines"), help="folder")
    parser.add_argument(
        "--minutes", type=float, default=1e9, help="after which no training begins"
    )
    parser.add_argument("--judge", action="store_true", help="train nothing")
    options = parser.parse_args()
    trainings = Trainings(options.output)
    if not options.judge:
        end = time.monotonic() + 60 * options.minutes
        for n_baselines in STAGES:
            for recipe in range(N_RECIPES):
                while job := trainings.next_job(recipe, n_baselines):
                    if time.monotonic() > end:
                        return
                    trainings.train(job)
    judged = judged_trainings(trainings)
    judged.to_csv(options.output / "judged.csv", index=False, float_format="%.5g")
    print(table_of(judged))
    for name, fact in facts(" ".join(["python", *sys.argv])).items():
        print(f"{name}: {fact}")


class Trainings:
    """The trainings that are done, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._table = folder / "trainings.csv"
        (folder / "rows").mkdir(parents=True, exist_ok=True)
        self.done = pd.read_csv(self._table).to_dict("records") if self._table.exists() else []

    def train(self, job: Job) -> None:
        """Train, and write rows and outcome."""
        run, true_losses = trained(job.setting, job.seed, job.fault, doubling=True)
        run.frame.to_parquet(self._rows_of(job.name))
        self.done.append(
            {
                "name": job.name,
                **asdict(job),
                **job.setting._asdict(),
                "first": true_losses[0],
                "lowest": float(np.nanmin(true_losses)),
                "last": true_losses[-1],
                "status": run.status[0],
            }
        )
        pd.DataFrame(self.done).to_csv(self._table, index=False, float_format="%.6g")

    def _rows_of(self, name: str) -> Path:
        return self.folder / "rows" / f"{name}.parquet"

    def of(self, recipe: int, role: str | None = None) -> list[dict]:
        """Return what is done of a recipe, in the order of the seeds."""
        return sorted(
            (
                done
                for done in self.done
                if done["recipe"] == recipe and role in (None, done["role"])
            ),
            key=lambda done: done["seed"],
        )

    def sound_baselines(self, recipe: int) -> list[dict]:
        """Return the baselines that count: sound, and without the status failed."""
        return [
            done
            for done in self.of(recipe, "baseline")
            if is_sound(done) and done["status"] != "failed"
        ]

    def next_job(self, recipe: int, n_baselines: int) -> Job | None:
        """Return a training of a recipe that is yet to be done; None if there is none."""
        seed = FIRST_SEED + recipe
        sound = self.of(recipe, "sound")
        if not sound:
            return Job(recipe, "sound", seed)
        if not is_sound(sound[0]):
            return None
        n_tried = len(self.of(recipe, "baseline"))
        if (
            len(self.sound_baselines(recipe)) < n_baselines
            and n_tried < n_baselines + SPARE_BASELINES
        ):
            return Job(recipe, "baseline", 100 * seed + n_tried)
        roles = {done["role"] for done in self.of(recipe)}
        planned = (role for role in faults_of(recipe) if role not in roles)
        return next((Job(recipe, role, seed) for role in planned), None)

    def run(self, name: str) -> DescribedRun:
        """Return a training as every view describes it."""
        return _described(self._rows_of(name))


@cache
def _described(path: Path) -> DescribedRun:
    (run,) = stacks_of_run(pd.read_parquet(path).assign(run=path.stem))
    return run


def faults_of(recipe: int) -> list[str]:
    """Return the faults that are planted in a recipe, the late ones behind the others."""
    kinds = list(FAULTS)
    first = FAULTS_OF_RECIPE * recipe
    planted = [kinds[(first + number) % len(kinds)] for number in range(FAULTS_OF_RECIPE)]
    return [*planted, *(LATE_FAULTS if recipe < RECIPES_WITH_LATE_FAULTS else ())]


def is_sound(done: dict) -> bool:
    """Return whether the true loss fell and stayed there."""
    return done["last"] <= 1.05 * done["lowest"] and done["last"] < 0.97 * done["first"]


if __name__ == "__main__":
    main()
