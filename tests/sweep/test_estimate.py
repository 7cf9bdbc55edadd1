"""Hours and price of a plan: against arithmetic by hand, and what the command prints of them."""

from __future__ import annotations

import doctest
import json
from dataclasses import replace

import pytest

from repdyn.checkpoints.model_config import ModelShape, parse_config, shape_of
from repdyn.sweep import estimate
from repdyn.checkpoints.estimate import (
    CHECKPOINT_SECONDS,
    HARDWARE,
    START_SECONDS,
    VIEWS_SECONDS,
    Assumptions,
    CheckpointFiles,
    Estimate,
    Hardware,
    ModelFiles,
    sum_of,
    weights_on_disk,
)
from repdyn.checkpoints.options import parser

# 12e9 weights in blocks of width 10**4, and 1e9 in each of two embeddings, at 2 bytes
SHAPE = ModelShape(n_layers=10, width=10**4, vocabulary=10**5, weight_bytes=2)
SIZE = 2 * 14 * 10**9
SLOW = Hardware(
    *("a machine", "made up"), load=1e9, products=1e12, states=1e-6, kernels=1e-3, layers=0.5, logits=1e-9, price=3.0
)
ASSUMED = Assumptions(SLOW, bandwidth=10e6, price=3.0, n_tokens=1000, max_vectors=8192, kernel_factor=2.0)
LOAD = 28
FORWARD = 24 + 1e-6 * 10**5 * 1000
KERNELS = 2 * 2 * 11 * (10 + 0.5) + 8192 * 10**5 * (2 * 10**4 / 1e12 + 1e-9)
MEASURED = LOAD + FORWARD + KERNELS
REMOTE, LOCAL = CheckpointFiles(SIZE, SIZE), CheckpointFiles(SIZE, 0)


def options(*given: str):
    return parser("repdyn sweep").parse_args(["gpt2", *given])


def test_by_hand():
    (found,) = ASSUMED.of([ModelFiles([LOCAL], SHAPE)])
    assert found.load == pytest.approx(LOAD / 3600)
    assert found.forward == pytest.approx(FORWARD / 3600)
    assert found.kernels == pytest.approx(KERNELS / 3600)
    assert found.fixed == pytest.approx((START_SECONDS + VIEWS_SECONDS + CHECKPOINT_SECONDS) / 3600)
    assert found.measurement == pytest.approx(MEASURED / 3600)
    assert (found.download, found.elapsed) == (0, pytest.approx(found.measurement + found.fixed))
    assert ASSUMED.dollars(found) == pytest.approx(3 * found.elapsed)
    assert ASSUMED.of([ModelFiles([])]) == [Estimate()]
    assert sum_of([found, found]).elapsed == pytest.approx(2 * found.elapsed)
    (without,) = replace(ASSUMED, with_loss=False).of([ModelFiles([LOCAL], SHAPE)])
    assert without.kernels == pytest.approx(2 * 2 * 11 * (10 + 0.5) / 3600)


def test_a_download_overlaps_the_measurement_before():
    fetched = SIZE / 10e6 + 0.2
    busy = MEASURED + CHECKPOINT_SECONDS
    assert fetched > busy
    first, second, nothing, third = ASSUMED.of(
        [ModelFiles([REMOTE, REMOTE], SHAPE), ModelFiles([REMOTE], SHAPE), ModelFiles([]), ModelFiles([LOCAL], SHAPE)]
    )
    # the first is waited for in full, the others but for the time of the measurement before them, also of another model
    assert first.elapsed * 3600 == pytest.approx(START_SECONDS + VIEWS_SECONDS + 2 * fetched + busy)
    assert second.elapsed * 3600 == pytest.approx(VIEWS_SECONDS + fetched)
    assert nothing == Estimate()
    assert third.elapsed * 3600 == pytest.approx(VIEWS_SECONDS + busy)
    assert first.download * 3600 == pytest.approx(2 * fetched)
    # a fast hub delays the first alone
    quick = replace(ASSUMED, bandwidth=1e12).of([ModelFiles([REMOTE] * 3, SHAPE)])[0]
    assert quick.elapsed * 3600 == pytest.approx(START_SECONDS + VIEWS_SECONDS + 0.2 + SIZE / 1e12 + 3 * busy)


def test_requests_of_many_files():
    """Two for each file, of four at a time."""
    many = [ModelFiles([CheckpointFiles(SIZE, SIZE, n_files)], SHAPE) for n_files in (1, 4, 5, 30)]
    beyond = [3600 * found.download - SIZE / 10e6 for found in ASSUMED.of(many)]
    assert beyond == pytest.approx([0.2, 0.2, 0.4, 1.6])


def test_a_shape_that_is_not_known():
    """The same number of weights in blocks 100 times as wide as deep has 10**4 coordinates in 100 blocks, here of 1.2e12
    weights."""
    n_weights = 12 * 100 * 10**8
    (found,) = ASSUMED.of([ModelFiles([CheckpointFiles(2 * n_weights, 0)])])
    assert found.forward == pytest.approx(1000 * (2 * n_weights / 1e12 + 1e-6 * 10**6) / 3600)
    of_logits = 8192 * 50_000 * (2 * 10**4 / 1e12 + 1e-9)
    assert found.kernels == pytest.approx((4 * 101 * (10 + 0.5) + of_logits) / 3600)


@pytest.mark.parametrize("n_embeddings", [1, 2])
@pytest.mark.parametrize("weight_bytes", [2, 4])
def test_embeddings_multiply_nothing(n_embeddings, weight_bytes):
    """The output layer is counted with the loss, by the vectors and not by all tokens."""
    shape = replace(SHAPE, weight_bytes=weight_bytes)
    size = weight_bytes * (12 + n_embeddings) * 10**9
    (found,) = ASSUMED.of([ModelFiles([CheckpointFiles(size, 0)], shape)])
    assert found.forward == pytest.approx(FORWARD / 3600)


@pytest.mark.parametrize(
    ("field", "factor"), [("n_tokens", 10), ("max_vectors", 4), ("kernel_factor", 3), ("hardware", 1)]
)
def test_what_takes_longer(field, factor):
    hardware = replace(SLOW, load=SLOW.load / 2)
    more = replace(ASSUMED, **{field: hardware if field == "hardware" else factor * getattr(ASSUMED, field)})
    model = ModelFiles([REMOTE], SHAPE)
    assert more.of([model])[0].measurement > ASSUMED.of([model])[0].measurement
    assert more.of([model])[0].download == ASSUMED.of([model])[0].download


def test_the_shape_of_published_models():
    """Layers times width of Pythia, from the number of weights alone, within half of the true one."""
    for n_weights, true in {302e6: 24 * 1024, 1.2e9: 24 * 2048, 6.4e9: 32 * 4096, 11.3e9: 36 * 5120}.items():
        only_states = replace(ASSUMED, hardware=replace(SLOW, products=1e99), n_tokens=1)
        (found,) = only_states.of([ModelFiles([CheckpointFiles(int(2 * n_weights), 0)])])
        assert found.forward * 3600 / 1e-6 == pytest.approx(true, rel=0.5)


def test_the_options_are_the_assumptions():
    default = Assumptions.from_options(options())
    assert default.hardware is HARDWARE["gpu"]
    assert (default.bandwidth, default.price) == (50e6, HARDWARE["gpu"].price)
    assert (default.n_tokens, default.max_vectors, default.kernel_factor) == (2048 * 80, 16384, 1)
    assert default.with_loss
    assert Assumptions.from_options(options("--loss")).with_loss
    assert not Assumptions.from_options(options("--no-loss")).with_loss
    given = ["--hardware", "cpu", "--bandwidth", "1GB", "--price-per-hour", "0", "--max-vectors", "4096"]
    other = Assumptions.from_options(options(*given, "--metrics", "two_nn", "norm", "mean_cosine@no_sink"))
    assert other.hardware is HARDWARE["cpu"]
    assert (other.bandwidth, other.price) == (1e9, 0)
    assert (other.n_tokens, other.max_vectors) == (512 * 80, 4096)
    assert other.kernel_factor == pytest.approx(1.6)
    # each further cloud of vectors takes its own time, the two subsets of anisotropy do not
    views = ("anisotropy@no_sink", "anisotropy", "two_nn", "two_nn@last_token", "two_nn@window_mean")
    assert Assumptions.from_options(options("--metrics", *views)).kernel_factor == pytest.approx(1.6)
    assert Assumptions.from_options(options("--hardware", "cpu")).price == HARDWARE["cpu"].price
    assert Assumptions.from_options(options("--design", "dense")).n_tokens == 80 * 256
    assert Assumptions.from_options(options("--design", "paper")).n_tokens == 128 * 128
    assert Assumptions.from_options(options("--sequence-length", "512")).n_tokens == 2048 * 512
    assert Assumptions.from_options(options("--metrics", "token_rank@rare", "--classes", "rare")).kernel_factor > 1


@pytest.mark.parametrize("price", ["-1", "nan", "inf", "free"])
def test_no_price(price, capsys):
    with pytest.raises(SystemExit):
        options("--price-per-hour", price)
    assert f"expected a price in dollars, such as 2.50, got '{price}'" in capsys.readouterr().err


def test_weights_on_disk(tmp_path):
    for name, size in {"model.safetensors": 30, "pytorch_model.bin": 40, "config.json": 7}.items():
        (tmp_path / name).write_bytes(bytes(size))
    assert weights_on_disk(tmp_path) == 30
    assert weights_on_disk(tmp_path / "pytorch_model.bin") == 40
    (tmp_path / "model.safetensors").unlink()
    assert weights_on_disk(tmp_path) == 40
    (tmp_path / "pytorch_model.bin").unlink()
    assert weights_on_disk(tmp_path) == 0


def test_examples_in_docstrings():
    assert doctest.testmod(estimate).failed == 0


def test_a_dry_run_states_hours_price_and_assumptions(hub, commits, command):
    given = ("lab/model", "--dry-run", "--bandwidth", "1k", "--price-per-hour", "10")
    status, out, _ = command(*given, "--json")
    (plan,) = json.loads(out)
    assert status == 0
    # three checkpoints of three files each
    assert plan["download_hours"] == pytest.approx((plan["download_bytes"] / 1000 + 3 * 0.2) / 3600)
    assert plan["hours"] >= plan["download_hours"] > plan["measurement_hours"] > 0
    stages = sum(plan[f"{stage}_hours"] for stage in ("load", "forward", "kernels"))
    assert plan["measurement_hours"] == pytest.approx(stages)
    assert plan["fixed_hours"] == pytest.approx((START_SECONDS + VIEWS_SECONDS + 3 * CHECKPOINT_SECONDS) / 3600)
    assert plan["dollars"] == pytest.approx(10 * plan["hours"])
    _, out, _ = command(*given)
    lines = out.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("estimated in total: "))
    assert f"${plan['dollars']:.2f} (download" in lines[start]
    assert [line.strip() for line in lines[start + 1 : start + 6]] == plan["assumptions"]
    assert "download: 0.001 MB/s (--bandwidth)" in lines[start + 1]
    assert "price: $10.00 per hour (--price-per-hour)" in lines[start + 5]
    # what is measured costs nothing any more
    command("lab/model")
    _, out, _ = command(*given, "--json")
    assert json.loads(out)[0]["hours"] == json.loads(out)[0]["dollars"] == 0


def test_local_checkpoints_cost_no_download(family, command):
    status, out, _ = command(str(family[0].parent), "--dry-run", "--json", "--hardware", "cpu")
    (plan,) = json.loads(out)
    assert (status, plan["download_hours"]) == (0, 0)
    assert plan["measurement_hours"] > 0
    assert plan["hours"] == pytest.approx(plan["measurement_hours"] + plan["fixed_hours"])
    # of the shape that config.json names
    config = parse_config((family[0] / "config.json").read_bytes())
    n_bytes = [weights_on_disk(folder) for folder in family.values()]
    assumed = Assumptions.from_options(options("--hardware", "cpu", "--max-vectors", "512"))
    (expected,) = assumed.of([ModelFiles([CheckpointFiles(size, 0) for size in n_bytes], shape_of(config))])
    assert plan["kernels_hours"] == pytest.approx(expected.kernels)
