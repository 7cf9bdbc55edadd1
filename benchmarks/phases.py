"""How often courses without phases are taken for courses with phases, and how often a published one
is recognised.

    python benchmarks/phases.py             # some two minutes of one core
    python benchmarks/phases.py --repeats 1000

Courses of 24 points, whose logarithms are scaled to a range of log 3, are judged by the criterion
``phases``: by the sizes of the changes alone ("before"), and against surrogates of the course
("after"). The published course is the prompt entropy of Pythia-410m at 18 steps, mean over layers
(Skean et al. 2025, arXiv 2502.02013), with white noise.
"""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
from machine import facts

from repdyn.lab.recipes.criteria import Phases, turning_points
from repdyn.views.judging.effects import Estimate

POINTS = 24
MORE = {
    "fall, rise, fall": (0.1, 0.5, 0.1),
    "rise, fall, rise": (0.05, 0.05, 0.05),
    "rise, fall": (0.1, 0.1),
    "rise": (0.1,),
}
"""Smallest changes of each sequence of phases, those of the recipes; of two phases those of
findings and insights.
"""
PUBLISHED = (
    *(0.833, 0.833, 0.833, 0.833, 0.832, 0.770, 0.702, 0.698, 0.698),
    *(0.744, 0.821, 0.829, 0.803, 0.750, 0.701, 0.631, 0.576, 0.517),
)
NOISE = (0.0, 0.01, 0.02, 0.05)


def ar1(random: np.random.Generator, lag: float) -> np.ndarray:
    """Return a process of unit variance."""
    course = random.standard_normal(POINTS)
    for place in range(1, POINTS):
        course[place] = lag * course[place - 1] + math.sqrt(1 - lag**2) * course[place]
    return course


def saturation(random: np.random.Generator, noise: float) -> np.ndarray:
    return 1 - np.exp(-np.arange(POINTS) / 6) + noise * ar1(random, 0.8)


COURSES: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "white noise": lambda random: random.standard_normal(POINTS),
    "random walk": lambda random: random.standard_normal(POINTS).cumsum(),
    "AR(1), 0.9": lambda random: ar1(random, 0.9),
    "saturation, AR(1) 0.8 of 5%": lambda random: saturation(random, 0.05),
    "saturation, AR(1) 0.8 of 20%": lambda random: saturation(random, 0.2),
}


def rates(courses: Iterable[np.ndarray], criterion: Phases) -> str:
    """Return the shares of courses, given as logarithms, that show the phases, before and after."""
    found = [(_by_size(course, criterion), _shown(course, criterion)) for course in courses]
    before, after = np.mean(found, axis=0).tolist()
    return f"{before:.3f} | {after:.3f}"


def _by_size(levels: np.ndarray, criterion: Phases) -> bool:
    changes = np.diff(levels[turning_points(levels, criterion.phases)])
    signs = [1 if phase == "rise" else -1 for phase in criterion.phases]
    return all(signs * changes > np.log1p(criterion.more))


def _shown(levels: np.ndarray, criterion: Phases) -> bool:
    course = {step: Estimate(value, 0.0, 2) for step, value in enumerate(np.exp(levels).tolist())}
    measured: Any = SimpleNamespace(course=lambda *_: course)
    return criterion.judge(measured, "")[0] == "shown"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--repeats", type=int, default=200, help="courses of each kind (default: %(default)s)"
    )
    repeats, random = parser.parse_args().repeats, np.random.default_rng(0)
    for name, fact in facts(shlex.join(["python", "benchmarks/phases.py", *sys.argv[1:]])).items():
        print(f"# {name}: {fact}")
    print(f"| course | {' | '.join(f'{phases}: before | after' for phases in MORE)} |")
    rules = ["---", *("---|---" for _ in MORE)]
    print(f"|{'|'.join(rules)}|")
    criteria: list[Phases] = [
        Phases(tuple(phases.split(", ")), more) for phases, more in MORE.items()
    ]  # type: ignore[arg-type]
    for name, draw in COURSES.items():
        drawn = [draw(random) for _ in range(repeats)]
        scaled = [course * math.log(3) / np.ptp(course) for course in drawn]
        print(
            f"| {name} | {' | '.join(rates(scaled, criterion) for criterion in criteria)} |",
            flush=True,
        )
    published = np.log(PUBLISHED)
    criterion = Phases(("fall", "rise", "fall"), (0.1, 0.1, 0.1))
    for noise in NOISE:
        drawn = [
            published + noise * random.standard_normal(len(published))
            for _ in range(repeats if noise else 1)
        ]
        print(f"| published, noise of {noise:.0%} | {rates(drawn, criterion)} |", flush=True)


if __name__ == "__main__":
    main()
