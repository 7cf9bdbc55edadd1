"""A run beside its baselines: how often a sound one is called unlike, what is named, and which runs
are refused."""

import copy
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from jobs import Loop
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from synthetic_runs import fill, make_rows, measured_runs, to_frame

from repdyn import Tracker, insights
from repdyn.cli.main import main
from repdyn.store.schema import LOSS, Checkpoint, scalar_row
from repdyn.views.charts.lines import BAND_COLOUR
from repdyn.views.figures.panes import LARGE
from repdyn.views.figures.run import mean_over_layers, over_depth
from repdyn.views.judging import comparison_statements, described_runs
from repdyn.views.judging.baselines import (
    ENOUGH_FOR_LEVEL,
    Course,
    Standing,
    standing_of,
)
from repdyn.views.judging.comparable import require_comparable
from repdyn.views.publish.line_charts import log_charts
from repdyn.views.publish.loggers import Target
from repdyn.views.report.plots import course_plot, profile_plot
from repdyn.views.tables.bands import interpolated
from repdyn.views.tables.seeds import seed_groups

STEPS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
N_BLOCKS = 6


def course_of_seed(seed, scale):
    """A curve over steps and depth, moved as a whole and bent by amounts of the seed."""
    rng = np.random.default_rng(seed)
    level, tilt, bend = rng.normal(scale=scale, size=3)

    def value(step, depth):
        grown = 1 - math.exp(-step / 60)
        return 9 + level + tilt * depth + (4 + bend) * grown

    return value


def rows_of(seed, name=None, *, shift=0.0, since=64, layers=(3, 4, 5), **fields_of_rows):
    """Rows of one run of the recipe; from a step on, the dimension of some layers is shifted."""
    sound = course_of_seed(seed, scale=0.1)
    depths = [layer / N_BLOCKS for layer in layers]

    def dimension(step, depth):
        is_shifted = step >= since and depth in depths
        return sound(step, depth) + (shift if is_shifted else 0.0)

    anisotropy = course_of_seed(seed + 1000, scale=0.05)
    curves = {
        "dimension": dimension,
        "anisotropy": lambda step, depth: anisotropy(step, depth) / 20,
    }
    fields = {"run": name or f"seed{seed}", "steps": STEPS, "probe": "0123456789abcdef"}
    return make_rows(**(curves | fields | fields_of_rows))


def runs_of(*rows):
    return {run.name: run for of_run in rows for run in measured_runs(to_frame(of_run))}


def standing(judged, baselines):
    runs = runs_of(judged, *baselines)
    first, *others = runs.values()
    return standing_of(first, others)


def store_of(folder, *rows):
    return fill(folder, *rows)


def statement_of(run, kind="baselines"):
    (statement,) = [each for each in run.statements if each.kind == kind]
    return statement


def naive_scores(values):
    """The scores of runs, cell by cell; values by metric, each of (n_runs, n_layers, n_steps)."""
    of_metrics = []
    for cells in values:
        n_runs, n_layers, n_steps = cells.shape
        extremes = []
        for run in range(n_runs):
            others = [other for other in range(n_runs) if other != run]
            spread = np.empty((n_layers, n_steps))
            centre = np.empty((n_layers, n_steps))
            for layer in range(n_layers):
                for step in range(n_steps):
                    of_others = [cells[other, layer, step] for other in others]
                    centre[layer, step] = sorted(of_others)[len(others) // 2]
                    distances = [abs(value - centre[layer, step]) for value in of_others]
                    spread[layer, step] = sum(distances) / len(others) * math.sqrt(math.pi / 2)
            deviations = np.empty((n_layers, n_steps))
            for layer in range(n_layers):
                for step in range(n_steps):
                    around = spread[
                        max(layer - 1, 0) : layer + 2, max(step - 1, 0) : step + 2
                    ].mean()
                    scale = max(around, 1e-3 * np.median(abs(cells)))
                    deviations[layer, step] = (
                        cells[run, layer, step] - centre[layer, step]
                    ) / scale
            windows = [
                abs(deviations[layer : layer + 3, step : step + 3].mean())
                for layer in range(n_layers - 2)
                for step in range(n_steps - 2)
            ]
            extremes.append(max(windows))
        of_metrics.append(np.array(extremes) / np.median(extremes))
    return np.max(of_metrics, axis=0)


def test_scores_are_those_of_loops_over_cells():
    """A transposed axis, a run among its own others, or a window off by one."""
    rng = np.random.default_rng(1)
    values = [rng.normal(5, 1, size=(6, 4, 7)), rng.normal(0.3, 0.1, size=(6, 5, 6))]
    courses = {
        (f"metric{number}", "all"): Course(
            tuple(range(cells.shape[1])), np.arange(cells.shape[2]), cells
        )
        for number, cells in enumerate(values)
    }
    judged_standing = Standing(courses)
    assert judged_standing.scores == pytest.approx(naive_scores(values), rel=1e-12)
    assert judged_standing.p == np.mean(naive_scores(values) >= naive_scores(values)[0])


@pytest.mark.parametrize("n_baselines", [3, 5, 19])
def test_of_exchangeable_runs_as_many_are_furthest_as_computed(n_baselines):
    """A score that treats the judged run otherwise than its baselines: measured against n of them
    where they are measured against n - 1, or with a heavier tail."""
    rng = np.random.default_rng(n_baselines)
    n_draws = 600 if n_baselines < 10 else 200
    furthest = []
    for _ in range(n_draws):
        level = rng.standard_t(3, size=(n_baselines + 1, 1, 1))
        walk = rng.normal(size=(n_baselines + 1, 4, 6)).cumsum(axis=2)
        course = Course(tuple(range(4)), np.arange(6), 5 + 0.1 * (level + walk))
        furthest.append(Standing({("two_nn", "all"): course}).is_furthest)
    expected = 1 / (n_baselines + 1)
    deviation = math.sqrt(expected * (1 - expected) / n_draws)
    assert abs(np.mean(furthest) - expected) < 3 * deviation


def test_how_low_p_can_be():
    """ "Unlike" claimed at 5 % of three runs."""
    far = rows_of(0, shift=50.0)
    for n_baselines in (3, 18, 19):
        judged_standing = standing(far, [rows_of(seed) for seed in range(1, n_baselines + 1)])
        assert judged_standing.p == pytest.approx(1 / (n_baselines + 1))
        assert judged_standing.is_furthest
        assert judged_standing.is_unlike == (n_baselines >= ENOUGH_FOR_LEVEL)


def test_a_shift_in_several_layers_is_named_with_its_first_step():
    """A neighbour named too, the last step of a window for the first, or another metric."""
    for since in (16, 64, 256):
        baselines = [rows_of(seed) for seed in range(1, 6)]
        deviation = standing(rows_of(0, shift=6.0, since=since), baselines).deviation
        assert deviation.key == ("two_nn", "all")
        assert deviation.layers == (3, 4, 5)
        assert deviation.since == since
        assert deviation.layer in (3, 4, 5)
        assert deviation.value > deviation.high + 4
        assert deviation.ratio > 2


def test_a_window_averages_a_spike_of_one_cell_away():
    """One cell that is out by as much would be as unlike as a layer that stays out."""
    baselines = [rows_of(seed) for seed in range(1, 6)]
    several = standing(rows_of(0, shift=1.0, since=32), baselines)
    single = standing(rows_of(0, shift=1.0, since=512, layers=(3,)), baselines)
    assert several.scores[0] > 2 * single.scores[0]


def test_interpolation_is_on_the_logarithm_and_never_beyond():
    """numpy holds the last value, which is no measurement."""
    values = np.array([[0.0, 1.0, 2.0]])
    positions = np.array([1.0, 3.0, 7.0])  # 1 + position doubles
    at = np.array([0.5, 1.0, np.sqrt(8) - 1, 7.0, 7.01])
    at_others = interpolated(at, positions, values, unit=1.0)[0]
    assert np.isnan(at_others[[0, -1]]).all()
    assert at_others[1:-1] == pytest.approx([0.0, 0.5, 2.0])
    missing = interpolated(
        np.array([2.0, 3.0, 5.0]), positions, np.array([[0.0, np.nan, 2.0]]), 1.0
    )
    assert np.isnan(missing).all()


def test_a_band_ends_where_fewer_than_three_baselines_were_measured():
    """A band drawn over steps that no baseline has reached."""
    short = [rows_of(seed, steps=(1, 4, 16, 64)) for seed in (1, 2)]
    long = [rows_of(seed, steps=(2, 8, 32, 128)) for seed in (3, 4)]
    judged, *baselines = runs_of(rows_of(0), *short, *long).values()
    band = replace(judged, baselines=baselines).bands["two_nn", "all"]
    has_band = np.isfinite(band.limits.median).all(axis=0)
    assert [step for step, has in zip(band.steps, has_band, strict=True) if has] == [
        *(2, 4, 8, 16, 32, 64)
    ]
    low, median, high = band.at(16)
    assert (low <= median).all()
    assert (median <= high).all()
    row = band.layers.index(2)
    depth = 2 / N_BLOCKS
    of_short = [course_of_seed(seed, scale=0.1)(16, depth) for seed in (1, 2)]
    share = math.log(17 / 9) / math.log(33 / 9)
    of_long = [
        (1 - share) * course_of_seed(seed, scale=0.1)(8, depth)
        + share * course_of_seed(seed, scale=0.1)(32, depth)
        for seed in (3, 4)
    ]
    assert low[row] == pytest.approx(min(of_short + of_long))
    assert high[row] == pytest.approx(max(of_short + of_long))


def test_the_band_is_in_profiles_of_figure_and_page_and_in_charts_of_loggers():
    """A band at another step than the profile's, or one that a logger never gets."""
    judged, *baselines = runs_of(rows_of(9), *map(rows_of, range(3))).values()
    run = replace(judged, baselines=baselines)
    low, median, high = run.bands["two_nn", "all"].at(512)
    (panel,) = over_depth(run, ["two_nn"], "TwoNN", LARGE).axes[:1]
    dotted = [line for line in panel.lines if line.get_linestyle() == ":"]
    assert any(np.array_equal(line.get_ydata(), median) for line in dotted)
    plot = profile_plot(run, run.series["two_nn", "all"])
    (behind,) = [trace for trace in plot["data"] if trace["meta"].get("of") == "baselines"]
    assert np.array_equal(behind["meta"]["low"], low)
    assert np.array_equal(behind["meta"]["high"], high)
    logged = {}

    class Charts(Target):
        takes_charts = True

        def log_lines(self, name, x, at, lines, step):
            logged[name] = lines

    log_charts(run, Charts(None))
    (lines,) = [lines for name, lines in logged.items() if name == "two_nn_means"]
    assert list(lines)[-3:] == ["baselines, lowest", "baselines, median", "baselines, highest"]
    assert (np.array(lines["baselines, lowest"]) <= lines["baselines, highest"]).all()


def test_the_band_of_baselines_is_the_only_one():
    """The intervals for another probe, which all these runs share, covered the band."""
    judged, *baselines = runs_of(rows_of(9), *map(rows_of, range(3))).values()
    assert np.isfinite(judged.series["two_nn", "all"].highs).all()
    run = replace(judged, baselines=baselines)
    figures = over_depth(run, ["two_nn"], "TwoNN", LARGE), mean_over_layers(run, ["two_nn"])
    for figure in figures:
        (axes, *_) = figure.axes
        (band,) = [each for each in axes.collections if isinstance(each, PolyCollection)]
        assert to_hex(band.get_facecolor()[0]) == BAND_COLOUR.lower()
        assert "95% interval" not in figure.get_suptitle()
    plot = course_plot(run, run.series["two_nn", "all"])
    of_means = [trace for trace in plot["data"] if "low" in trace.get("meta", {})]
    assert [trace["line"]["color"] for trace in of_means] == [BAND_COLOUR]


def with_losses(seed, values):
    """Rows of a run of the recipe with a training loss at each step."""
    rows = rows_of(seed)
    losses = zip(STEPS, values, strict=True)
    checkpoints = {row.step: row for row in rows}
    return [
        *rows,
        *(
            scalar_row(Checkpoint(run=f"seed{seed}", step=step), LOSS, value, probe=rows[0].probe)
            for step, value in losses
            if step in checkpoints
        ),
    ]


def falling(seed, to):
    """A loss that falls from 6, with noise of the seed."""
    noise = np.random.default_rng(seed).normal(scale=0.01, size=len(STEPS))
    return np.linspace(6, to, len(STEPS)) + noise


def test_a_loss_that_leaves_the_baselines_is_named():
    """A fault that geometry does not show, or a logarithm that is told as the loss."""
    sound = [with_losses(seed, falling(seed, 3)) for seed in range(5)]
    placed = standing(with_losses(9, falling(9, 4.5)), sound)
    assert placed.key == (LOSS, "")
    assert placed.deviation is not None
    assert placed.deviation.value == pytest.approx(4.5, abs=0.4)
    assert placed.deviation.low < placed.deviation.high < placed.deviation.value


def test_a_loss_that_is_no_number_is_further_than_anything():
    """A comparison of the steps before, which went well."""
    sound = [with_losses(seed, falling(seed, 3)) for seed in range(5)]
    diverged = falling(9, 3)
    diverged[-2:] = np.nan
    placed = standing(with_losses(9, diverged), sound)
    assert placed.lost == (LOSS, STEPS[-2])
    assert placed.scores[0] == math.inf
    assert placed.is_furthest


def test_steps_are_matched_by_tokens_where_all_have_them():
    """A run with batches twice as large compared step by step."""

    def with_tokens(rows, per_step):
        return [row.with_columns(tokens_seen=per_step * row.step) for row in rows]

    baselines = [with_tokens(rows_of(seed), 1000) for seed in range(1, 4)]
    doubled = rows_of(0, steps=(0, 1, 2, 4, 8, 16, 32, 64, 128, 256))
    by_tokens = standing(with_tokens(doubled, 2000), baselines)
    assert by_tokens.courses["two_nn", "all"].positions[-1] == 512_000
    by_step = standing(doubled, baselines)
    assert by_step.courses["two_nn", "all"].positions[-1] == 256


@pytest.fixture
def baselines(tmp_path):
    return store_of(tmp_path / "good", *(rows_of(seed) for seed in range(1, 20)))


def test_what_is_said_in_one_sentence(tmp_path, baselines):
    """A sentence without the metric, layers, step, size or what the p is worth."""
    judged = store_of(tmp_path / "run", rows_of(0, shift=6.0))
    (run,) = insights(judged, against=baselines)
    statement = statement_of(run)
    assert statement.severity == "watch"
    assert statement.layers == (3, 4, 5)
    assert statement.steps[0] == 64
    for said in ("TwoNN", "layers 3-5", "since step 64", "unlike its 19 baselines", "p = 0.05"):
        assert said in statement.sentence
    assert statement.evidence["lowest_p"] == 0.05
    assert statement.evidence["value"] > statement.evidence["high"]
    few = insights(judged, against=baselines, against_runs=["seed1", "seed2", "seed3"])
    sentence = statement_of(few[0]).sentence
    assert statement_of(few[0]).severity == "note"
    assert "p = 0.25, not lower with 3 baselines" in sentence
    assert "unlike" not in sentence


def test_a_run_like_its_baselines_is_said_to_be(baselines):
    """A run that is its own baseline, which makes every run like one of them."""
    runs = insights(baselines, against=baselines)
    told = [statement_of(run) for run in runs]
    assert {each.evidence["n_baselines"] for each in told} == {18}
    assert sum("Like its 18 baselines" in each.sentence for each in told) == 18


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"probe": "fedcba9876543210"}, "probe"),
        ({"design": "dense"}, "design"),
        ({"parameters": 7_654_321}, "parameters"),
        ({"model": "LlamaForCausalLM"}, "model"),
        ({"n_blocks": 4}, "layers"),
        ({"n_vectors": 512}, "vectors"),
        ({"stack": "decoder"}, "stack"),
    ],
)
def test_a_baseline_that_does_not_compare_is_refused(tmp_path, changed, word):
    """A band over values that mean something else."""
    judged = store_of(tmp_path / "run", rows_of(0))
    others = [rows_of(1), rows_of(2), rows_of(3, "strange", **changed)]
    with pytest.raises(ValueError, match=rf"strange.*{word}|{word}.*strange"):
        insights(judged, against=store_of(tmp_path / "good", *others))


def test_too_few_baselines_failed_ones_and_unknown_names_are_refused(tmp_path, baselines):
    """A band of two runs, or one that a collapsed training has widened."""
    judged = store_of(tmp_path / "run", rows_of(0))
    with pytest.raises(ValueError, match="3 baselines"):
        insights(judged, against=baselines, against_runs=["seed1", "seed2"])
    with pytest.raises(ValueError, match="none is named"):
        insights(judged, against=baselines, against_runs=["sed*"])
    failed = rows_of(3, "diverged")
    last = [
        row.with_columns(value=math.inf) if row.metric == "train/loss" else row for row in failed
    ]
    others = store_of(tmp_path / "mixed", rows_of(1), rows_of(2), rows_of(4), last)
    with pytest.raises(ValueError, match="diverged.*failed"):
        insights(judged, against=others)


def test_another_tokenizer_and_a_copy_of_the_run_are_refused(tmp_path):
    """A band over ids that mean other words; a run that is like itself, whatever it does."""
    judged, *others = runs_of(*(rows_of(seed) for seed in range(4))).values()
    named = [replace(run, configuration={"tokenizer": "gpt2"}) for run in (judged, *others)]
    require_comparable(named[0], named[1:])
    strange = replace(others[0], configuration={"tokenizer_name": "bytes"})
    with pytest.raises(ValueError, match=r"seed1 with another tokenizer: bytes, not gpt2"):
        require_comparable(named[0], [*named[2:], strange])
    store = store_of(tmp_path / "runs", *(rows_of(seed) for seed in (1, 2, 3)))
    copy = store_of(tmp_path / "copy", rows_of(0), rows_of(0, "renamed"))
    with pytest.raises(ValueError, match=r"itself, got renamed .*leave the copy out"):
        insights(copy, ["seed0"], against=[store, copy])


def test_a_run_on_several_probes_is_compared_on_each(tmp_path):
    """A baseline refused for the probe on which the run was not measured."""
    second = {"probe": "fedcba9876543210"}
    judged = store_of(tmp_path / "run", rows_of(0), rows_of(0, **second))
    others = [rows for seed in (1, 2, 3) for rows in (rows_of(seed), rows_of(seed, **second))]
    described = insights(judged, against=store_of(tmp_path / "good", *others))
    assert sorted(run.probe for run in described) == ["0123456789abcdef", "fedcba9876543210"]
    assert {statement_of(run).evidence["n_baselines"] for run in described} == {3}


def test_settings_that_differ_are_said(tmp_path):
    """A learning rate for which a run is unlike the others, unsaid."""
    rates = [rows_of(seed) for seed in range(4)]
    with_rates = [
        [*rows, *(_learning_rate(row, 1e-3 * (1 + seed)) for row in rows if _is_loss(row))]
        for seed, rows in enumerate(rates)
    ]
    judged = store_of(tmp_path / "run", with_rates[0])
    (run,) = insights(judged, against=store_of(tmp_path / "good", *with_rates[1:]))
    sentence = statement_of(run, "settings of baselines").sentence
    assert sentence.startswith("Run and baselines differ in: largest learning rate measured")
    assert "0.001 (seed0)" in sentence


def _is_loss(row):
    return row.metric == "train/loss"


def _learning_rate(row, value):
    return row.with_columns(metric="train/learning_rate", value=value)


def test_the_command_and_its_json(tmp_path, baselines, capsys):
    """The option forgotten on the way, or a score that JSON cannot hold."""
    judged = store_of(tmp_path / "run", rows_of(0, shift=6.0))
    command = ["insights", str(judged.path), "--against", str(baselines.path)]
    main(command)
    printed = " ".join(capsys.readouterr().out.split())
    assert re.search(r"watch Intrinsic dimension.*layers 3-5 since step 64", printed)
    main([*command, "--against-run", "seed1", "seed2", "seed3", "--json"])
    (run,) = json.loads(capsys.readouterr().out)
    (statement,) = [each for each in run["statements"] if each["kind"] == "baselines"]
    assert statement["evidence"]["p"] == 0.25
    with pytest.raises(SystemExit):
        main([*command, "--alerts"])
    assert "--against alone" in capsys.readouterr().err


@pytest.fixture
def earlier(tmp_path, small_probe):
    """Three earlier trainings in stores of their own, from other weights, and a tracker of one
    more."""

    def train(name, seed, *, collapses_at=None, recovers_at=None, begins_far=False, **options):
        loop = Loop()
        torch.manual_seed(seed)
        for weights in loop.model.parameters():
            weights.data += 0.01 * torch.randn_like(weights)
        near = copy.deepcopy(loop.model.state_dict())
        if begins_far:
            for weights in loop.model.parameters():
                weights.data *= 5.0
        settings = {"schedule": 1, "on_error": "raise", "report": False, "alerts": None}
        with Tracker(
            loop.model, small_probe, store=tmp_path / name, **settings | options
        ) as tracker:
            for step in range(1, 7):
                if step == collapses_at:
                    for weights in loop.model.parameters():
                        weights.data.fill_(0.01)
                if step == recovers_at:
                    loop.model.load_state_dict(near)
                tracker.step(loss=loop.step())
        return tracker

    for seed in range(3):
        train(f"good{seed}", seed)
    return train


@pytest.mark.usefixtures("without_figures")
def test_a_live_run_is_compared_after_each_measurement(earlier, tmp_path, capsys):
    """A comparison with what comes later, one that is told at each step, or at the first ones."""
    tracker = earlier("mine", 7, collapses_at=3, against=tmp_path / "good*")
    lines = [
        line for line in capsys.readouterr().err.splitlines() if "leaves the baselines" in line
    ]
    assert len(lines) == 1
    assert int(re.search(r"step (\d)", lines[0])[1]) in {3, 4, 5}
    assert "p = 0.25, not lower with 3 baselines" in lines[0]
    (shown,) = described_runs(tracker.store, ["mine"]).runs
    assert [run.name for run in shown.baselines] == ["good0", "good1", "good2"]
    assert shown.bands


@pytest.mark.usefixtures("without_figures")
def test_initial_weights_alone_are_not_told_of_a_live_run(earlier, tmp_path, capsys):
    """Two runs of one seed, one of them sound, were told to be furthest since step 0."""
    earlier("mine", 7, begins_far=True, recovers_at=1, against=tmp_path / "good*")
    assert "since step 0" not in capsys.readouterr().err


@pytest.mark.usefixtures("without_figures")
def test_a_live_run_that_is_like_its_baselines_again_says_so(earlier, tmp_path, capsys):
    """A line that a run is furthest stood there for good, though it was no longer so."""
    earlier("mine", 9, collapses_at=2, recovers_at=3, against=tmp_path / "good*")
    lines = [line for line in capsys.readouterr().err.splitlines() if "baselines" in line]
    assert [re.search("leaves|Like", line)[0] for line in lines] == ["leaves", "Like"]


@pytest.mark.usefixtures("without_figures")
def test_a_live_run_without_comparable_baselines_says_why_once(earlier, tmp_path, caplog):
    earlier("mine", 7, against=[tmp_path / "good0", tmp_path / "good1"])
    assert caplog.text.count("no comparison with earlier runs: expected at least 3 baselines") == 1
    with pytest.raises(ValueError, match="expected folders of earlier runs.*got '.*bad\\*'"):
        earlier("other", 8, against=tmp_path / "bad*")


def test_two_configurations_of_three_seeds_say_how_low_p_can_be():
    """Intervals over six seeds that are told as if there were many."""
    shifted = [rows_of(seed, f"one-seed{seed}", shift=6.0, since=0) for seed in (1, 2, 3)]
    unshifted = [rows_of(seed, f"other-seed{seed}") for seed in (4, 5, 6)]
    described = [*runs_of(*shifted, *unshifted).values()]
    statements = comparison_statements(described, seed_groups(described))
    (difference,) = [
        statement
        for statement in statements
        if statement.kind in {"difference", "clouds differ"} and statement.metric == "two_nn"
    ]
    assert "Over 3 against 3 seeds p = 0.1 by permutation, which cannot be below 0.1" in (
        difference.sentence
    )
    assert difference.evidence["lowest_p_of_seeds"] == pytest.approx(0.1)


def test_what_is_said_of_single_runs_is_not_said_of_their_configurations():
    """Two runs that agree were told as if their configurations did."""
    described = [*runs_of(rows_of(1, "one"), rows_of(1, "other")).values()]
    told = {
        statement.kind: statement.sentence for statement in comparison_statements(described, [])
    }
    assert "agreement" in told
    assert told["single seeds"].startswith(
        "One seed each: this holds for these runs, not for their"
    )
