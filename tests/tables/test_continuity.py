"""Steps that repeat another one or are out of line, as their values, their embeddings and their loss show."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_runs import make_row, make_scalar, to_frame

from repdyn.store.scalars import EMBEDDING_NORM
from repdyn.tables.continuity import (
    AROUND,
    MAX_BLOCK,
    MAX_SHARE,
    MIN_JUMP,
    MIN_LOSSES,
    Jumps,
    losses_out_of_line,
    repeated_embeddings,
    repeated_values,
)


def profile(step: int, *values: float, **fields):
    return [make_row(step=step, layer=layer, value=value, **fields) for layer, value in enumerate(values)]


def test_values_that_are_the_same_to_the_last_bit():
    rows = [*profile(0, 0.5, 0.25), *profile(8, 0.5, 0.25 + 2**-53), *profile(16, 0.5, 0.25), *profile(32, 0.25, 0.5)]
    assert repeated_values(to_frame(rows)) == [(0, 16)]
    assert repeated_values(to_frame(rows[:4])) == []


def test_only_the_values_of_single_checkpoints_count():
    rows = [*profile(0, 0.5), *profile(8, 0.5), *profile(16, math.nan, reason="constant")]
    compared = [make_row(step=8, layer=0, metric="cka_previous", value=1.0, compared_to=0)]
    assert repeated_values(to_frame([*rows, *compared])) == [(0, 8)]
    other_layers = [*profile(0, 0.5, 0.25), *profile(8, 0.5)]
    assert repeated_values(to_frame(other_layers)) == []


def test_embeddings():
    def frame(*norms: float):
        return to_frame([make_scalar(step, norm, EMBEDDING_NORM) for step, norm in enumerate(norms)])

    assert repeated_embeddings(frame(1.5, 1.25, 1.5, 1.75)) == [(0, 2)]
    assert repeated_embeddings(frame(1.5, 1.25)) == []
    assert repeated_embeddings(frame(1.5, 1.5, 1.5)) == []  # not trained
    assert repeated_embeddings(to_frame(profile(0, 0.5))) == []


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


def errors(size: float) -> pd.Series:
    return pd.Series(size, STEPS)


@pytest.mark.parametrize("step", [2, 128, 1000])
def test_a_step_with_the_final_weights_is_out_of_line(step):
    losses = history(0.002)
    final = float(losses.iloc[-1])
    (found,) = losses_out_of_line(replaced(losses, {step: final}), errors(0.01)).found
    place = STEPS.index(step)
    neighbours = [(STEPS[at], losses.iloc[at]) for at in (place - 1, place + 1)]
    assert (found.step, found.loss, found.neighbours) == (step, final, tuple(neighbours))
    assert found.size == pytest.approx(losses.iloc[place + 1] - final)


def test_a_smooth_history_is_in_line():
    for seed in range(20):
        assert losses_out_of_line(history(0.002, seed), errors(0.01)) == IN_LINE
    assert losses_out_of_line(history()) == IN_LINE
    assert losses_out_of_line(-history()) == IN_LINE  # nor one that only rises


def test_several_jumps_are_found_one_after_the_other():
    losses = replaced(history(), {4: 2.6, 64: 9.9, 6000: 3.4})
    assert steps_of(losses, errors(0.01)) == [4, 64, 6000]


def test_a_jump_within_the_standard_error_is_none():
    losses = replaced(history(), {6000: 3.0})
    jump = 3.0 - float(history().loc[5000])
    assert steps_of(losses, errors(jump / 5.01)) == [6000]
    assert steps_of(losses, errors(jump / 4.99)) == []
    assert steps_of(losses) == [6000]  # where no standard error is known, the deviations decide


def test_a_jump_as_large_as_the_deviations_is_none():
    alternating = pd.Series([3.0 + 0.5 * (place % 2) for place in range(20)])
    assert losses_out_of_line(alternating) == IN_LINE


def test_an_end_is_out_of_line_only_where_it_explains_the_jump_of_another_step():
    losses = history()
    assert steps_of(replaced(losses, {0: 2.5, 20000: 9.0}), errors(0.2)) == []
    assert steps_of(replaced(losses, {0: 2.5, 20000: 9.0}), errors(0.02)) == [0]  # above it, and above those after
    (found,) = losses_out_of_line(replaced(losses, {0: 2.5})).found  # step 1 is above both of its neighbours
    assert (found.step, [step for step, _ in found.neighbours], found.is_end) == (0, [1, 2], True)
    (found,) = losses_out_of_line(replaced(losses, {1: 2.5})).found
    assert (found.step, [step for step, _ in found.neighbours], found.is_end) == (1, [0, 2], False)
    assert sorted(steps_of(replaced(losses, {0: 2.5, 1: 2.5}))) == [0, 1]
    assert sorted(steps_of(replaced(losses, dict.fromkeys((19000, 20000), 9.0)))) == []  # no other step jumps


def test_a_short_history_is_not_judged():
    short = replaced(history(), {4: 2.6})
    assert losses_out_of_line(short.iloc[:8]) == IN_LINE
    assert steps_of(short.iloc[:9]) == [4]


DOUBLING = [0, *(2**power for power in range(19))]
EVERY_1000 = [0, *(2**power for power in range(10)), *range(1000, 144000, 1000)]


@pytest.mark.parametrize("noise", [0.0, 0.002])
@pytest.mark.parametrize(("steps", "wrong"), [(DOUBLING, [8, 16]), (EVERY_1000, [5000, 6000]), (EVERY_1000, [64, 128])])
def test_two_successive_steps_with_the_final_weights(steps, wrong, noise):
    """The steps after them are sound, though each lies above both of its neighbours if the one before is left out."""
    values = 2.5 + 8 / (1 + (np.array(steps) / 1000) ** 0.7)
    losses = pd.Series(values + noise * np.random.default_rng(0).normal(size=len(steps)), steps)
    assert sorted(steps_of(replaced(losses, dict.fromkeys(wrong, float(losses.iloc[-1]))))) == wrong


@pytest.mark.parametrize("length", range(1, MAX_BLOCK + 2))
def test_how_many_successive_steps_are_found(length):
    wrong = list(range(40_000, 40_000 + 1000 * length, 1000))
    losses = pd.Series(10 - np.log1p(EVERY_1000) / 3, EVERY_1000)
    found = sorted(steps_of(replaced(losses, dict.fromkeys(wrong, 9.0))))
    assert found == (wrong if length <= MAX_BLOCK else [])


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


def test_where_more_than_a_sixth_would_be_out_of_line_none_is():
    losses = pd.Series(10 - np.log1p(EVERY_1000) / 3, EVERY_1000)
    jumping = pd.concat([losses.iloc[place : place + 3] for place in range(5, 150, 12)])
    found = losses_out_of_line(replaced(losses, dict.fromkeys(jumping.index, 5.0)))
    assert found == Jumps([], are_too_many=True)
    few = jumping.iloc[: int(MAX_SHARE * len(losses))]
    assert sorted(steps_of(replaced(losses, dict.fromkeys(few.index, 5.0)))) == list(few.index)


def test_a_narrow_peak_is_in_line_where_curves_may_turn():
    places = np.log1p(EVERY_1000)
    curve = pd.Series(np.exp(-(((places - 5) / 1.2) ** 2)), EVERY_1000)
    assert losses_out_of_line(curve, may_turn=True) == IN_LINE
    assert losses_out_of_line(curve) != IN_LINE
    (found,) = losses_out_of_line(replaced(curve, {50_000: 0.5}), may_turn=True).found
    assert found.step == 50_000


def test_the_numbers_are_those_of_the_documentation():
    assert (MIN_JUMP, MIN_LOSSES, MAX_BLOCK, AROUND, MAX_SHARE) == (5.0, 9, 5, 11, 1 / 6)


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 100))
def test_the_unit_of_the_loss_does_not_matter(seed, scale):
    losses = history(0.05, seed)
    assert steps_of(scale * losses, errors(0.002 * scale)) == steps_of(losses, errors(0.002))
