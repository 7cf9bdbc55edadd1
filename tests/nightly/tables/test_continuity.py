"""Steps that repeat another one or are out of line, as their values, their embeddings and their loss show."""

import numpy as np
import pandas as pd

from repdyn.tables.continuity import (
    Jumps,
    losses_out_of_line,
)

STEPS = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, *range(1000, 21000, 1000)]


IN_LINE = Jumps([])


def history(noise: float = 0.0, seed: int = 0) -> pd.Series:
    """Return the loss of a training: a plateau, a fast fall, and a slow one."""
    steps = np.array(STEPS, float)
    values = 2.5 + 8 / (1 + (steps / 100) ** 1.2)
    return pd.Series(values + noise * np.random.default_rng(seed).normal(size=len(steps)), STEPS)


def replaced(losses: pd.Series, values: dict[int, float]) -> pd.Series:
    return pd.Series({**losses.to_dict(), **values})


def steps_of(losses: pd.Series, std_errors: pd.Series | None = None) -> list[int]:
    """Return the steps out of line, the largest jump first."""
    return [jump.step for jump in losses_out_of_line(losses, std_errors).found]


EVERY_1000 = [0, *(2**power for power in range(10)), *range(1000, 144000, 1000)]


def test_sound_steps_are_rarely_accused():
    """Of wrong blocks at random places, with the final weights. The rule that takes out one step after the other, with
    no view of the others, says so of more sound steps than wrong ones."""
    generator, sound, wrong, n_wrong = np.random.default_rng(0), 0, 0, 0
    for seed in range(100):
        losses = history(0.002, seed)
        places = [start + at for start in generator.choice(range(2, 26, 7), 2, replace=False) for at in range(2)]
        steps = {STEPS[place] for place in places if losses.iloc[place] - losses.iloc[-1] > 0.3}
        found = set(steps_of(replaced(losses, {STEPS[place]: float(losses.iloc[-1]) for place in places})))
        sound, wrong, n_wrong = sound + len(found - steps), wrong + len(found & steps), n_wrong + len(steps)
    assert sound <= 0.02 * n_wrong
    assert wrong >= 0.95 * n_wrong


def test_a_narrow_peak_is_in_line_where_curves_may_turn():
    places = np.log1p(EVERY_1000)
    curve = pd.Series(np.exp(-(((places - 5) / 1.2) ** 2)), EVERY_1000)
    assert losses_out_of_line(curve, may_turn=True) == IN_LINE
    assert losses_out_of_line(curve) != IN_LINE
    (found,) = losses_out_of_line(replaced(curve, {50_000: 0.5}), may_turn=True).found
    assert found.step == 50_000
