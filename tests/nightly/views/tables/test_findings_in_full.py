"""Growth of anisotropy and rise of dimension, judged on courses made for each border of the
criteria.
"""

import pytest
from judged_runs import (
    NAN,
    NARROW,
    NOT_SHOWN,
    SHOWN,
    UNJUDGED,
    course,
    judged,
    with_error,
)

from repdyn.views.judging.findings import findings

GROWTHS = {
    "grows and settles": ({0: 0.1, 10: 0.4, 50: 0.5, 100: 0.5}, NARROW, SHOWN),
    "still growing": ({0: 0.1, 50: 0.3, 100: 0.5}, NARROW, NOT_SHOWN),
    "grows and falls back": ({0: 0.1, 50: 0.6, 100: 0.3}, NARROW, NOT_SHOWN),
    "9% in all": ({0: 1.0, 50: 1.09, 100: 1.09}, NARROW, NOT_SHOWN),
    "11% in all": ({0: 1.0, 50: 1.11, 100: 1.11}, NARROW, SHOWN),
    "11% in the second half": ({0: 1.0, 50: 2.0, 100: 2.22}, NARROW, NOT_SHOWN),
    "loses 11% in the second half": ({0: 1.0, 50: 2.0, 100: 1.78}, NARROW, NOT_SHOWN),
    "second half not seen clearly": ({0: 1.0, 50: 2.0, 100: 2.18}, 0.01, UNJUDGED),
    "growth not seen clearly": ({0: 1.0, 50: 1.12, 100: 1.12}, 0.01, UNJUDGED),
    "starts too late": ({2: 0.1, 50: 0.5, 100: 0.5}, NARROW, UNJUDGED),
    "half at 40%": ({0: 0.1, 40: 0.5, 100: 0.5}, NARROW, SHOWN),
    "nothing near half": ({0: 0.1, 39: 0.5, 61: 0.5, 100: 0.5}, NARROW, UNJUDGED),
    "two steps": ({0: 0.1, 100: 0.5}, NARROW, UNJUDGED),
    "no value but at the last step": ({0: NAN, 50: NAN, 100: 0.5}, NARROW, UNJUDGED),
}


@pytest.mark.parametrize(
    ("metric", "subset"), [("anisotropy", "all"), ("no_sink", "no_sink")], ids=["all", "no_sink"]
)
@pytest.mark.parametrize(("values", "error", "verdict"), GROWTHS.values(), ids=GROWTHS)
def test_growth(run, values, error, verdict, metric, subset):
    assert judged(course(run, metric, values, error=error), "growth", subset).verdict == verdict


RISES = {
    "rises and falls": ({0: 10, 10: 20, 50: 16, 100: 15}, NARROW, SHOWN),
    "highest after half": ({0: 10, 50: 19, 70: 20, 100: 15}, NARROW, SHOWN),
    "only rises": ({0: 10, 50: 15, 100: 20}, NARROW, NOT_SHOWN),
    "rises early, then stays": ({0: 10, 10: 20, 50: 15, 100: 15}, NARROW, NOT_SHOWN),
    "falls by 4% in the second half": ({0: 10, 10: 20, 50: 15, 100: 14.4}, NARROW, NOT_SHOWN),
    "falls by 6% in the second half": ({0: 10, 10: 20, 50: 15, 100: 14.1}, NARROW, SHOWN),
    "rise of 9%": ({0: 10, 50: 10.9, 100: 5}, NARROW, NOT_SHOWN),
    "rise of 11%": ({0: 10, 50: 11.1, 100: 5}, NARROW, SHOWN),
    "rise not seen clearly": ({0: 10, 50: 12, 100: 5}, 0.03, UNJUDGED),
    "late fall not seen clearly": ({0: 5, 10: 20, 50: 11, 100: 10}, 0.02, UNJUDGED),
    "starts too late": ({2: 10, 10: 20, 50: 16, 100: 15}, NARROW, UNJUDGED),
    "first step without a value": ({0: NAN, 1: 10, 10: 20, 50: 16, 100: 15}, NARROW, SHOWN),
    "spread not known": ({0: 10, 50: 20, 100: 15}, NAN, UNJUDGED),
}


@pytest.mark.parametrize("causal", [True, False], ids=["decoder", "encoder"])
@pytest.mark.parametrize(("values", "error", "verdict"), RISES.values(), ids=RISES)
def test_dimension(run, values, error, verdict, causal):
    assert (
        judged(course(run, "dimension", values, error=error, causal=causal), "dimension").verdict
        == verdict
    )


def test_reasons_for_no_verdict(run):
    one_batch = with_error(run(n_batches=1), NAN)
    assert {finding.evidence for finding in findings(one_batch)} == {
        "no standard error is known of a single batch; take several with batch_vectors="
    }
    pooled = with_error(run(design="dense"), NAN)
    assert {finding.evidence for finding in findings(pooled)} == {
        "the batches share windows, so their spread says nothing of another probe"
    }
    without = findings(run().query("metric != 'anisotropy'"))
    assert [finding.evidence for finding in without[:2]] == [
        "anisotropy was not measured on all",
        "anisotropy was not measured on no_sink",
    ]
    neither = run().assign(metric="mean_norm").drop_duplicates(["step", "layer"])
    assert {finding.verdict for finding in findings(neither)} == {UNJUDGED}
