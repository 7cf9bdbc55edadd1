"""Runs made for the criteria of the published findings."""

import math

import pandas as pd
from synthetic_runs import make_row, make_scalar, to_frame

from repdyn.views.judging.findings import findings

NAN = math.nan
SHOWN, NOT_SHOWN, UNJUDGED = "shown", "not shown", "cannot be judged"
NARROW = 0.001
"""Standard error, as a share of the value, that leaves nothing open."""
T7 = 2.3646242510102993
"""97.5% quantile of Student's t with 7 degrees of freedom, from a table."""


def with_error(frame, error):
    """Every measured value with a standard error of ``error`` times itself."""
    of_layer = frame["layer"].notna()
    frame.loc[of_layer, "std_error"] = error * frame.loc[of_layer, "value"].abs()
    return frame


def profile(run, values, *, subset="all", error=NARROW, embedding=0.9, **options):
    """One step; ``values`` over the blocks of one subset, the other subset uniform, ``embedding``
    below them.
    """
    layers = [embedding, *values]

    def from_values(step, depth):
        return layers[round(depth * len(values))]

    curves = {"anisotropy": lambda step, depth: 0.3, "no_sink": lambda step, depth: 0.3}
    curves["anisotropy" if subset == "all" else "no_sink"] = from_values
    return with_error(run(n_blocks=len(values), steps=(100,), **curves, **options), error)


def course(run, metric, values, *, error=NARROW, n_blocks=2, **options):
    """Every block of ``metric`` at the same value, by step; the embedding output at 1e6."""

    def from_values(step, depth):
        return values[step] if depth else 1e6

    return with_error(
        run(n_blocks=n_blocks, steps=tuple(values), **{metric: from_values}, **options), error
    )


def warmed_up(frame, rates):
    """With the learning rate stored, by step."""
    scalars = [make_scalar(step, rate, "train/learning_rate") for step, rate in rates.items()]
    return pd.concat([frame, to_frame(scalars)], ignore_index=True)


def judged(frame, name, subset="all"):
    (finding,) = [
        found for found in findings(frame) if (found.name, found.subset) == (name, subset)
    ]
    return finding


def layers_at(values_by_step, metric="two_nn", subset="all", noise=0.0, n_layers=6, **more):
    """Return rows of layers that all have the value of their step."""
    return [
        make_row(
            step=step,
            layer=layer,
            depth=layer / 5,
            metric=metric,
            subset=subset,
            value=value,
            std=noise,
            **more,
        )
        for step, value in values_by_step.items()
        for layer in range(n_layers)
    ]


def losses(values):
    return [make_scalar(10 * place, value) for place, value in enumerate(values)]
