"""Hours and price of a plan: against arithmetic by hand, and what the command prints of them."""

from __future__ import annotations

import doctest
import json
from dataclasses import replace

import pytest

from repdyn.sweep import estimate
from repdyn.sweep.estimate import HARDWARE, Assumptions, Estimate, Hardware, sum_of, weights_on_disk
from repdyn.sweep.options import parser

# a model of 12e9 weights, 100 times as wide as deep, has 10**4 * 100 layers times coordinates
SIZE = 24 * 10**9
SLOW = Hardware("a machine", "made up", load=1e9, forward=1e12, kernels=1e-3, price=3.0)
ASSUMED = Assumptions(SLOW, bandwidth=10e6, price=3.0, n_tokens=1000, max_vectors=8192, kernel_factor=2.0)
LAYERS_TIMES_WIDTH = (1e9) ** (2 / 3) / 100 ** (1 / 3)
MEASURED = 24 + 24 + 1e-3 * LAYERS_TIMES_WIDTH * 2 * 2


def options(*given: str):
    return parser("repdyn sweep").parse_args(["gpt2", *given])


def test_by_hand():
    found = ASSUMED.of([SIZE, 0], [SIZE, SIZE])
    assert found.download == pytest.approx(2400 / 3600)
    assert found.measurement == pytest.approx(2 * MEASURED / 3600)
    # the second is in the cache: of the first the download takes longer, of the second the measurement
    assert found.elapsed == pytest.approx((2400 + MEASURED) / 3600)
    assert ASSUMED.dollars(found) == pytest.approx(3 * found.elapsed)
    assert ASSUMED.of([], []) == Estimate(0, 0, 0)
    assert sum_of([found, found]).elapsed == pytest.approx(2 * found.elapsed)


@pytest.mark.parametrize(
    ("field", "factor"), [("n_tokens", 10), ("max_vectors", 4), ("kernel_factor", 3), ("hardware", 1)]
)
def test_what_takes_longer(field, factor):
    hardware = replace(SLOW, load=SLOW.load / 2)
    more = replace(ASSUMED, **{field: hardware if field == "hardware" else factor * getattr(ASSUMED, field)})
    assert more.of([0], [SIZE]).measurement > ASSUMED.of([0], [SIZE]).measurement
    assert more.of([SIZE], [SIZE]).download == ASSUMED.of([SIZE], [SIZE]).download


def test_the_shape_of_published_models():
    """Layers times width of Pythia, from the number of weights alone, within half of the true one."""
    for n_weights, true in {302e6: 24 * 1024, 1.2e9: 24 * 2048, 6.4e9: 32 * 4096, 11.3e9: 36 * 5120}.items():
        only_kernels = replace(ASSUMED, hardware=replace(SLOW, load=1e99, forward=1e99), max_vectors=4096)
        seconds = only_kernels.of([0], [int(2 * n_weights)]).measurement * 3600 / 1e-3 / 2
        assert seconds == pytest.approx(true, rel=0.5)


def test_the_options_are_the_assumptions():
    default = Assumptions.from_options(options())
    assert default.hardware is HARDWARE["gpu"]
    assert (default.bandwidth, default.price) == (50e6, HARDWARE["gpu"].price)
    assert (default.n_tokens, default.max_vectors, default.kernel_factor) == (2048 * 80, 16384, 1)
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
    assert plan["download_hours"] == pytest.approx(plan["download_bytes"] / 1000 / 3600)
    assert plan["hours"] >= plan["download_hours"] > plan["measurement_hours"] > 0
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
    assert plan["measurement_hours"] == plan["hours"] > 0
