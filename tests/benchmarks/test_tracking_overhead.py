"""What tracking adds to a training, at sizes that take a moment. What it says of speed is not looked at."""

from __future__ import annotations

import importlib
import logging
import math
import re
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import yaml

from repdyn import Schedule

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TINY = {
    "seed_everything": 0,
    "model": {"family": "gpt_neox", "hidden_size": 32, "n_layers": 1, "n_heads": 1, "warmup_steps": 2},
    "data": {
        "text": "enwik8",
        "sequence_length": 32,
        "batch_size": 4,
        "max_bytes": 60_000,
        "max_vectors": 256,
        "batch_vectors": 128,
    },
    "tracker": {"schedule": {"doubling_until": 4, "every": 5}, "on_error": "warn"},
    "trainer": {"max_steps": 12, "accelerator": "cpu", "check_val_every_n_epoch": None, "limit_val_batches": 1},
}
DUE = [0, 1, 2, 4, 5, 10, 12]


@pytest.fixture
def overhead(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("tracking_overhead")


@pytest.fixture
def run(overhead, monkeypatch, tmp_path, capfd):
    """Runs the benchmark on a configuration, and gives what it printed to standard output and to the other one."""

    def run(config: object, *options: str, refused: bool = False) -> tuple[str, str]:
        path = tmp_path / "tiny.yaml"
        path.write_text(config if isinstance(config, str) else yaml.safe_dump(config))
        monkeypatch.setattr(sys, "argv", ["tracking_overhead.py", "--config", str(path), "--threads", "1", *options])
        logger, threads = logging.getLogger("lightning.pytorch"), torch.get_num_threads()
        level = logger.level
        try:
            with pytest.raises(SystemExit, match="^2$") if refused else nullcontext():
                overhead.main()
        finally:
            torch.set_num_threads(threads)
            logger.setLevel(level)
        return capfd.readouterr()

    return run


@pytest.fixture
def pair(overhead):
    """100 steps of 0.1 s; 20 measurements and figures make another 4 + 1 s."""
    return overhead.Pair(100, 10.0, 15.0, 20, measuring=3.6, figures=1.0, shares=(0.25, 0.5))


def numbers(line: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", line)]


@pytest.mark.extended
@pytest.mark.slow
def test_short_runs_report_a_measured_and_a_derived_ratio(run):
    printed, _ = run(TINY, "--steps", "6", "--pairs", "2")
    header, report = printed.strip().split("\n\n")
    for fact in (
        "machine: ",
        "threads: 1\n",
        f"torch {torch.__version__}\n",
        "--threads 1 --steps 6",
        "training: tiny.yaml on ",
    ):
        assert fact in header
    *pairs, measured, cost, figures, shares, derived = report.splitlines()
    assert [line.partition(":")[0] for line in pairs] == ["pair 1", "pair 2"]
    ratios = [numbers(line)[-1] for line in pairs]
    assert all(math.isfinite(ratio) and ratio > 1 for ratio in ratios)
    assert numbers(measured)[1:3] == [min(ratios), max(ratios)]
    assert measured.startswith("measured: ratio ")
    assert measured.endswith(") of 6 steps with 7 measurements")
    assert all(map(math.isfinite, numbers(cost)))
    assert min(numbers(cost.partition("own clock")[2])) > 0
    assert min(numbers(figures)) > 0
    assert 0 < sum(numbers(shares)) <= 101
    assert derived.startswith("derived, not run: ratio ")
    assert derived.endswith(f") of 12 steps with {len(DUE)} measurements")
    assert all(map(math.isfinite, numbers(derived)))


@pytest.mark.extended
@pytest.mark.slow
def test_the_whole_training_is_run_at_its_own_schedule(run):
    printed, _ = run(TINY, "--whole")
    report = printed.strip().split("\n\n")[1]
    assert report.count("pair ") == 1
    assert re.search(rf"measured: ratio [\d.]+ of 12 steps with {len(DUE)} measurements", report)
    assert "derived" not in report


@pytest.mark.parametrize(("name", "due"), [("decoder_enwik8", 53), ("encoder_enwik8", 47)])
def test_the_shipped_trainings_measure_often_through_the_warm_up(overhead, name, due):
    job = overhead.Job(yaml.safe_load((BENCHMARKS.parent / "configs" / f"{name}.yaml").read_text()), "builtin")
    assert job.schedule == Schedule(doubling_until=8, early_every=16, early_until=512, every=250)
    assert job.due == due


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("tracked_first", [False, True])
def test_a_pair_of_trainings(overhead, tracked_first, monkeypatch):
    job = overhead.Job(TINY, "builtin")
    fit, order = job._fit, []

    def spied(steps, tracker):
        order.append(tracker is not None)
        return fit(steps, tracker)

    monkeypatch.setattr(job, "_fit", spied)
    pair = job.pair(6, Schedule(steps=(3, 4)), tracked_first)
    assert order == [tracked_first, not tracked_first]
    assert pair.measurements == len([0, 3, 4, 6])
    assert 0 < pair.measuring < pair.tracked
    assert 0 < pair.figures < pair.tracked - pair.measuring
    assert pair.without > 0
    assert all(0 < share < 1 for share in pair.shares)
    assert sum(pair.shares) <= 1


@pytest.mark.extended
@pytest.mark.slow
def test_the_tracked_training_is_the_same_training(overhead):
    job = overhead.Job(TINY, "builtin")
    _, plain = job._fit(3, None)
    _, again = job._fit(3, None)
    tracked = overhead.ClockedTracker(schedule=1)
    _, watched = job._fit(3, tracked)
    for one, two, three in zip(plain.parameters(), again.parameters(), watched.parameters(), strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


def test_a_measurement_that_fails_stops_the_benchmark(overhead):
    forward = {"forward": lambda model, batch: None}
    job = overhead.Job(TINY | {"tracker": TINY["tracker"] | forward}, "builtin")
    with pytest.raises(RuntimeError, match="expected every block to run, but 1 of 1 did not"):
        job.pair(1, Schedule())


def test_the_cost_of_a_measurement_leaves_out_the_figures(pair):
    assert pair.cost == pytest.approx(2)
    assert pair.in_steps(pair.measuring) / pair.measurements == pytest.approx(1.8)


def test_the_derived_ratio_draws_the_figures_once(pair):
    assert pair.derived(100, 20) == pytest.approx(pair.tracked / pair.without)
    assert pair.derived(4000, 15) == pytest.approx(1 + (15 * 2 + 10) / 4000)


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        ("model: [", [], "while parsing"),
        ("some text", [], "expected a configuration of train.py that sets model, data and trainer.max_steps"),
        (TINY | {"trainer": {"max_epochs": 1}}, [], "expected a configuration of train.py that sets model, data and trainer.max_steps"),
        (TINY | {"tracker": {"schedule": "checkpoints"}}, [], "expected a schedule of steps, got one of checkpoints, which are off here; give steps"),
        (TINY, ["--text", "nowhere.txt"], "expected a text file (plain, .gz, .xz or .zip), found none at"),
        (TINY, ["--pairs", "0"], "expected 1 or more of --steps, --pairs and --threads, got less; leave out what is not to be set"),
        (TINY, ["--config", "nowhere.yaml"], "expected a configuration, found no file at nowhere.yaml; name one of configs/ with --config"),
        (TINY, ["--whole", "--steps", "5"], "argument --steps: not allowed with argument --whole"),
    ],
    ids=["no YAML", "other YAML", "no length", "checkpoints", "no text", "no pairs", "no file", "two lengths"],
)  # fmt: skip
def test_what_cannot_be_run(run, config, options, message):
    printed, told = run(config, *options, refused=True)
    assert printed == ""
    assert message in told
    assert "Traceback" not in told
