"""The shapes of anisotropy over depth, judged on runs made for it."""

import pytest
from judged_runs import (
    NAN,
    NARROW,
    NOT_SHOWN,
    SHOWN,
    UNJUDGED,
    judged,
    profile,
)

BELLS = {
    "bell": ([0.1, 0.4, 0.5, 0.4, 0.1], NARROW, SHOWN),
    "flat": ([0.3, 0.3, 0.3, 0.3, 0.3], NARROW, NOT_SHOWN),
    "peak at the first block": ([0.5, 0.4, 0.3, 0.2, 0.1], NARROW, NOT_SHOWN),
    "middle 11% above both ends": ([1.0, 1.11, 1.11, 1.11, 1.0], NARROW, SHOWN),
    "middle 9% above the first": ([1.0, 1.09, 1.09, 1.09, 0.5], NARROW, NOT_SHOWN),
    # log(1.2 / 1.1) = 0.0870 against t7 sqrt(2) error = 3.344 error
    "just beyond the interval": ([1.0, 1.2, 1.2, 1.2, 1.0], 0.0260, SHOWN),
    "just within the interval": ([1.0, 1.2, 1.2, 1.2, 1.0], 0.0261, UNJUDGED),
    # log(1.1) = 0.0953: no difference at all, seen too dimly to say so
    "flat, just seen": ([1.0] * 5, 0.0284, NOT_SHOWN),
    "flat, just not seen": ([1.0] * 5, 0.0286, UNJUDGED),
    "open against the first, not shown against the last": (
        [1.0, 1.1, 1.1, 1.1, 2.0],
        0.02,
        NOT_SHOWN,
    ),
    "a spike outside the middle": (
        [0.3, 0.9, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3],
        NARROW,
        NOT_SHOWN,
    ),
    "a middle block without a value": ([0.1, 0.4, NAN, 0.4, 0.4, 0.1], NARROW, SHOWN),
    "four blocks": ([0.1, 0.5, 0.5, 0.1], NARROW, UNJUDGED),
    "no value in the last block": ([0.1, 0.4, 0.5, 0.5, 0.4, NAN], NARROW, UNJUDGED),
    "no value in the middle": ([0.1, 0.2, 0.2, *[NAN] * 4, 0.2, 0.2, 0.1], NARROW, UNJUDGED),
}


@pytest.mark.parametrize("subset", ["all", "no_sink"])
@pytest.mark.parametrize(("values", "error", "verdict"), BELLS.values(), ids=BELLS)
def test_bell(run, values, error, verdict, subset):
    assert (
        judged(profile(run, values, subset=subset, error=error), "bell", subset).verdict == verdict
    )


def test_the_middle_is_where_the_criterion_says(run):
    inside = [1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.0, 1.0]  # x = 0.25 to 0.75 of 9 blocks
    assert "exceeds the first by 100%" in judged(profile(run, inside), "bell").evidence
    of_twelve = [1.0] * 3 + [2.0] * 6 + [1.0] * 3
    assert "exceeds the first by 100%" in judged(profile(run, of_twelve), "bell").evidence


UNIFORMS = {
    "flat": ([0.3] * 4, NARROW, SHOWN),
    "49%": ([1.0, 1.2, 1.49], NARROW, SHOWN),
    "51%": ([1.0, 1.2, 1.51], NARROW, NOT_SHOWN),
    "bell": ([0.1, 0.4, 0.5, 0.4, 0.1], NARROW, NOT_SHOWN),
    # log(1.5) = 0.4055 against 3.344 error
    "flat, just seen": ([1.0] * 3, 0.1212, SHOWN),
    "flat, just not seen": ([1.0] * 3, 0.1213, UNJUDGED),
    "50% straddled": ([1.0, 1.2, 1.49], 0.01, UNJUDGED),
    "the lowest block without a value": ([NAN, 1.0, 1.1, 1.2], NARROW, SHOWN),
    "two blocks": ([1.0, 1.0], NARROW, UNJUDGED),
    "two blocks with a value": ([1.0, 1.0, NAN], NARROW, UNJUDGED),
}


@pytest.mark.parametrize("subset", ["all", "no_sink"])
@pytest.mark.parametrize(("values", "error", "verdict"), UNIFORMS.values(), ids=UNIFORMS)
def test_uniform(run, values, error, verdict, subset):
    assert (
        judged(profile(run, values, subset=subset, error=error), "uniform", subset).verdict
        == verdict
    )
