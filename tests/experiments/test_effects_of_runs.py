"""The preregistered statistics, against loops over the definitions."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from experiment_rows import BLOCKS, STEPS, made_up_rows

from experiments.effects import PRIMARY, VARIANTS, RunRows, split_runs


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return made_up_rows()


@pytest.fixture(scope="module")
def run(rows) -> RunRows:
    return next(run for run in split_runs(rows) if (run.arm, run.seed) == ("causal", 3))


def value(rows: pd.DataFrame, probe: str, metric: str, step: int, block: int) -> float:
    found = rows[
        (rows["run"] == f"seed3/causal.{probe}")
        & (rows["metric"] == metric)
        & (rows["subset"] == "all")
        & (rows["step"] == step)
        & (rows["layer"] == block)
    ]
    (one,) = found["value"]
    return one


def mean(rows: pd.DataFrame, probe: str, metric: str, step: int) -> float:
    return sum(value(rows, probe, metric, step, block) for block in BLOCKS) / 6


def test_the_statistics_are_those_of_the_page(rows, run):
    found = run.statistics(PRIMARY)
    at_end = [value(rows, "a", "anisotropy", 2000, block) for block in BLOCKS]
    assert found["bell"] == pytest.approx(math.log((at_end[2] + at_end[3]) / (at_end[0] + at_end[5])), rel=1e-12)
    ends = [mean(rows, "a", "anisotropy", step) for step in (0, 2000)]
    assert found["growth"] == pytest.approx(math.log(ends[1] / ends[0]), rel=1e-12)
    peak = max(STEPS[1:], key=lambda step: mean(rows, "b", "two_nn", step))
    heights = {step: mean(rows, "a", "two_nn", step) for step in (16, peak, 2000)}
    assert found["rise"] == pytest.approx(math.log(heights[peak] / heights[16]), rel=1e-12)
    assert found["fall"] == pytest.approx(math.log(heights[peak] / heights[2000]), rel=1e-12)
    late = [step for step in STEPS if step >= 1000]
    for name, metric in (("late anisotropy", "anisotropy"), ("late dimension", "two_nn")):
        y = [math.log(mean(rows, "a", metric, step)) for step in late]
        x = [step - sum(late) / len(late) for step in late]
        slope = sum(a * b for a, b in zip(x, y, strict=True)) / sum(a * a for a in x)
        assert found[name] == pytest.approx(1000 * slope, rel=1e-9)


def test_a_block_by_itself_has_the_statistics_of_a_mean_over_one_block(rows, run):
    found = run.block_statistics()
    assert list(found) == list(BLOCKS)
    alone = RunRows("causal", 3, run.frame[run.frame["layer"].isna() | (run.frame["layer"] == 4)])
    start, end = (value(rows, "a", "anisotropy", step, 4) for step in (0, 2000))
    assert found[4]["growth"] == pytest.approx(math.log(end / start), rel=1e-12)
    assert alone.block_statistics()[4] == found[4]


def test_the_dimension_starts_where_both_probes_have_it(rows, run):
    """On probe b block 2 has no value at step 16, so that the dimension starts at step 64, where it is highest."""
    frame = run.frame.copy()
    missing = (
        (frame["probe_name"] == "b") & (frame["metric"] == "two_nn") & (frame["step"] == 16) & (frame["layer"] == 2)
    )
    frame.loc[missing, "value"] = np.nan
    assert missing.sum() == 2
    later = RunRows("causal", 3, frame).statistics(PRIMARY)
    assert run.statistics(PRIMARY)["rise"] > 0.3
    assert later["rise"] == 0.0
    assert later["fall"] == run.statistics(PRIMARY)["fall"]


def test_dimensions_of_near_duplicates_do_not_count(run):
    frame = run.frame.copy()
    early = (frame["metric"] == "two_nn") & (frame["step"] == 16)
    frame.loc[early & (frame["layer"] == 2), "near_duplicate_share"] = 0.11
    later = RunRows("causal", 3, frame)
    assert math.isnan(later.course("two_nn", "a").loc[16, 2])
    assert later.course("two_nn", "a").loc[16, 3] == run.course("two_nn", "a").loc[16, 3]
    assert later.statistics(PRIMARY)["rise"] == 0.0
    frame.loc[early, "near_duplicate_share"] = 0.1
    assert RunRows("causal", 3, frame).statistics(PRIMARY) == run.statistics(PRIMARY)


def test_a_peak_of_noise_is_no_rise():
    """The highest of many noisy values lies above the first on the probe that chose it, and on another one it does not."""
    runs = [run for run in split_runs(made_up_rows(60, noise=0.2)) if run.arm == "masked"]
    chosen_on_itself = [run.statistics(next(v for v in VARIANTS if v.name == "dense windows"))["rise"] for run in runs]
    chosen_on_another = [run.statistics(PRIMARY)["rise"] for run in runs]
    assert np.mean(chosen_on_itself) > 5 * np.std(chosen_on_itself) / math.sqrt(60)
    assert abs(np.mean(chosen_on_another)) < 3 * np.std(chosen_on_another) / math.sqrt(60)


def test_runs_are_excluded_for_their_loss_or_missing_values(run):
    assert run.reason_to_exclude() is None
    frame = run.frame.copy()
    last = (frame["metric"] == "probe/loss") & (frame["step"] == 2000)
    frame.loc[last, "value"] = 6.0
    assert "more than 10 % above the lowest" in RunRows("causal", 3, frame).reason_to_exclude()
    frame.loc[last, "value"] = np.inf
    assert RunRows("causal", 3, frame).reason_to_exclude() == "the last loss is not finite"
    frame = run.frame.copy()
    frame.loc[(frame["metric"] == "anisotropy") & (frame["step"] == 2000) & (frame["layer"] == 6), "value"] = np.nan
    reason = RunRows("causal", 3, frame).reason_to_exclude()
    assert reason == "bell, growth, late anisotropy cannot be computed"


def test_other_names_are_rejected(rows):
    with pytest.raises(ValueError, match=r"expected runs named seedN/ARM\.PROBE, as a plan's are, got 'mine'"):
        list(split_runs(rows.assign(run="mine")))
