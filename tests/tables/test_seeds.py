import math

import numpy as np
import pytest
from judged_runs import NOT_SHOWN, SHOWN, UNJUDGED
from scipy.stats import t as student_t
from synthetic_runs import make_published, make_scalar, make_two_stacks, to_frame

from repdyn.tables.findings import findings_over_seeds
from repdyn.tables.runs import measured_runs
from repdyn.tables.seeds import mean_over_seeds, model_of, seed_groups, seed_table, with_seeds

STEPS = (0, 1, 8, 64)


def seed(number, *, factor=None, name="lab/m-seed{}", **given):
    """A seed whose dimension is a multiple of the layer's number plus one, the same at every step."""
    factor = number if factor is None else factor
    fields = {"steps": STEPS, "n_blocks": 2, "probe": "0123456789abcdef"} | given
    fields.setdefault("dimension", lambda step, depth: factor * (2 * depth + 1.0))
    return make_published(name.format(number), **fields)


def runs_of(*rows):
    return measured_runs(to_frame([row for of_one in rows for row in of_one]))


def groups_of(*rows, patterns=None):
    return seed_groups(runs_of(*rows), patterns)


def naive_margin(values):
    values = [float(value) for value in values]
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return student_t.ppf(0.975, len(values) - 1) * math.sqrt(variance / len(values))


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("EleutherAI/pythia-160m-data-seed2", "EleutherAI/pythia-160m-data"),
        ("google/multiberts-seed_0", "google/multiberts"),
        ("tiny-Seed-12/2026-11-23_09-03-01_2", "tiny"),
        ("seed1/2026-11-23_09-03-01", "seed*"),
        ("lab/m-seed1 (probe 3f2ab1c0)", "lab/m (probe 3f2ab1c0)"),
        ("lab/seeds", None),
        ("lab/reseed1", None),
        ("lab/m-seed", None),
        ("lab/m-seed1-long", None),
    ],
)
def test_the_name_of_a_run_tells_which_model_it_is_a_seed_of(name, model):
    assert model_of(name) == model


@pytest.mark.parametrize("n_seeds", [2, 3, 9])
def test_the_interval_is_that_of_student_over_seeds(n_seeds):
    values = np.random.default_rng(n_seeds).normal(3.0, 0.5, (n_seeds, 4, 5))
    mean, margin = mean_over_seeds(values)
    for place in np.ndindex(4, 5):
        of_one = values[(slice(None), *place)]
        np.testing.assert_allclose(mean[place], sum(of_one) / n_seeds, rtol=1e-12)
        np.testing.assert_allclose(margin[place], naive_margin(of_one), rtol=1e-12)


def test_one_seed_has_no_interval():
    with pytest.raises(ValueError, match="expected at least 2 seeds, got 1"):
        mean_over_seeds(np.ones((1, 3)))
    assert groups_of(seed(1)) == []


def test_values_are_means_over_seeds_whatever_the_noise_of_the_batches():
    (group,) = groups_of(seed(1), seed(2), seed(6, noise=0.5))
    series = group.series["two_nn", "all"]
    np.testing.assert_allclose(series.values, [[3.0] * 4, [6.0] * 4, [9.0] * 4])
    np.testing.assert_allclose(series.margins[:, 0], [naive_margin(np.array([1, 2, 6]) * k) for k in (1, 2, 3)])
    # over layers first, then over seeds: the interval of the means, not the mean of the intervals
    np.testing.assert_allclose(series.layer_mean.mean, [6.0] * 4)
    np.testing.assert_allclose(series.layer_mean.margin, [naive_margin([2, 4, 12])] * 4)
    assert (series.layer_mean.n_used, series.layer_mean.n_layers) == (3, 3)
    assert (group.label, group.steps, group.parameters) == ("m (3 seeds)", list(STEPS), 1_234_567)


def test_deviations_of_layers_that_cancel_leave_the_mean_over_layers_certain():
    up, down = (lambda step, depth, sign=sign: 5.0 + sign * (2 * depth - 1) for sign in (1, -1))
    (group,) = groups_of(seed(1, dimension=up), seed(2, dimension=down))
    series = group.series["two_nn", "all"]
    np.testing.assert_allclose(series.layer_mean.margin, 0.0, atol=1e-12)
    np.testing.assert_allclose(series.margins[0], naive_margin([4.0, 6.0]))


def test_steps_are_those_of_all_seeds():
    (group,) = groups_of(seed(1), seed(2, steps=(1, 8, 32)), seed(3, steps=(0, 1, 8)))
    assert group.steps == [1, 8]
    assert group.series["two_nn", "all"].values.shape == (3, 2)
    assert set(group.at_end()["step"]) == {8}
    with pytest.raises(ValueError, match="step in common, got none"):
        groups_of(seed(1, steps=(1, 2)), seed(2, steps=(4, 8)))


def test_a_value_that_one_seed_lacks_is_missing():
    def gap(step, depth):
        return math.nan if depth == 0.5 and step == 8 else 2 * depth + 1.0

    (group,) = groups_of(seed(1), seed(2, dimension=gap))
    series = group.series["two_nn", "all"]
    assert np.isnan(series.values).tolist() == [[False] * 4, [False, False, True, False], [False] * 4]
    # over layers 0 and 2 at every step
    assert (series.layer_mean.n_used, series.layer_mean.n_layers) == (2, 3)
    np.testing.assert_allclose(series.layer_mean.mean, [2.0] * 4)


def test_a_metric_without_any_value_has_no_mean():
    (group,) = groups_of(seed(1), seed(2, dimension=lambda step, depth: math.nan))
    series = group.series["two_nn", "all"]
    assert series.layer_mean.mean.empty
    assert series.layer_mean.n_used == 0


DIFFERENT = {
    "model class": ({"model": "GPT2LMHeadModel"}, r"different model classes: GPTNeoXForCausalLM \(m-seed1\), GPT2"),
    "number of blocks": ({"n_blocks": 3}, r"different layers of .*: 0-2 of 2 blocks \(m-seed1\), 0-3 of 3 blocks"),
    "size": ({"parameters": 7}, r"different numbers of parameters: 7 \(m-seed2\), 1234567"),
    "probe": ({"probe": "f" * 16}, "different probes: 0123456789abcdef"),
    "precision": ({"dtype": "bfloat16"}, "different precisions: float32"),
    "selection of layers": ({"layers": '["h.*"]'}, "different selections of layers"),
    "design": ({"design": "dense"}, "different sampling designs: independent"),
    "vectors": ({"n_vectors": 512}, r"batches of different numbers of vectors: 4,096 \(m-seed1\), 512"),
    "settings": ({"settings": '{"discard": 0.2}'}, "different settings of "),
    "end": ({"steps": (0,), "stage": "finished"}, "finished models and trainings"),
}


@pytest.mark.parametrize(("given", "expected"), DIFFERENT.values(), ids=DIFFERENT)
def test_seeds_that_differ_in_more_are_refused(given, expected):
    with pytest.raises(ValueError, match=f"differ in their seed alone as seeds of lab/m, got {expected}"):
        groups_of(seed(1), seed(2, **given))


def test_patterns_name_other_seeds():
    rows = [seed(number, name=name) for number, name in enumerate(("lab/a-gpt2-x21", "lab/b-gpt2-x49", "lab/own"))]
    assert groups_of(*rows) == []
    (group,) = groups_of(*rows, patterns=["lab/*-gpt2-x*"])
    assert (group.label, len(group.members)) == ("lab/*-gpt2-x* (2 seeds)", 2)
    with pytest.raises(ValueError, match="a pattern of at least 2 runs as seeds, got 'lab/own' of 1 of lab/a-gpt2"):
        groups_of(*rows, patterns=["lab/own"])
    with pytest.raises(ValueError, match=r"one pattern of seeds for lab/a-gpt2-x21, got lab/\* and \*x21"):
        groups_of(*rows, patterns=["lab/*", "*x21"])
    assert groups_of(seed(1), seed(2), patterns=[]) == []


def test_a_comparison_has_groups_and_single_runs_in_its_order():
    runs = runs_of(seed(1), seed(2), seed(3, name="lab/big", parameters=10**9), seed(4, name="lab/m", parameters=10))
    assert [run.label for run in with_seeds(runs, seed_groups(runs))] == ["m", "m (2 seeds)", "big"]
    assert with_seeds(runs, []) == runs


def test_stacks_are_groups_of_their_own():
    groups = groups_of(*(make_two_stacks(f"lab/t5-seed{number}") for number in (1, 2)))
    assert [(group.label, group.stack) for group in groups] == [
        ("t5 (decoder) (2 seeds)", "decoder"),
        ("t5 (encoder) (2 seeds)", "encoder"),
    ]


def test_the_table_has_layers_and_their_mean():
    table = seed_table(groups_of(seed(1), seed(2), seed(6)))
    rows = table[(table["metric"] == "two_nn") & (table["step"] == 8)]
    assert rows["layer"].astype("float").fillna(-1).tolist() == [0, 1, 2, -1]
    np.testing.assert_allclose(rows["mean"], [3, 6, 9, 6])
    np.testing.assert_allclose(rows["std"], np.std([1, 2, 6], ddof=1) * np.array([1, 2, 3, 2]))
    np.testing.assert_allclose(rows["high"] - rows["mean"], naive_margin([1, 2, 6]) * np.array([1, 2, 3, 2]))
    assert set(table["n_seeds"]) == {3}
    assert len(table) == 3 * 4 * 4


def growing(*ends, noise=0.5, **given):
    """Seeds whose anisotropy grows from 0.1 to these values by half of the training, and stays."""
    frames = []
    for number, end in enumerate(ends):
        rows = seed(number, anisotropy=lambda step, depth, end=end: end if step > 8 else 0.1, noise=noise, **given)
        frames.append(to_frame(rows))
    return frames


def judged(frames, name="growth"):
    return next(found for found in findings_over_seeds(frames) if (found.name, found.subset) == (name, "all"))


TIMES = {"steps": (0, 8, 32, 64)}


def test_an_effect_is_judged_by_its_interval_over_seeds():
    finding = judged(growing(0.2, 0.21, 0.22, **TIMES))
    logs = np.log([2.0, 2.1, 2.2])
    low, high = (math.exp(logs.mean() + sign * naive_margin(logs)) - 1 for sign in (-1, 1))
    change = math.exp(logs.mean()) - 1
    # the noise of the batches, half of the values, has no part in it
    assert finding.verdict == SHOWN
    assert finding.evidence == (
        f"over 3 seeds: last/first +{change:.0%} [{100 * low:.0f}, {100 * high:.0f}], last/half +0.0% [0.0, 0.0]; half 32"
    )


@pytest.mark.parametrize(
    ("ends", "verdict"), [((0.2, 0.2), SHOWN), ((0.1, 0.1), NOT_SHOWN), ((0.1, 0.2, 0.3), UNJUDGED)]
)
def test_seeds_that_disagree_leave_a_finding_open(ends, verdict):
    assert judged(growing(*ends, **TIMES)).verdict == verdict


def test_a_failed_seed_leaves_everything_open():
    first, second = growing(0.2, 0.2, **TIMES)
    rows = [make_scalar(step, loss, run="lab/m-seed1") for step, loss in ((0, 1.0), (64, math.nan))]
    found = findings_over_seeds([first, to_frame([*rows, *seed(1, **TIMES)])])
    assert {finding.verdict for finding in found} == {UNJUDGED}
    assert found[0].evidence == "over 2 seeds: 1 of 2 seeds: the training failed: its last stored loss is nan"
    with pytest.raises(ValueError, match="at least 2 seeds, got 1"):
        findings_over_seeds([second])


def test_findings_are_judged_at_the_steps_of_all_seeds():
    frames = growing(0.2, 0.2, **TIMES)
    assert judged([frames[0], frames[1].loc[frames[1]["step"] != 32]]).evidence == (
        "over 2 seeds: no step measured near half of step 64"
    )


def test_a_block_that_one_seed_lacks_is_left_out():
    def gap(step, depth):
        return math.nan if depth == 1 and step == 32 else 0.2 if step > 8 else 0.1

    frames = [*growing(0.2, 0.2, **TIMES), to_frame(seed(7, anisotropy=gap, **TIMES))]
    assert judged(frames).evidence.endswith("; half 32; over 1 of 2 blocks")
