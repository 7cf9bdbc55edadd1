"""The comparison with other packages, at sizes that take a moment. What it says of speed is not looked at."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from repdyn.data.byte_tokenizer import byte_tokenizer
from repdyn.models import build_model

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.extended]

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TWO_NN = ["repdyn", "scikit-dimension", "dadapy", "scikit-learn", "faiss", "torch.cdist"]
ANISOTROPY = [
    "repdyn", "torch.svdvals", "torch.gram", "torch.svd_lowrank", "numpy.svd", "scipy.svds", "scikit-learn",
]  # fmt: skip
CLOUDS = ["gaussian", "decaying", "outliers", "layer 1 of MODEL on language reference"]


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """What one run left behind: three synthetic clouds and a model's states, on a machine without faiss."""
    place = tmp_path_factory.mktemp("comparison")
    torch.manual_seed(0)
    sizes = {"vocab_size": 260, "hidden_size": 16, "n_layers": 2, "n_heads": 2, "context_length": 64}
    build_model("gpt_neox", **sizes).save_pretrained(place / "MODEL")
    byte_tokenizer().save_pretrained(place / "MODEL")
    (place / "hidden").mkdir()
    (place / "hidden" / "faiss.py").write_text("raise ModuleNotFoundError(name='faiss')")
    search = os.pathsep.join(filter(None, [str(place / "hidden"), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, str(BENCHMARKS / "kernel_comparison.py"), "--sizes", "300x32", "--repeats", "2"]
    done = subprocess.run(
        [*command, "--threads", "1", "--model", "MODEL", "--output", "out"],
        cwd=place,
        env=os.environ | {"PYTHONPATH": search},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (place / "out" / "stdout").write_text(done.stdout)
    return place / "out"


@pytest.fixture(scope="module")
def rows(written) -> pd.DataFrame:
    return pd.read_csv(written / "kernels.csv", comment="#")


@pytest.fixture
def benchmark(monkeypatch):
    """Imports a module of the benchmark."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@pytest.mark.parametrize(("quantity", "contenders"), [("two_nn", TWO_NN), ("anisotropy", ANISOTROPY)])
def test_every_contender_has_a_row_for_every_cloud(rows, quantity, contenders):
    found = rows[rows["quantity"] == quantity].groupby("cloud", sort=False)["contender"].agg(list)
    assert [name.split(" of Python")[0] for name in found.index] == CLOUDS
    assert all(names == ["bare product", *contenders] for names in found)


def test_ratios_lie_in_their_range_and_the_product_has_ratio_one(rows):
    timed = rows[rows["ratio"].notna()]
    assert (timed["ratio_low"] > 0).all()
    assert timed["ratio"].between(timed["ratio_low"], timed["ratio_high"]).all()
    assert (timed.loc[timed["contender"] == "bare product", ["ratio_low", "ratio_high"]] == 1).all(axis=None)
    assert set(rows.loc[rows["ratio"].isna(), "contender"]) <= {"dadapy", "faiss"}


def test_our_errors(rows):
    ours = rows[rows["contender"] == "repdyn"]
    assert ours["quantity"].value_counts().to_dict() == {"two_nn": 4, "anisotropy": 4}
    assert (ours["error"] < 1e-7).all()
    assert (ours.loc[ours["quantity"] == "two_nn", "error_distances"] < 1e-10).all()


def test_a_missing_peer_is_named(written, rows):
    assert set(rows.loc[rows["contender"] == "faiss", "note"]) == {"not installed here"}
    for text in ((written / "kernels.md").read_text(), (written / "stdout").read_text()):
        assert "two_nn, faiss: not installed here, IndexFlatL2.search(X, 3), distances alone" in text
        assert sum(line.startswith("| faiss") and "not installed here" in line for line in text.splitlines()) == 4


def test_the_tables_say_where_and_how(written):
    text = (written / "kernels.md").read_text()
    assert "- command: python benchmarks/kernel_comparison.py --sizes 300x32 --repeats 2" in text
    assert f"torch {torch.__version__}" in text
    assert "### Intrinsic dimension (TwoNN): gaussian, 300 x 32, 1 thread" in text
    assert "### Anisotropy: layer 1 of MODEL on language reference" in text


@pytest.mark.parametrize("name", ["two_nn.png", "two_nn.svg", "anisotropy.png", "anisotropy.svg"])
def test_figures_are_written_and_shown(written, name):
    assert (written / name).stat().st_size > 10_000
    assert name.endswith("svg") or f"({name})" in (written / "kernels.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes", "4096"], "expected ROWSxCOLUMNS such as 4096x768, at least 10x4, got '4096'; give several apart by spaces"),
        (["--sizes", "4096x2"], "expected ROWSxCOLUMNS such as 4096x768, at least 10x4, got '4096x2'; give several apart by spaces"),
        (["--repeats", "0"], "expected a whole number of 1 or more, got '0'"),
        (["--only", "fais"], "invalid choice: 'fais'"),
        (["--clouds"], "expected something to compute on, got no cloud; name --clouds gaussian decaying outliers or a --model"),
    ],
    ids=["sizes", "small", "repeats", "only", "nothing"],
)  # fmt: skip
def test_mistyped_options(benchmark, monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(sys, "argv", ["kernel_comparison.py", *arguments])
    with pytest.raises(SystemExit):
        benchmark("kernel_comparison").main()
    assert message in capsys.readouterr().err


def test_no_cuda_device(benchmark, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["kernel_comparison.py", "--device", "cuda"])
    with pytest.raises(SystemExit):
        benchmark("kernel_comparison").main()
    message = "expected a CUDA device for --device cuda, found none; leave it out to compute on the CPU"
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("every_row", [1e9, 0], ids=["all rows", "some rows"])
def test_the_reference_is_that_of_plain_differences(benchmark, monkeypatch, every_row):
    contenders = benchmark("peers.contenders")
    monkeypatch.setattr(contenders, "_EVERY_ROW", every_row)
    x = torch.randn(600, 9, generator=torch.Generator().manual_seed(0)) + 100
    reference = contenders.TWO_NN.reference(x)
    points = x.double().numpy()
    plain = np.stack([np.sort(np.sqrt(((points - points[row]) ** 2).sum(1)))[1:3] for row in reference.rows])
    np.testing.assert_allclose(reference.distances, plain, rtol=1e-12)
    assert (len(reference.rows), reference.value is None) == ((600, False) if every_row else (200, True))


def test_errors_are_relative_to_the_reference(benchmark):
    contenders = benchmark("peers.contenders")
    x = torch.randn(300, 9, generator=torch.Generator().manual_seed(0))
    reference = contenders.TWO_NN.reference(x)
    found = reference.distances * [1, 1.001]
    errors = contenders.errors_of(found, reference)
    assert errors.distances == pytest.approx(1e-3)
    assert errors.value == pytest.approx(abs(contenders.dimension(found) / reference.value - 1))
    assert contenders.errors_of(1.01 * reference.value, reference) == contenders.Errors(pytest.approx(0.01), None)


def test_distances_of_zero_leave_the_dimension_undefined(benchmark):
    distances = np.ones((20, 2)) * [1, 2]
    distances[::4] = 0
    assert np.isnan(benchmark("peers.contenders").dimension(distances))


@pytest.mark.parametrize("method", ["_by_watermark", "_by_sampling"])
def test_peak_memory_of_a_call(benchmark, method):
    rounds = benchmark("peers.rounds")
    if method == "_by_watermark" and not rounds._has_watermark():
        pytest.skip("this system does not let a process reset its peak")
    rounds._give_back_freed()
    taken = getattr(rounds, method)(lambda: [np.ones(1 << 23).sum() for _ in range(3)])
    assert 60 < taken / 2**20 < 80


@pytest.fixture
def compared(benchmark):
    """Compares one contender with the product, on 50 points."""
    contenders, rounds = benchmark("peers.contenders"), benchmark("peers.rounds")

    def compare(call, module: str = "torch", limit: float = 60.0):
        x = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
        quantity = contenders.TWO_NN
        case = rounds.Case(quantity, "gaussian", x, quantity.reference(x), torch.get_num_threads())
        contender = contenders.Contender("peer", call, "a call", "torch", module)
        product, row = rounds.compare(case, [contender], 2, limit, lambda _: None)
        assert product.timing.ratio == 1
        return row

    return compare


def test_a_slow_peer_is_left_out_and_says_so(compared):
    row = compared(lambda torch, x: 8.0, limit=0)
    assert (row.timing, row.note) == (None, "> 0 s")
    assert row.error is not None


def test_a_peer_that_fails_is_left_out_and_says_so(compared):
    with pytest.warns(UserWarning, match=re.escape("peer failed on gaussian: ZeroDivisionError('division by zero')")):
        row = compared(lambda torch, x: 1 / 0)
    assert (row.timing, row.note) == (None, "failed (ZeroDivisionError)")


@pytest.mark.parametrize(
    ("source", "note"),
    [
        ("import no_such_package", "needs no_such_package, which is not installed here"),
        ("raise ValueError('numpy.dtype size changed')", "does not import here (ValueError)"),
    ],
    ids=["dependency", "broken"],
)
def test_a_peer_that_does_not_import_says_why(compared, tmp_path, monkeypatch, source, note):
    (tmp_path / "broken_peer.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert compared(lambda module, x: 8.0, module="broken_peer").note == note
