"""Compare trainings with earlier ones of the same recipe: how many planted faults are found, and
how often is a sound training furthest?

    OMP_NUM_THREADS=1 python benchmarks/baselines.py --part development -o development
    OMP_NUM_THREADS=1 python benchmarks/baselines.py -o judged --minutes 90
    python benchmarks/baselines.py --how-early docs/baselines/judged.csv

The criteria, committed before the first training, are in docs/baselines/criteria.md; the recipes
and faults are those of status_faults.py, measured at the steps of its `--doubling`. Each recipe has
one sound training, baselines with other seeds and learning rates, and faults, each with a seed of
its own. On the part `development` rules are chosen, on the part `judged` they are judged. A
training's rows and outcome are written as soon as it is done, and it is not repeated; `--judge`
trains nothing. The tables are written beside them; `--how-early` reads one and says how much
earlier than the validation loss geometry tells.
"""

import argparse
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
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
from repdyn.views.judging.baselines import Standing, standing_of
from repdyn.views.judging.comparable import require_comparable

FIRST_FAULT_SEED = 50
"""Added to a recipe's hundred, as the number of the fault is: baselines have those below."""
STAGES = (5, 10)
"""Numbers of baselines that all recipes get, one after the other."""
SPARE_BASELINES = 8
FACTOR = 2.0
"""Of "twice": the score over the highest of the baselines."""
NUMBERS = (3, 5, 10)


@dataclass(frozen=True)
class Part:
    """The recipes of one purpose, each with the setting of its own seed."""

    first_seed: int
    n_recipes: int
    faults_of_recipe: int
    recipes_with_late_faults: int

    @property
    def seeds(self) -> range:
        """Return the seeds of their settings."""
        return range(self.first_seed, self.first_seed + self.n_recipes)

    def faults_of(self, recipe: int) -> list[str]:
        """Return the faults that are planted in a recipe, the late ones behind the others."""
        kinds = list(FAULTS)
        number = recipe - self.first_seed
        first = self.faults_of_recipe * number
        planted = [kinds[(first + each) % len(kinds)] for each in range(self.faults_of_recipe)]
        return [*planted, *(LATE_FAULTS if number < self.recipes_with_late_faults else ())]


PARTS = {
    "development": Part(
        first_seed=7000, n_recipes=14, faults_of_recipe=2, recipes_with_late_faults=0
    ),
    "judged": Part(first_seed=6100, n_recipes=14, faults_of_recipe=4, recipes_with_late_faults=2),
}


@dataclass(frozen=True)
class Job:
    """One training."""

    recipe: int
    """The seed of its setting."""
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
        """Return the recipe; that of a baseline with another learning rate."""
        setting = Setting.drawn(self.recipe)
        if self.role != "baseline":
            return setting
        factor = 2 ** random.Random(self.seed).uniform(-1, 1)
        return setting._replace(rate=setting.rate * factor)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=PARTS, default="judged", help="(default: %(default)s)")
    parser.add_argument("-o", "--output", type=Path, default=Path("baselines"), help="folder")
    parser.add_argument("--minutes", type=float, default=1e9, help="after which no training begins")
    parser.add_argument(
        "--recipes",
        nargs=2,
        type=int,
        metavar=("FIRST", "LAST"),
        help="train these alone, by the seeds of their settings, and judge nothing: processes that "
        "share the work have a folder each, and --judge reads one into which all were copied",
    )
    parser.add_argument("--judge", action="store_true", help="train nothing")
    parser.add_argument("--how-early", type=Path, metavar="TABLE", help="print that and do no more")
    options = parser.parse_args()
    if options.how_early:
        print("\n".join(_how_early(pd.read_csv(options.how_early))))
        return
    trainings = Trainings(options.output, PARTS[options.part])
    if not options.judge:
        end = time.monotonic() + 60 * options.minutes
        seeds = trainings.recipes.seeds
        first, last = options.recipes or (seeds[0], seeds[-1])
        for n_baselines in STAGES:
            for recipe in range(first, last + 1):
                while job := trainings.next_job(recipe, n_baselines):
                    if time.monotonic() > end:
                        return
                    trainings.train(job)
    if options.recipes:
        return
    judged = judged_trainings(trainings)
    judged.to_csv(options.output / "judged.csv", index=False, float_format="%.5g")
    alerts_of(trainings).to_csv(options.output / "alerts.csv", index=False)
    print(table_of(judged, trainings))
    for name, fact in facts(" ".join(["python", *sys.argv])).items():
        print(f"{name}: {fact}")


class Trainings:
    """The trainings of a part that are done, in a folder."""

    def __init__(self, folder: Path, recipes: Part) -> None:
        self.folder = folder
        self.recipes = recipes
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
        sound = self.of(recipe, "sound")
        if not sound:
            return Job(recipe, "sound", recipe)
        if not is_sound(sound[0]):
            return None
        n_tried = len(self.of(recipe, "baseline"))
        if (
            len(self.sound_baselines(recipe)) < n_baselines
            and n_tried < n_baselines + SPARE_BASELINES
        ):
            return Job(recipe, "baseline", 100 * recipe + n_tried)
        roles = {done["role"] for done in self.of(recipe)}
        planned = (role for role in self.recipes.faults_of(recipe) if role not in roles)
        return next((Job(recipe, role, _seed_of_fault(recipe, role)) for role in planned), None)

    def run(self, name: str) -> DescribedRun:
        """Return a training as every view describes it."""
        return _described(self._rows_of(name))


@cache
def _described(path: Path) -> DescribedRun:
    (run,) = stacks_of_run(pd.read_parquet(path).assign(run=path.stem))
    return run


def _seed_of_fault(recipe: int, fault: str) -> int:
    return 100 * recipe + FIRST_FAULT_SEED + [*FAULTS, *LATE_FAULTS].index(fault)


def is_sound(done: dict) -> bool:
    """Return whether the true loss fell and stayed there."""
    return done["last"] <= 1.05 * done["lowest"] and done["last"] < 0.97 * done["first"]


def outcome_of(done: dict, sound: dict) -> str:
    """Return whether a training is sound, or its fault harmed it; those that begin late are judged
    by their alerts alone."""
    if done["role"] in {"sound", "baseline"}:
        return "sound" if is_sound(done) else "unclear"
    if done["role"] in LATE_FAULTS:
        return "late fault"
    return "harmless" if done["last"] <= 1.1 * sound["last"] else "failed"


def judged_trainings(trainings: Trainings) -> pd.DataFrame:
    """Return a row for each training and number of baselines it is compared with."""
    judged = []
    for recipe in trainings.recipes.seeds:
        sound = trainings.of(recipe, "sound")
        if not sound or not is_sound(sound[0]):
            continue
        baselines = [trainings.run(done["name"]) for done in trainings.sound_baselines(recipe)]
        for number in (number for number in NUMBERS if number <= len(baselines)):
            for done in trainings.of(recipe):
                if done["role"] != "baseline":
                    run = trainings.run(done["name"])
                    outcome = outcome_of(done, sound[0])
                    judged.append(
                        {
                            "name": done["name"],
                            "recipe": recipe,
                            "role": done["role"],
                            "outcome": outcome,
                            "status": done["status"],
                            "n_baselines": number,
                            **_judged(run, baselines[:number]),
                        }
                    )
    return pd.DataFrame(judged)


def _judged(run: DescribedRun, baselines: Sequence[DescribedRun]) -> dict[str, object]:
    try:
        require_comparable(run, baselines)
        standing = standing_of(run, baselines)
    except ValueError as error:
        return {"refused": str(error)}
    deviation = standing.deviation
    named = {}
    if standing.lost is not None:
        loss, since = standing.lost
        named = {"metric": loss, "layers": "", "since": since}
    if deviation is not None:
        named = {
            "metric": "@".join(filter(None, deviation.key)),
            "layers": " ".join(map(str, deviation.layers)),
            "since": deviation.since,
        }
    return {
        "p": standing.p,
        "score": standing.scores[0],
        "next_score": standing.scores[1:].max(),
        "is_furthest": standing.is_furthest,
        "is_twice": _is_twice(standing),
        "is_twice_by_geometry": _holds_by_step(_is_twice, run.steps[-1], run, baselines),
        **named,
        "first_furthest": _first_step(run, baselines, lambda standing: standing.is_furthest),
        "first_twice": _first_step(run, baselines, _is_twice),
        "loss_above": _first_loss(run, baselines, is_below_too=False),
        "loss_outside": _first_loss(run, baselines, is_below_too=True),
    }


def _is_twice(standing: Standing) -> bool:
    return bool(standing.scores[0] >= FACTOR * standing.scores[1:].max())


def _first_step(
    run: DescribedRun,
    baselines: Sequence[DescribedRun],
    rule: Callable[[Standing], bool],
) -> float:
    """Return the first measured step by which a rule holds for the rows so far; infinity if it
    never does.
    """
    steps = (step for step in run.steps if _holds_by_step(rule, step, run, baselines))
    return next(steps, math.inf)


def _holds_by_step(
    rule: Callable[[Standing], bool],
    step: int,
    run: DescribedRun,
    baselines: Sequence[DescribedRun],
) -> bool:
    """Return whether a rule holds for a run's geometry up to a step, with losses left out."""
    begun, *of_baselines = (_until(step, each) for each in (run, *baselines))
    try:
        return rule(standing_of(begun, of_baselines, losses=()))
    except ValueError:  # no value in common
        return False


@cache
def _until(step: int, run: DescribedRun) -> DescribedRun:
    (begun,) = stacks_of_run(run.frame.query("step <= @step"))
    return begun


def _first_loss(
    run: DescribedRun, baselines: Sequence[DescribedRun], *, is_below_too: bool
) -> float:
    """Return the first step at which the validation loss that the owner sees is further from all
    baselines' than their range; infinity if it never is."""
    losses = run.loss(VALIDATION_LOSS)
    of_baselines = pd.DataFrame([other.loss(VALIDATION_LOSS) for other in baselines])
    low = of_baselines.min()
    high = of_baselines.max()
    reach = high - low
    losses = losses.reindex(high.index)
    is_out = ~(losses <= high + reach)  # also where it is no number
    if is_below_too:
        is_out |= losses < low - reach
    return float(min(losses.index[is_out], default=math.inf))


def turns(trainings: Trainings, number: int) -> list[Standing]:
    """Return the standing of each sound training of a recipe among the others, as many as there
    are: the sound one and its first baselines."""
    standings = []
    for recipe in trainings.recipes.seeds:
        sound = [done for done in trainings.of(recipe, "sound") if is_sound(done)]
        names = [done["name"] for done in (*sound, *trainings.sound_baselines(recipe)[:number])]
        if not sound or len(names) < number + 1:
            continue
        runs = [trainings.run(name) for name in names]
        standings += [
            standing_of(run, [other for other in runs if other is not run]) for run in runs
        ]
    return standings


def table_of(judged: pd.DataFrame, trainings: Trainings) -> str:
    """Return what was found, by outcome and kind of fault and number of baselines."""
    lines = [
        "| trainings | baselines | number | furthest | twice | by geometry alone | refused | "
        "status failed or watch |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for number, of_number in judged.groupby("n_baselines"):
        failed = of_number.query("outcome == 'failed'")
        for name, group in (*of_number.groupby("outcome"), *failed.groupby("role")):
            n_refused = int(group["refused"].notna().sum()) if "refused" in group else 0
            n_watched = int(group["status"].isin(["failed", "watch"]).sum())
            shares = [
                rate_text(int((group[column] == True).sum()), len(group))  # noqa: E712
                for column in ("is_furthest", "is_twice", "is_twice_by_geometry")
            ]
            lines.append(
                f"| {name} | {number} | {len(group)} | {' | '.join(shares)} | {n_refused} | "
                f"{rate_text(n_watched, len(group))} |"
            )
        of_turns = turns(trainings, int(number))
        n_twice = sum(map(_is_twice, of_turns))
        lines.append(
            f"| sound, all turns | {number} | {len(of_turns)} | by construction | "
            f"{rate_text(n_twice, len(of_turns))} | | 0 | |"
        )
    return "\n".join([*lines, "", *_how_early(judged)])


def _how_early(judged: pd.DataFrame) -> list[str]:
    """Return, by number of baselines, how much earlier the geometry of failed trainings is furthest
    than their validation loss is above all baselines' by more than their range."""
    lines = []
    for number, of_number in judged.groupby("n_baselines"):
        compared = of_number[of_number["first_furthest"].notna()]
        sound = compared.query("outcome == 'sound'")
        failed = compared.query("outcome == 'failed'")
        geometry = failed["first_furthest"].to_numpy(float)
        loss = failed["loss_above"].to_numpy(float)
        told = np.isfinite(geometry) | np.isfinite(loss)
        n_earlier = int((geometry[told] < loss[told]).sum())
        n_later = int((geometry[told] > loss[told]).sum())
        median = float(np.median(loss[told] - geometry[told]))
        at_some_step, above = (
            rate_text(int(np.isfinite(sound[column].to_numpy(float)).sum()), len(sound))
            for column in ("first_furthest", "loss_above")
        )
        lines.append(
            f"{number} baselines: of {int(told.sum())} failed trainings that either tells, "
            f"geometry is earlier in {n_earlier}, the validation loss in {n_later}, and geometry "
            f"{abs(median):g} steps {'earlier' if median >= 0 else 'later'} in the median; of "
            f"sound ones geometry is furthest at some step in {at_some_step}, the loss above in "
            f"{above}"
        )
    return lines


def alerts_of(trainings: Trainings) -> pd.DataFrame:
    """Return the alerts of the default rules in each training."""
    return pd.DataFrame(
        {
            "name": done["name"],
            "recipe": done["recipe"],
            "role": done["role"],
            "is_sound": is_sound(done),
            "status_now": trainings.run(done["name"]).status[0],
            "alerts": "; ".join(
                f"{alert.rule} at {alert.step}" for alert in trainings.run(done["name"]).alerts
            ),
        }
        for done in trainings.done
    )


if __name__ == "__main__":
    main()
